"""What depends on a problem, or on some arrays of it only, and is needed more than once.

Planners ask for the same again and again, and restricted problems share most arrays with the problem that they were
made of. Problems never change, so an answer holds as long as the arrays that it was made of live.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from heterotask_core.planning.problem import Problem

Answer = TypeVar("Answer")


def once(*fields: str) -> Callable[[Callable[[Problem], Answer]], Callable[[Problem], Answer]]:
    """Make a function of a problem one that answers once for the same ``fields``, on which alone it depends.

    Fields are arrays or integers; without any, it answers once a problem. The answer is shared, and must not hold what
    it was made of.
    """

    def decorate(function: Callable[[Problem], Answer]) -> Callable[[Problem], Answer]:
        found: dict[tuple[int, ...], Answer] = {}

        @wraps(function)
        def answered(problem: Problem) -> Answer:
            parts = [getattr(problem, field) for field in fields] or [problem]
            key = tuple(part if isinstance(part, int) else id(part) for part in parts)
            if key not in found:
                found[key] = function(problem)
                # Another array may have the identity of one that is gone.
                for part in parts:
                    if not isinstance(part, int):
                        weakref.finalize(part, found.pop, key, None).atexit = False
            return found[key]

        return answered

    return decorate
