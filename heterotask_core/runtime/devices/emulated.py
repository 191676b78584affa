"""Emulated ranks: real buffers, copies, messages and results in logical time (see :mod:`heterotask_core.emulation`).

Every rank does its ops one at a time in one order that all ranks share and that respects every lane and dependency:
so nothing can deadlock, whatever the logical times are. The logical end of an op lies beside its flag in a file of
its node and is written before the flag is published; the two ends of a network transfer tell each other when they
are ready in a message of their own.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.emulation import TIMES_FILE, op_nodes, times_path, with_capacity_order
from heterotask_core.errors import ExecutionError
from heterotask_core.kernel import find_kernel
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime.binding import BoundTask, LoadedVariant, StaleModuleError, Variants, bound_tasks, warm_up
from heterotask_core.runtime.context import Context, Idle
from heterotask_core.runtime.devices.base import Argument, by_role, view
from heterotask_core.simulate import WINDOW, topological_order

_SLEEP_S = 200e-6
_READY, _DATA, _FORWARD = 0, 1, 2
"""Kinds of messages; tags are 3 × (op modulo what the MPI standard promises) + kind."""
_TAGS = 32_766 // 3


class EmulatedRole:
    """What an emulated device's rank, or a node's agent, does with a program (see rank.py)."""

    barrier_sleep_s = _SLEEP_S
    survives = False

    def __init__(self) -> None:
        """Hold nothing; an emulated device needs no opening."""
        self.op: int | None = None
        """The op that was started last."""
        self._requests: list[tuple[Any, npt.NDArray[np.float64]]] = []

    def load(self, context: Context) -> None:
        """Order the own ops, map the node's logical times, bind the tasks."""
        self._context = context
        program = context.program
        with np.load(context.files / TIMES_FILE, allow_pickle=False) as stored:
            self._total_s, self._wait_s = stored["total_s"], stored["wait_s"]
        with times_path(context.files, context.role.node).open("r+b") as file:
            self._finish_s = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64)
        self._start_s: dict[int, float] = {}
        nodes = op_nodes(program)
        agents = {role.node: rank for rank, role in enumerate(program.ranks) if role.device is None}
        self._ends = {
            op: [agents[_node(program, residency)] for residency in (program.op_source[op], program.op_target[op])]
            for op in np.flatnonzero(program.op_kind == OpKind.TRANSFER).tolist()
        }
        ordered, self._remote = with_capacity_order(program)
        self._forward: dict[int, list[int]] = {}
        for op, earlier in self._remote.items():
            for e in earlier:
                self._forward.setdefault(e, []).append(op)
        self._lane_of: dict[int, int] = {}
        self._before: dict[int, tuple[int, int]] = {}
        """Op → previous op of its lane, and on network lanes the one ``WINDOW`` before; −1 for none."""
        for lane in context.lanes:
            ops = context.lane_ops(lane)
            network = program.lane_kinds[lane] in (LaneKind.SEND, LaneKind.RECEIVE)
            for i, op in enumerate(ops):
                self._lane_of[op] = lane
                self._before[op] = (ops[i - 1] if i else -1, ops[i - WINDOW] if network and i >= WINDOW else -1)
        self._order = [op for op in topological_order(program).tolist() if op in self._lane_of]
        ptr = ordered.dep_ptr
        self._deps = {
            op: [d for d in ordered.dep_ops[ptr[op] : ptr[op + 1]].tolist() if context.role.node in nodes[d]]
            for op in self._order
        }
        self._done = dict.fromkeys(context.lanes, 0)
        arena = program.memory_names.index(context.role.node)
        self._spaces: dict[int, npt.NDArray[np.uint8]] = {arena: context.memory.arena}
        self._calls: dict[int, Callable[[], object]] = {}
        if context.role.device is not None:
            self._bind(context.spec.devices[context.role.device]["memory"])

    def _bind(self, memory_name: str) -> None:
        context = self._context
        memory = context.program.memory_names.index(memory_name)
        if memory not in self._spaces:
            self._spaces[memory] = np.zeros(int(context.program.memory_size_bytes[memory]), np.uint8)
        warm: set[int] = set()
        for op, task in bound_tasks(context, _HostVariants(), memory):
            if task.loaded.variant.warm_up and id(task.loaded) not in warm:
                warm_up(task)
            warm.add(id(task.loaded))
            try:
                self._calls[op] = _call(task, self._spaces[memory])
            except Exception as error:
                context.fail(op, error)
                raise

    def watch(self) -> None:
        """An agent's lookout does it."""

    def drain(self) -> None:
        """Nothing is left running when a repeat ends."""

    def finish(self) -> None:
        """Forget the program."""
        self._calls.clear()

    def close(self) -> None:
        """Nothing is held between programs."""

    def run(self, repeat: int) -> bool:
        """Do every own op once; an exception is left to the caller."""
        context = self._context
        self._start_s.clear()
        begun_s, dilate = time.monotonic(), context.spec.dilate
        for op in self._order:
            self.op = op
            self._wait_for(partial(self._seen, self._deps[op]))
            start_s = self._transfer(op) if op in self._ends else self._compute(op)
            finish_s = start_s + self._total_s[repeat, op]
            self._start_s[op] = start_s
            self._finish_s[op] = finish_s
            context.start_s[repeat, op] = start_s + self._wait_s[repeat, op]
            context.finish_s[repeat, op] = finish_s
            if dilate:
                late_s = time.monotonic() - begun_s - dilate * finish_s
                context.lag_s[repeat] = max(context.lag_s[repeat], late_s)
                self._wait_for(partial(_reached, begun_s + dilate * finish_s))
            if op in self._ends and self._ends[op][0] == context.rank:
                for later in self._forward.get(op, []):
                    self._send(later, _FORWARD, self._ends[later][0], np.array([op, finish_s]))
            context.memory.publish(op, context.epoch)
            lane = self._lane_of[op]
            self._done[lane] += 1
            context.counters.set(lane, issued=self._done[lane], done=self._done[lane])
        for request, _ in self._requests:
            self._wait_for(request.Test)
        self._requests.clear()
        return True

    def _seen(self, ops: list[int]) -> bool:
        return all(self._context.memory.seen(op, self._context.epoch) for op in ops)

    def _ready_s(self, op: int) -> float:
        """Latest logical end (of an earlier op of a network lane: start) that this rank knows of."""
        previous, far = self._before[op]
        known = [float(self._finish_s[d]) for d in self._deps[op]]
        if previous >= 0:
            known.append(self._start_s[previous] if op in self._ends else float(self._finish_s[previous]))
        if far >= 0:
            known.append(float(self._finish_s[far]))
        return max(known, default=0.0)

    def _compute(self, op: int) -> float:
        """Run a kernel or a copy inside the node; return its logical start."""
        program = self._context.program
        if program.op_kind[op] == OpKind.KERNEL:
            self._calls[op]()
        else:
            source, target = (self._bytes(int(r)) for r in (program.op_source[op], program.op_target[op]))
            target[:] = source
        return self._ready_s(op)

    def _transfer(self, op: int) -> float:
        """Move a transfer's bytes and agree with the other end when it starts."""
        program, context = self._context.program, self._context
        sender, receiver = self._ends[op]
        sends = sender == context.rank
        other = receiver if sends else sender
        ready_s = self._ready_s(op)
        for earlier in self._remote.get(op, []) if sends else []:
            ready_s = max(ready_s, self._receive(op, _FORWARD, self._ends[earlier][0], earlier))
        data = self._bytes(int((program.op_source if sends else program.op_target)[op]))
        tag = _tag(op, _DATA)
        moved = context.comm.Isend(data, other, tag) if sends else context.comm.Irecv(data, other, tag)
        self._send(op, _READY, other, np.array([op, ready_s]))
        ready_s = max(ready_s, self._receive(op, _READY, other, op))
        self._wait_for(moved.Test)
        return ready_s

    def _send(self, op: int, kind: int, rank: int, message: npt.NDArray[np.float64]) -> None:
        # With its buffer, which must live until it is sent.
        self._requests.append((self._context.comm.Isend(message, rank, _tag(op, kind)), message))

    def _receive(self, op: int, kind: int, rank: int, about: int) -> float:
        message = np.empty(2)
        request = self._context.comm.Irecv(message, rank, _tag(op, kind))
        self._wait_for(request.Test)
        if int(message[0]) != about:
            raise ExecutionError(f"rank {rank} sent the time of op {int(message[0])} where that of {about} was due")
        return float(message[1])

    def _bytes(self, residency: int) -> npt.NDArray[np.uint8]:
        memory, offset, size_bytes = self._context.place(residency)
        return self._spaces[memory][offset : offset + size_bytes]

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        if ready():
            return
        idle = Idle(_SLEEP_S)
        while not ready():
            self.watch()
            idle.wait()


