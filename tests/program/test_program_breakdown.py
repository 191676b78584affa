"""The parts that reports make of a makespan sum up to it, on random programs with random overheads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import random_program

from heterotask_core.report.breakdown import critical_path, decompose
from heterotask_core.report.summary import summarise
from heterotask_core.simulate import simulate
from heterotask_core.trace import trace_table


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_parts_of_the_makespan_and_of_the_critical_path_sum_up_to_it(seed, n_nodes):
    random_case, _ = random_program(seed, n_nodes=n_nodes)
    rng = np.random.default_rng(seed)
    gaps = rng.uniform(0.0, 3e-4, random_case.n_ops)
    times = simulate(random_case, rng.uniform(0.0, 1e-3, random_case.n_ops) + gaps)
    zero_s = times.start_s[random_case.op_task >= 0].min()
    start_s, finish_s = times.start_s + gaps - zero_s, times.finish_s - zero_s
    kernels = random_case.op_task >= 0
    start_s, finish_s = start_s - start_s[kernels].min(), finish_s - start_s[kernels].min()
    makespan_s = finish_s[kernels].max()
    for parts in decompose(random_case, start_s, finish_s, capacity=True).values():
        assert min(parts.values()) >= 0.0
        assert sum(parts.values()) == pytest.approx(makespan_s, rel=1e-12)
    path = critical_path(random_case, start_s, finish_s, capacity=True)
    assert sum(path.sums_s.values()) == pytest.approx(makespan_s, rel=1e-12)
    assert min(path.sums_s.values()) >= -1e-15
    assert sum(s.own_s + s.gap_s for s in path.steps) + path.sums_s["lead_s"] == pytest.approx(makespan_s, rel=1e-12)
    if n_nodes > 1:
        return  # transfers follow the posting of the one before, which the gaps move too
    overheads = [step.gap_s for step in path.steps if step.why is not None]
    assert overheads == pytest.approx([gaps[step.op] for step in path.steps if step.why is not None], abs=1e-12)


def covered(intervals):
    """Length of a union of intervals, by counting at which of their ends one is open."""
    ends = sorted({end for interval in intervals for end in interval})
    return sum(b - a for a, b in pairwise(ends) if any(x <= a and b <= y for x, y in intervals))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_device_is_busy_while_any_of_its_ops_runs_and_never_more_than_all_the_time(seed):
    # A queue's driver may start an op before the one ahead of it has ended.
    program, _ = random_program(seed, n_nodes=1)
    rng = np.random.default_rng(seed)
    start_s = simulate(program).start_s
    kernels = program.op_task >= 0
    start_s = start_s - start_s[kernels].min()
    finish_s = start_s + rng.uniform(1e-4, 1e-2, program.n_ops)
    trace = trace_table(program, start_s, finish_s, origin="measured")
    found = summarise(program, trace)
    for device, share in found.utilisation.items():
        ops = trace.filter(pl.col("lane") == f"{device}.compute")
        kernels_only = ops.filter(pl.col("kind") == "kernel")
        busy_s = covered(kernels_only.select("start_s", "finish_s").rows())
        assert share <= 1.0 + 1e-12
        assert share * found.window_s <= busy_s + 1e-12
        if len(ops) == len(kernels_only):  # copies inside a memory count as transfer wait, also while a kernel runs
            assert share * found.window_s == pytest.approx(busy_s, abs=1e-12)
