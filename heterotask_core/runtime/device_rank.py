"""A device rank: opens its device once, then binds and runs program after program."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from heterotask_core.errors import ExecutionError, ProgramError
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.runtime.binding import Variants, bound_tasks, warm_up
from heterotask_core.runtime.context import LANE_QUEUE, Context, JobSpec, settle
from heterotask_core.runtime.courier import DRAIN_S
from heterotask_core.runtime.devices.base import Backend, Event, Launcher, open_backend
from heterotask_core.runtime.devices.cpu import CpuBackend
from heterotask_core.runtime.loop import Loop
from heterotask_core.runtime.recompute import Recomputation, chosen
from heterotask_core.runtime.walker import Walker
from heterotask_core.sources import adopt_digests

SLEEP_S = 50e-6


class _Runner(Protocol):
    @property
    def op(self) -> int | None:
        """The op that was started last."""

    def run(self, repeat: int) -> bool:
        """Run the rank's lanes once."""


class DeviceRole:
    """What a device rank does with program after program (see rank.py)."""

    barrier_sleep_s = SLEEP_S

    def __init__(self, spec: JobSpec, device: str, *, arena: Any, memory_bytes: int, cores: int) -> None:
        """Open ``device``; raises what its backend raises."""
        adopt_digests(spec.sources)
        described = spec.devices[device]
        self._memory_name = described["memory"]
        self._backend: Backend = open_backend(
            described["kind"],
            selector=described["selector"],
            arena=arena,
            memory_bytes=memory_bytes,
            slab_bytes=int(described["slab_bytes"]),
            cores=cores,
        )
        self._variants = Variants()
        self._warm: set[tuple[str, str, str]] = set()
        self._engine: _DeviceEngine | None = None
        # What an accelerator reports may be sticky: its rank ends.
        self.survives = isinstance(self._backend, CpuBackend)

    @property
    def op(self) -> int | None:
        """The op that was started last."""
        return self._runner.op

    def load(self, context: Context) -> None:
        """Import, compile, bind and warm up what the program needs here."""
        self._context = context
        program, backend = context.program, self._backend
        memory = program.memory_names.index(self._memory_name)
        launchers: dict[int, Launcher] = {}
        blocking: set[int] = set()
        calls: dict[int, Callable[[], object]] = {}
        twice = chosen([op for lane in context.lanes for op in context.lane_ops(lane)], context.spec.verify)
        for op, task in bound_tasks(context, self._variants, memory):
            variant = task.loaded.variant
            key = (task.loaded.kernel.module, task.loaded.kernel.name, variant.name)
            try:
                if isinstance(backend, CpuBackend):
                    calls[op] = backend.call(variant, task.loaded.function, task.arguments, task.params, task.scratch)
                else:
                    launchers[op] = task.bind(backend)
                    blocking |= {op} if variant.blocking else set()
                if op in twice and not task.loaded.kernel.sink:
                    again = Recomputation(task, backend.read, where=f"variant {variant.name!r}")
                    if op in calls:
                        calls[op] = partial(_call_checked, calls[op], again)
                    else:
                        launchers[op] = partial(_launch_checked, launchers[op], again)
            except Exception as error:
                context.fail(op, error)
                raise
            if key not in self._warm and variant.warm_up and (variant.device_kind == "cpu" or variant.on_host):
                warm_up(task)
            self._warm.add(key)
        self._runner: _Runner
        if isinstance(backend, CpuBackend) and context.lanes:
            self._runner = self._walker(context, backend, calls)
        else:
            self._engine = _DeviceEngine(context, backend, memory, launchers, blocking)
            self._runner = Loop(context, self._engine, sleep_s=SLEEP_S, poll=self.watch)

    def _walker(self, context: Context, backend: CpuBackend, calls: dict[int, Callable[[], object]]) -> Walker:
        """Return the walker of a CPU's lane, with its copies bound too."""
        if len(context.lanes) != 1:
            raise ProgramError(f"CPU device {context.role.device!r} has {len(context.lanes)} lanes, not 1; plan again")
        ops = context.lane_ops(context.lanes[0])
        for op in ops:
            if op not in calls:
                (source, target), source_offset, target_offset, size_bytes = _copy_of(context, op)
                arena = context.program.memory_names.index(context.role.node)
                if (source, target) != (arena, arena):
                    raise _misplaced(context, op)
                calls[op] = backend.copy_call(source_offset, target_offset, size_bytes)
        return Walker(context, context.lanes[0], [calls[op] for op in ops], sleep_s=SLEEP_S)

    def run(self, repeat: int) -> bool:
        """Run the rank's lanes of one repeat; return False where it was aborted."""
        return self._runner.run(repeat)

    def watch(self) -> None:
        """Watching is the agent's work."""

    def drain(self) -> None:
        """After an abort: wait for what the device still runs. Every rank of the program takes part."""
        none = np.zeros((self._context.comm.size, 2), np.int64)
        settle(self._context.comm.Ialltoall(none, np.empty_like(none)))
        if self._engine is not None:
            self._engine.drain()

    def finish(self) -> None:
        """Forget the program; the device, its memory and what is compiled stay."""
        self._engine = None
        self._backend.forget()

    def close(self) -> None:
        """Close the device."""
        self._backend.close()


