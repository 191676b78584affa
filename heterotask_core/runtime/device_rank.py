"""A device rank: opens its device, binds its tasks, then runs its lanes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import KernelError, ProgramError
from heterotask_core.kernel import Kernel, find_kernel
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.runtime.context import LANE_QUEUE, Context
from heterotask_core.runtime.devices.base import Argument, Backend, Event, Launcher, by_role, open_backend
from heterotask_core.runtime.loop import Loop

SLEEP_S = 50e-6


def run_device(context: Context) -> None:
    """Load (compile, bind), then run all repeats; failures are left for the launcher before they are raised."""
    program, role = context.program, context.role
    assert role.device is not None
    device = context.spec.devices[role.device]
    memory = program.memory_names.index(device["memory"])
    try:
        backend = open_backend(
            device["kind"],
            selector=device["selector"],
            arena=context.memory.arena,
            slab_bytes=int(program.memory_size_bytes[memory]),
            cores=max(1, len(role.core_ids)),
        )
    except Exception as error:
        context.fail(None, error, doing=f"opening device {role.device!r}")
        raise
    launchers = _bind_tasks(context, backend, memory)
    _warm_up(context)

    def issue(lane: int, op: int, after: list[Any]) -> Event:
        if program.op_kind[op] == OpKind.KERNEL:
            return launchers[op](after)
        return _copy(context, backend, memory, lane, op, after)

    def nothing() -> None:
        """Watching is the agent's work."""

    loop = Loop(context, issue, chain=backend.own_memory, sleep_s=SLEEP_S, poll=nothing)
    for repeat in range(context.spec.repeats):
        context.barrier(nothing, SLEEP_S)
        loop.run(repeat + 1)
    context.barrier(nothing, SLEEP_S)
    backend.close()


def _bind_tasks(context: Context, backend: Backend, memory: int) -> dict[int, Launcher]:
    """Return op → launcher of every kernel op of this rank."""
    program = context.program
    launchers: dict[int, Launcher] = {}
    functions: dict[int, Callable[..., Any]] = {}
    for lane in context.lanes:
        for op in context.lane_ops(lane):
            if program.op_kind[op] != OpKind.KERNEL:
                continue
            task = int(program.op_task[op])
            index = int(program.task_call[task])
            call = program.calls[index]
            try:
                kernel = find_kernel(call.module, call.kernel)
                variant = kernel.variant(call.variant)
                if index not in functions:
                    if call.fingerprint not in ("", variant.fingerprint()):
                        raise KernelError("its source has changed since the plan was made; plan again")
                    functions[index] = variant.load()
                params = {name: _resolve(value, context) for name, value in call.params.items()}
                scratch_offset = int(program.task_scratch_offset_bytes[task])
                scratch = None
                if scratch_offset >= 0:
                    scratch = (scratch_offset, int(program.task_scratch_bytes[task]))
                    context.peak_bytes[memory] = max(context.peak_bytes[memory], sum(scratch))
                arguments = _arguments(context, task, kernel)
                launchers[op] = backend.bind(variant, functions[index], arguments, params, scratch)
            except Exception as error:
                context.fail(op, error)
                raise
    return launchers


def _warm_up(context: Context) -> None:
    """Call each variant that computes on the host once on zeros of its own: imports, compiled code, input files.

    Only variants that declare ``warm_up``. One may refuse zeros; the real call then tells.
    """
    program = context.program
    seen: set[tuple[str, str, str]] = set()
    for lane in context.lanes:
        for op in context.lane_ops(lane):
            if program.op_kind[op] != OpKind.KERNEL:
                continue
            task = int(program.op_task[op])
            call = program.calls[int(program.task_call[task])]
            kernel = find_kernel(call.module, call.kernel)
            variant = kernel.variant(call.variant)
            if (call.module, call.kernel, call.variant) in seen or not variant.warm_up:
                continue
            if variant.device_kind != "cpu" and not variant.on_host:
                continue
            seen.add((call.module, call.kernel, call.variant))
            values = by_role(_arguments(context, task, kernel), lambda a: np.zeros(a.shape, a.dtype))
            values |= {name: _resolve(value, context) for name, value in call.params.items()}
            if variant.scratch_bytes is not None:
                values["scratch"] = np.zeros(int(program.task_scratch_bytes[task]), np.uint8)
            if variant.max_cores != 1:
                values["cores"] = variant.min_cores
            with contextlib.suppress(Exception):
                variant.load()(**values)


def _arguments(context: Context, task: int, kernel: Kernel) -> list[Argument]:
    """Return the arrays of a task, in role order; items of a list role are numbered."""
    program = context.program
    arguments: list[Argument] = []
    counts: dict[str, int] = {}
    for position in range(int(program.argument_ptr[task]), int(program.argument_ptr[task + 1])):
        residency = int(program.argument_residency[position])
        role = program.role_names[program.argument_role[position]]
        item = int(program.version_item[program.residency_version[residency]])
        _, offset, _ = context.place(residency)
        index = counts.get(role, 0)
        counts[role] = index + 1
        is_list = bool(program.argument_is_list[position])
        arguments.append(
            Argument(
                role,
                index,
                program.item_shapes[item],
                program.item_dtypes[item],
                offset,
                is_list,
                kernel.access(role),
            )
        )
    return arguments


def _resolve(value: Any, context: Context) -> Any:
    """Return a parameter, an output name as the path in the run's folder."""
    if isinstance(value, dict) and set(value) == {"output"}:
        return Path(context.spec.output_dir) / value["output"]
    return value


def _copy(context: Context, backend: Backend, memory: int, lane: int, op: int, after: list[Any]) -> Event:
    """Issue a copy between the arena and the device's memory, or inside the device's memory."""
    program = context.program
    arena = program.memory_names.index(context.role.node)
    source, source_offset, size_bytes = context.place(int(program.op_source[op]))
    target, target_offset, _ = context.place(int(program.op_target[op]))
    queue = LANE_QUEUE[LaneKind(int(program.lane_kinds[lane]))]
    copies = {
        (memory, memory): backend.copy_within,
        (arena, memory): backend.copy_in,
        (memory, arena): backend.copy_out,
    }
    if memory == arena:
        copies = {(arena, arena): backend.copy_within}
    if (source, target) not in copies:
        raise ProgramError(f"{context.describe(op)} stands on a lane of device {context.role.device!r}; plan again")
    return copies[source, target](source_offset, target_offset, size_bytes, after, queue)