class _HostVariants(Variants):
    """Variants that compute in place of the planned ones: these themselves on the host, else the reference."""

    def load(self, module: str, kernel: str, variant: str, *, fingerprint: str) -> LoadedVariant:
        """Import what computes; the fingerprint is that of the planned variant, which is not imported."""
        found = find_kernel(module, kernel)
        planned = found.variant(variant)
        if fingerprint not in ("", planned.fingerprint()):
            raise StaleModuleError("its source has changed since the plan was made; plan again")
        name = variant if planned.device_kind == "cpu" else found.reference.name
        return super().load(module, kernel, name, fingerprint="")


def _call(task: BoundTask, space: npt.NDArray[np.uint8]) -> Callable[[], object]:
    """Return the call of a task on views of ``space``; scratch of the host's own size lies outside the plan."""
    variant = task.loaded.variant

    def array(argument: Argument) -> npt.NDArray[Any]:
        return view(space, argument)

    values = {**by_role(task.arguments, array), **task.params}
    if variant.scratch_bytes is not None:
        shapes = {argument.role: argument.shape for argument in reversed(task.arguments)}
        values["scratch"] = np.empty(variant.scratch_bytes(task.params, shapes), np.uint8)
    if variant.max_cores != 1:
        values["cores"] = variant.min_cores
    return partial(task.loaded.function, **values)


def _reached(due_s: float) -> bool:
    return time.monotonic() >= due_s


def _node(program: Program, residency: int) -> str:
    node: str = program.memory_nodes[program.residency_memory[residency]]
    return node


def _tag(op: int, kind: int) -> int:
    return 3 * (op % _TAGS) + kind
