"""What depends on some arrays of a problem only is worked out once for them, and anew for others."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np

from heterotask_core.planning.once import once
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.search import warm_up


def test_an_answer_is_shared_by_problems_of_the_same_arrays_and_goes_with_them() -> None:
    asked: list[Problem] = []

    @once("cost_s", "task_class")
    def answer(problem: Problem) -> float:
        asked.append(problem)
        return float(problem.cost_s.sum())

    one = replace(warm_up(), cost_s=np.full((1, 1), 2.0))
    renamed = replace(one, name="another")
    assert [answer(one), answer(renamed), answer(one)] == [2.0, 2.0, 2.0]
    assert len(asked) == 1
    other = replace(one, cost_s=np.full((1, 1), 3.0))
    assert [answer(other), answer(one)] == [3.0, 2.0]
    assert asked == [one, other]
    # Arrays that come to lie where these did get answers of their own.
    for value in range(4, 40):
        asked.clear()
        del other
        gc.collect()
        other = replace(one, cost_s=np.full((1, 1), float(value)))
        assert answer(other) == float(value)


def test_an_answer_for_a_problem_as_a_whole_goes_with_it() -> None:
    class Answer:
        pass

    @once()
    def answer(_: Problem) -> Answer:
        return Answer()

    one = replace(warm_up(), name="one")
    kept = weakref.ref(answer(one))
    assert answer(one) is kept()
    assert answer(replace(one, name="other")) is not kept()
    del one
    gc.collect()
    assert kept() is None
