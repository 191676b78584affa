"""Recomputes tasks with the reference variant, right after they have run, and compares (``--verify``).

The inputs are kept before a task runs, because an update overwrites them. Exact variants must agree bit for bit,
others within the square root of the type's precision. Sinks are left out: they would write their files again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import ExecutionError
from heterotask_core.runtime.binding import BoundTask
from heterotask_core.runtime.devices.base import Argument, by_role

Read = Callable[[Argument], npt.NDArray[Any]]
"""Returns a copy of an argument's present bytes."""


def chosen(ops: Sequence[int], share: float) -> set[int]:
    """Return every n-th op, n the inverse of ``share``; the same for the same program."""
    return set(ops[:: max(1, round(1 / share))]) if share > 0 else set()


class Recomputation:
    """A task's second opinion: :meth:`before` it runs, :meth:`after` it."""

    def __init__(self, task: BoundTask, read: Read, *, where: str) -> None:
        """Load the reference variant; ``where`` begins the message of a difference."""
        self._task, self._read, self._where = task, read, where
        self._reference = task.loaded.kernel.reference
        self._function = self._reference.load()
        self._inputs: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def before(self) -> None:
        """Keep what the task reads."""
        self._inputs = {(a.role, a.index): self._read(a) for a in self._task.arguments if a.access != "write"}

    def after(self) -> None:
        """Compute again and compare.

        Raises:
            ExecutionError: naming data, position and both values, where they differ.
        """
        arrays = {
            (a.role, a.index): self._inputs.get((a.role, a.index), np.zeros(a.shape, a.dtype))
            for a in self._task.arguments
        }
        self._function(**self._values(arrays))
        for argument in self._task.arguments:
            if argument.access != "read":
                self._compare(argument, self._read(argument), arrays[argument.role, argument.index])

    def _values(self, arrays: Mapping[tuple[str, int], npt.NDArray[Any]]) -> dict[str, Any]:
        """Return what the reference is called with."""
        task, reference = self._task, self._reference
        values = by_role(task.arguments, lambda a: arrays[a.role, a.index]) | task.params
        if reference.scratch_bytes is not None:
            shapes = {a.role: a.shape for a in reversed(task.arguments)}
            values["scratch"] = np.zeros(reference.scratch_bytes(task.params, shapes), np.uint8)
        if reference.max_cores != 1:
            values["cores"] = reference.min_cores
        return values

    def _compare(self, argument: Argument, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        if self._task.loaded.variant.exact:
            same = found.view(np.uint8) == expected.view(np.uint8) if found.ndim else found == expected
            wrong = not np.all(same)
        else:
            floating = np.issubdtype(found.dtype, np.inexact)
            tolerance = float(np.sqrt(np.finfo(found.dtype).eps)) if floating else 0.0
            wrong = not np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=floating)
        if wrong:
            differs = np.flatnonzero((found != expected).ravel())
            at = int(differs[0]) if len(differs) else 0
            raise ExecutionError(
                f"{self._where}: {argument.role!r} differs from reference variant {self._reference.name!r} in "
                f"{len(differs)} of {found.size} elements, first at {at}: {found.ravel()[at]!r} instead of "
                f"{expected.ravel()[at]!r}"
            )
