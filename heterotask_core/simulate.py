"""Program → predicted times: the longest path over lane order and dependencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numba
import numpy as np

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import F64, I8, I32, I64, LaneKind, OpKind, Program

WINDOW = 16
"""Network requests that an agent keeps in flight a lane."""


@dataclass(frozen=True)
class Simulated:
    """Start and finish of every op in seconds, and the task-window makespan."""

    start_s: F64
    finish_s: F64
    makespan_s: float


def simulate(program: Program, durations_s: F64 | None = None) -> Simulated:
    """Return when every op runs if it takes ``durations_s`` (N,) (default: as planned).

    All lanes count, capacity lanes in planned order; on send and receive lanes ops are posted in order with up to
    ``WINDOW`` in flight, as agents do. Raises :class:`ProgramError` when the order has a cycle.
    """
    return Simulator(program).run(durations_s)


class Simulator:
    """Simulates one program again and again, with its order looked up once.

    Raises :class:`ProgramError` when the order has a cycle.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._kernels = program.op_kind == OpKind.KERNEL
        self._before = predecessors(program)
        self._order = _topological(program, self._before[0], self._before[1])

    def run(self, durations_s: F64 | None = None) -> Simulated:
        """Do what :func:`simulate` does."""
        durations = self._program.op_duration_s if durations_s is None else np.asarray(durations_s, np.float64)
        start, finish = _longest_path(self._order, *self._before, durations)
        kernels = self._kernels
        makespan = float(finish[kernels].max() - start[kernels].min()) if kernels.any() else 0.0
        return Simulated(start, finish, makespan)


def predecessors(program: Program) -> tuple[I64, I32, I8]:
    """Return CSR over ops: dependencies and earlier ops of every lane; 1 where only their start is awaited."""
    ptr, before, posted, _ = reasons(program, capacity=True)
    return ptr, before, posted


class Reason(enum.IntEnum):
    """Why an op waits for another."""

    DATA = 0
    REUSE = 1
    LANE = 2
    CAPACITY = 3


def reasons(program: Program, *, capacity: bool) -> tuple[I64, I32, I8, I8]:
    """Return :func:`predecessors` and why each is one (:class:`Reason`); capacity lanes only if asked for."""
    target = np.repeat(np.arange(program.n_ops, dtype=np.int32), np.diff(program.dep_ptr))
    followers, leaders, posted = [target], [program.dep_ops], [np.zeros(len(target), np.int8)]
    why = [program.dep_kinds]
    for k in range(len(program.lane_names)):
        kind = program.lane_kinds[k]
        if kind == LaneKind.CAPACITY and not capacity:
            continue
        ops = program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]
        network = kind in (LaneKind.SEND, LaneKind.RECEIVE)
        for distance in (1, WINDOW) if network else (1,):
            n = max(0, len(ops) - distance)
            followers.append(ops[distance:])
            leaders.append(ops[:n])
            posted.append(np.full(n, network and distance == 1, np.int8))
            why.append(np.full(n, Reason.CAPACITY if kind == LaneKind.CAPACITY else Reason.LANE, np.int8))
    follower, leader = np.concatenate(followers), np.concatenate(leaders)
    order = np.lexsort((leader, follower))
    ptr = np.zeros(program.n_ops + 1, np.int64)
    ptr[1:] = np.cumsum(np.bincount(follower, minlength=program.n_ops))
    return (
        ptr,
        leader[order].astype(np.int32),
        np.concatenate(posted)[order],
        np.concatenate(why)[order].astype(np.int8),
    )


def topological_order(program: Program) -> I32:
    """Return all ops in an order that respects lanes and dependencies; raises :class:`ProgramError` on a cycle."""
    ptr, before, _ = predecessors(program)
    return _topological(program, ptr, before)


def _topological(program: Program, ptr: I64, before: I32) -> I32:
    order, count = _kahn(ptr, before)
    if count < program.n_ops:
        stuck = sorted(set(range(program.n_ops)) - set(order[:count].tolist()))[:4]
        raise ProgramError(f"ops {stuck} wait for each other in a cycle; plan again")
    return np.asarray(order, np.int32)


@numba.njit(cache=True)
def _kahn(ptr, before):  # type: ignore[no-untyped-def]
    n = len(ptr) - 1
    count = np.zeros(n + 1, np.int64)
    for b in before:
        count[b + 1] += 1
    after_ptr = np.cumsum(count)
    fill = after_ptr[:-1].copy()
    after = np.empty(len(before), np.int32)
    waiting = np.empty(n, np.int64)
    order = np.empty(n, np.int32)
    tail = 0
    for i in range(n):
        waiting[i] = ptr[i + 1] - ptr[i]
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
        for e in range(ptr[i], ptr[i + 1]):
            after[fill[before[e]]] = i
            fill[before[e]] += 1
    head = 0
    while head < tail:
        i = order[head]
        head += 1
        for e in range(after_ptr[i], after_ptr[i + 1]):
            waiting[after[e]] -= 1
            if waiting[after[e]] == 0:
                order[tail] = after[e]
                tail += 1
    return order, tail


@numba.njit(cache=True)
def _longest_path(order, ptr, before, posted, duration):  # type: ignore[no-untyped-def]
    start = np.zeros(len(order), np.float64)
    finish = np.zeros(len(order), np.float64)
    for i in order:
        for e in range(ptr[i], ptr[i + 1]):
            start[i] = max(start[i], start[before[e]] if posted[e] else finish[before[e]])
        finish[i] = start[i] + duration[i]
    return start, finish
