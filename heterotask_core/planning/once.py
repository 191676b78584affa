"""What depends on some arrays of a problem only, and is needed more than once.

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
    """Make a function of a problem one that answers once for the same arrays ``fields``, on which alone it depends.

    The answer is shared: nobody may write to it.
    """

    def decorate(function: Callable[[Problem], Answer]) -> Callable[[Problem], Answer]:
        found: dict[tuple[int, ...], Answer] = {}

        @wraps(function)
        def answered(problem: Problem) -> Answer:
            arrays = [getattr(problem, field) for field in fields]
            key = tuple(map(id, arrays))
            if key not in found:
                found[key] = function(problem)
                # Another array may have the identity of one that is gone.
                for array in arrays:
                    weakref.finalize(array, found.pop, key, None).atexit = False
            return found[key]

        return answered

    return decorate
