"""The network transfers of a node: one persistent request each, posted in lane order, tested together.

Both ends of a pair post in the same order, so messages match by source and order; the tag is the transfer's number
among those of its pair, as a check.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime.context import Context

_TAGS = 32_768
"""Tags that the MPI standard promises."""
DRAIN_S = 10.0
"""How long the requests of an aborted epoch may take to end."""


class Courier:
    """The engine of an agent's loop (see loop.py); an op's times are those of posting and of seeing it complete."""

    chains = False
    sleeps = False

    def __init__(self, context: Context) -> None:
        """Make the requests of every transfer of this node; :meth:`close` frees them."""
        from mpi4py import MPI

        program = context.program
        self._mpi: Any = MPI
        self._comm = context.comm
        self._requests: dict[tuple[int, int], Any] = {}
        self._peers: dict[tuple[int, int], int] = {}
        self._sends: dict[int, bool] = {}
        tags = _tags(program)
        for lane in context.lanes:
            sends = program.lane_kinds[lane] == LaneKind.SEND
            self._sends[lane] = sends
            for op in context.lane_ops(lane):
                _, offset, size_bytes = context.place(int((program.op_source if sends else program.op_target)[op]))
                part = context.memory.arena[offset : offset + size_bytes]
                source, target = ends(program, op)
                self._peers[lane, op] = target if sends else source
                self._requests[lane, op] = (
                    self._comm.Send_init(part, dest=target, tag=tags[op])
                    if sends
                    else self._comm.Recv_init(part, source=source, tag=tags[op])
                )
        self._order = {lane: context.lane_ops(lane) for lane in context.lanes}
        self._posted: dict[int, int] = dict.fromkeys(context.lanes, 0)
        self._pending: list[Any] = []
        self._pending_ops: list[tuple[int, int, float]] = []

    def begin(self) -> None:
        """Start a repeat: nothing is posted."""
        for lane in self._posted:
            self._posted[lane] = 0

    def issue(self, lane: int, op: int, after: Sequence[int]) -> None:
        """Post the transfer."""
        request = self._requests[lane, op]
        self._pending_ops.append((lane, op, time.monotonic()))
        request.Start()
        self._pending.append(request)
        self._posted[lane] += 1

    def completed(self) -> list[tuple[int, int, float, float]]:
        """Test everything posted at once."""
        indices = self._mpi.Request.Testsome(self._pending)
        if not indices:
            return []
        now_s = time.monotonic()
        done = [(*self._pending_ops[i], now_s) for i in indices]
        for i in sorted(indices, reverse=True):
            del self._pending[i], self._pending_ops[i]
        return done

    def sent(self) -> npt.NDArray[np.int64]:
        """Return (ranks,) how many messages were posted to each rank in this repeat."""
        return self._count(sends=True)

    def _count(self, *, sends: bool) -> npt.NDArray[np.int64]:
        counts = np.zeros(self._comm.size, np.int64)
        for lane, order in self._order.items():
            if self._sends[lane] == sends:
                for op in order[: self._posted[lane]]:
                    counts[self._peers[lane, op]] += 1
        return counts

    def drain(self, expected: npt.NDArray[np.int64]) -> None:
        """Complete every posted request of an aborted repeat, knowing (ranks,) how many messages each has sent here.

        What a peer has sent is received, receives that nobody will serve are cancelled.

        Raises:
            ExecutionError: requests are still open after ``DRAIN_S``.
        """
        posted = self._count(sends=False)
        for lane, order in self._order.items():
            if self._sends[lane]:
                continue
            for op in order[self._posted[lane] :]:
                peer = self._peers[lane, op]
                if posted[peer] < expected[peer]:
                    self.issue(lane, op, ())
                    posted[peer] += 1
            for pending_lane, op, _ in reversed(list(self._pending_ops)):
                peer = self._peers[pending_lane, op]
                if pending_lane == lane and posted[peer] > expected[peer]:
                    self._requests[lane, op].Cancel()
                    posted[peer] -= 1
        deadline_s = time.monotonic() + DRAIN_S
        while self._pending:
            self.completed()
            if time.monotonic() > deadline_s:
                raise ExecutionError(f"{len(self._pending)} transfers did not end within {DRAIN_S:g} s of an abort")

    def close(self) -> None:
        """Free the requests; none is in flight."""
        for request in self._requests.values():
            request.Free()
        self._requests.clear()


def ends(program: Program, op: int) -> tuple[int, int]:
    """Return the agent ranks that send and receive a transfer."""
    agents = {role.node: rank for rank, role in enumerate(program.ranks) if role.device is None}
    nodes = [
        program.memory_nodes[program.residency_memory[residency]]
        for residency in (int(program.op_source[op]), int(program.op_target[op]))
    ]
    return agents[nodes[0]], agents[nodes[1]]


def _tags(program: Program) -> dict[int, int]:
    """Return transfer → tag: its number among those of its pair of agents, in the sender's order."""
    tags: dict[int, int] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for lane, kind in enumerate(program.lane_kinds.tolist()):
        if kind != LaneKind.SEND:
            continue
        for op in program.lane_ops[program.lane_ptr[lane] : program.lane_ptr[lane + 1]].tolist():
            assert program.op_kind[op] == OpKind.TRANSFER
            pair = ends(program, op)
            tags[op] = counts[pair] % _TAGS
            counts[pair] += 1
    return tags
