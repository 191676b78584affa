"""Binds the tasks of a device rank: variants imported and checked, arrays placed, parameters resolved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import KernelError
from heterotask_core.kernel import Kernel, Variant, find_kernel
from heterotask_core.program.model import OpKind
from heterotask_core.runtime.context import Context
from heterotask_core.runtime.devices.base import Argument, Backend, by_role
from heterotask_core.runtime.quick_numba import quicken


class StaleModuleError(KernelError):
    """A variant's source differs from the module that this process has loaded: only a new process can run it."""


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    """A variant as this process has imported it."""

    kernel: Kernel
    variant: Variant
    function: Callable[..., Any]
    fingerprint: str
    """Of the source at the time of the import."""


class Variants:
    """The variants that a process has loaded, each once, for all programs that it runs."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._loaded: dict[tuple[str, str, str], LoadedVariant] = {}

    def load(self, module: str, kernel: str, variant: str, *, fingerprint: str) -> LoadedVariant:
        """Import a variant, or return it as it was imported.

        Raises:
            KernelError: it is not there.
            StaleModuleError: its source is not the one of ``fingerprint`` (empty: any).
        """
        key = (module, kernel, variant)
        loaded = self._loaded.get(key)
        if loaded is None:
            found = find_kernel(module, kernel)
            chosen = found.variant(variant)
            function = chosen.load()
            quicken()
            loaded = LoadedVariant(found, chosen, function, chosen.fingerprint())
            self._loaded[key] = loaded
        if fingerprint not in ("", loaded.fingerprint):
            raise StaleModuleError("its source has changed since the plan was made; plan again")
        return loaded


@dataclass(frozen=True, slots=True)
class BoundTask:
    """Everything that a call of a task needs; ``scratch`` is (offset, bytes) in the computing memory."""

    loaded: LoadedVariant
    arguments: list[Argument]
    params: dict[str, Any]
    scratch: tuple[int, int] | None

    def bind(self, backend: Backend) -> Any:
        """Return the backend's launcher of the task."""
        return backend.bind(self.loaded.variant, self.loaded.function, self.arguments, self.params, self.scratch)


def bound_tasks(context: Context, variants: Variants, memory: int) -> Iterator[tuple[int, BoundTask]]:
    """Yield (op, task) of every kernel op of this rank, whose device computes in ``memory``.

    A failure is left for the launcher before it is raised.
    """
    program = context.program
    arguments = _Arguments(context)
    kernels = program.op_kind == OpKind.KERNEL
    for lane in context.lanes:
        for op in context.lane_ops(lane):
            if not kernels[op]:
                continue
            task = int(program.op_task[op])
            call = program.calls[program.task_call[task]]
            try:
                loaded = variants.load(call.module, call.kernel, call.variant, fingerprint=call.fingerprint)
            except Exception as error:
                context.fail(op, error)
                raise
            params = {name: _resolve(value, context) for name, value in call.params.items()}
            offset, scratch = int(program.task_scratch_offset_bytes[task]), None
            if offset >= 0:
                scratch = (offset, int(program.task_scratch_bytes[task]))
                context.peak_bytes[memory] = max(context.peak_bytes[memory], sum(scratch))
            yield op, BoundTask(loaded, arguments.of(task, loaded.kernel), params, scratch)


def warm_up(bound: BoundTask) -> None:
    """Call a variant that computes on the host once on zeros of its own: imports, compiled code, input files.

    It may refuse zeros; the real call then tells.
    """
    variant = bound.loaded.variant
    values = by_role(bound.arguments, lambda a: np.zeros(a.shape, a.dtype)) | bound.params
    if variant.scratch_bytes is not None:
        values["scratch"] = np.zeros(0 if bound.scratch is None else bound.scratch[1], np.uint8)
    if variant.max_cores != 1:
        values["cores"] = variant.min_cores
    with contextlib.suppress(Exception):
        bound.loaded.function(**values)


class _Arguments:
    """The arrays of tasks; the program's tables as lists, because one number at a time is read."""

    def __init__(self, context: Context) -> None:
        program = context.program
        self._context = context
        self._ptr = program.argument_ptr.tolist()
        self._residency = program.argument_residency.tolist()
        self._item = program.version_item[program.residency_version].tolist()
        self._role = [program.role_names[role] for role in program.argument_role.tolist()]
        self._is_list = [bool(flag) for flag in program.argument_is_list.tolist()]

    def of(self, task: int, kernel: Kernel) -> list[Argument]:
        """Return the arrays of a task, in role order; items of a list role are numbered."""
        program = self._context.program
        arguments: list[Argument] = []
        counts: dict[str, int] = {}
        for position in range(self._ptr[task], self._ptr[task + 1]):
            residency, role = self._residency[position], self._role[position]
            item = self._item[residency]
            _, offset, _ = self._context.place(residency)
            index = counts.get(role, 0)
            counts[role] = index + 1
            shape, dtype = program.item_shapes[item], program.item_dtypes[item]
            is_list = self._is_list[position]
            arguments.append(Argument(role, index, shape, dtype, offset, is_list, kernel.access(role)))
        return arguments


def _resolve(value: Any, context: Context) -> Any:
    """Return a parameter, an output name as the path in the run's folder."""
    if isinstance(value, dict) and set(value) == {"output"}:
        return Path(context.spec.output_dir) / value["output"]
    return value