class _DeviceEngine:
    """Issues kernels and copies to a backend; ops of one queue complete in order."""

    chains = True
    sleeps = True

    def __init__(
        self, context: Context, backend: Backend, memory: int, launchers: dict[int, Launcher], blocking: set[int]
    ) -> None:
        self._context = context
        self.blocking = blocking
        self.last = frozenset(launchers) if backend.on_host_core else frozenset()
        self._pending: dict[int, deque[tuple[int, Event]]] = {lane: deque() for lane in context.lanes}
        self._running: dict[int, Event] = {}
        self._issue: dict[int, Launcher] = dict(launchers)
        for lane in context.lanes:
            for op in context.lane_ops(lane):
                if context.program.op_kind[op] != OpKind.KERNEL:
                    self._issue[op] = _copy_launcher(context, backend, memory, lane, op)

    def issue(self, lane: int, op: int, after: Sequence[int]) -> None:
        """Start an op behind own ones."""
        event = self._issue[op]([self._running[other] for other in after if other in self._running])
        self._running[op] = event
        self._pending[lane].append((op, event))

    def completed(self) -> list[tuple[int, int, float, float]]:
        """Ask the oldest op of each queue, and the next where it is complete."""
        done = []
        for lane, pending in self._pending.items():
            while pending and pending[0][1].query():
                op, event = pending.popleft()
                del self._running[op]
                done.append((lane, op, *event.times()))
        return done

    def drain(self) -> None:
        """Wait for everything issued."""
        deadline_s = time.monotonic() + DRAIN_S
        while self._running:
            self.completed()
            if time.monotonic() > deadline_s:
                raise ExecutionError(f"{len(self._running)} ops of the device did not end within {DRAIN_S:g} s")


def _call_checked(call: Callable[[], object], again: Recomputation) -> None:
    again.before()
    call()
    again.after()


def _launch_checked(launch: Launcher, again: Recomputation, after: Sequence[Any]) -> Event:
    """Launch alone, between two looks at the arrays: nothing else of this rank is issued meanwhile."""
    for event in after:
        _finish(event)
    again.before()
    event = launch(())
    _finish(event)
    again.after()
    return event


def _finish(event: Event) -> None:
    while not event.query():
        os.sched_yield()


def _copy_of(context: Context, op: int) -> tuple[tuple[int, int], int, int, int]:
    """Return (source memory, target memory), both offsets and the bytes of a copy."""
    source, source_offset, size_bytes = context.place(int(context.program.op_source[op]))
    target, target_offset, _ = context.place(int(context.program.op_target[op]))
    return (source, target), source_offset, target_offset, size_bytes


def _copy_launcher(context: Context, backend: Backend, memory: int, lane: int, op: int) -> Launcher:
    """Return what issues a copy between the arena and the device's memory, or inside the device's memory."""
    arena = context.program.memory_names.index(context.role.node)
    queue = LANE_QUEUE[LaneKind(int(context.program.lane_kinds[lane]))]
    copies = {
        (memory, memory): backend.copy_within,
        (arena, memory): backend.copy_in,
        (memory, arena): backend.copy_out,
    }
    pair, source_offset, target_offset, size_bytes = _copy_of(context, op)
    if pair not in copies:
        raise _misplaced(context, op)
    copy = copies[pair]
    for place, offset in zip(pair, (source_offset, target_offset), strict=True):
        if place == memory:
            backend.prepare(offset, size_bytes)
    return lambda after: copy(source_offset, target_offset, size_bytes, after, queue)


def _misplaced(context: Context, op: int) -> ProgramError:
    return ProgramError(f"{context.describe(op)} stands on a lane of device {context.role.device!r}; plan again")
