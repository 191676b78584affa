"""The network transfers of a node: one persistent request each, posted in lane order, tested together.

Both ends of a pair post in the same order, so messages match by source and order; the tag is the transfer's number
among those of its pair, as a check.
"""

from __future__ import annotations

import ctypes
import enum
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime.context import SPIN_S, Context
from heterotask_core.runtime.loop import WINDOW

_TAGS = 32_768
"""Tags that the MPI standard promises."""
DRAIN_S = 10.0
"""How long the requests of an aborted epoch may take to end."""


class Courier:
    """The engine of an agent's loop (see loop.py); an op's times are those of posting and of seeing it complete."""

    chains = False
    blocking = ()
    last = ()
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
        tags, ends = _tags(program), _ends(program)
        sources, targets = program.op_source.tolist(), program.op_target.tolist()
        for lane in context.lanes:
            sends = program.lane_kinds[lane] == LaneKind.SEND
            self._sends[lane] = sends
            for op in context.lane_ops(lane):
                _, offset, size_bytes = context.place(sources[op] if sends else targets[op])
                part = context.memory.arena[offset : offset + size_bytes]
                source, target = ends[op]
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


class _Word(enum.IntEnum):
    """Words of ``struct courier`` in ``_native.c``, in its order; the routes follow."""

    N_ROUTES = 0
    EPOCH = 1
    FLAGS = 2
    ABORTED = 3
    START_S = 4
    FINISH_S = 5
    START = 6
    TESTSOME = 7
    HANDLE_BYTES = 8
    WINDOW = 9
    N_ACTIVE = 10
    ACTIVE = 11
    ACTIVE_OPS = 12
    POSTED_S = 13
    INDICES = 14
    STATUSES = 15
    SPIN = 16
    IDLE = 17
    SLEEP = 18
    N_NEIGHBOURS = 19
    NEIGHBOURS = 20
    BELL = 21
    NAP = 22
    COARSE = 23
    LOOKED = 24
    N_SEEN = 25
    IS_COARSE = 26


_ROUTE_WORDS = 8
_STATUS_BYTES = 64
"""No MPI's status is larger."""
_NAP_S = 200e-6
"""How long an agent sleeps at once while CPU devices need its core: short of their ops, long against waking up."""
_COARSE_S = 150e-6
"""Devices whose ops take longer, waiting included, are better off with an agent that sleeps (see ``metg.py``)."""


class CompiledCourier(Courier):
    """The same steps in the compiled helper, which calls MPI itself: :meth:`run` takes the place of a loop."""

    op: int | None = None

    def __init__(
        self,
        context: Context,
        helper: ModuleType,
        functions: tuple[int, int],
        *,
        sleep_s: float,
        poll: Callable[[], None],
    ) -> None:
        """Lay out what the helper reads; ``functions`` from :func:`mpi_functions`; ``poll`` while nothing moves."""
        super().__init__(context)
        self._context = context
        self._carry = helper.carry
        self._poll = poll
        handle_bytes = self._mpi._sizeof(self._mpi.Request)
        most = WINDOW * max(1, len(context.lanes))
        self._active = np.zeros(most * handle_bytes, np.uint8)
        self._active_ops = np.zeros((most, 2), np.int64)
        self._posted_s = np.zeros(most)
        self._indices = np.zeros(most, np.int32)
        self._statuses = np.zeros(most * _STATUS_BYTES, np.uint8)
        self._state = np.zeros(len(_Word) + _ROUTE_WORDS * len(context.lanes), np.int64)
        # Ranks at real-time priority are owed nothing: for them to yield is to let the others go first.
        yields = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
        shares = not context.spin_s and not yields
        neighbours = [context.counters.address(lane) for lane in context.computing_lanes()] if shares else []
        self._kept: list[npt.NDArray[Any]] = [np.array(neighbours, np.uint64)]
        words = {
            _Word.N_ROUTES: len(context.lanes),
            _Word.FLAGS: context.memory.flags.address,
            _Word.ABORTED: context.memory.aborted_address,
            _Word.START: functions[0],
            _Word.TESTSOME: functions[1],
            _Word.HANDLE_BYTES: handle_bytes,
            _Word.WINDOW: WINDOW,
            _Word.ACTIVE: self._active.ctypes.data,
            _Word.ACTIVE_OPS: self._active_ops.ctypes.data,
            _Word.POSTED_S: self._posted_s.ctypes.data,
            _Word.INDICES: self._indices.ctypes.data,
            _Word.STATUSES: self._statuses.ctypes.data,
            _Word.SPIN: int(context.spin_s * 1e9),
            _Word.IDLE: int(SPIN_S * 1e9),
            _Word.SLEEP: int(sleep_s * 1e9),
            _Word.N_NEIGHBOURS: len(neighbours),
            _Word.NEIGHBOURS: self._kept[0].ctypes.data,
            _Word.BELL: context.memory.bell_address,
            _Word.NAP: int(_NAP_S * 1e9),
            _Word.COARSE: int(_COARSE_S * 1e9),
        }
        for word, value in words.items():
            self._state[word] = value
        for i, lane in enumerate(context.lanes):
            ops = context.lane_ops(lane)
            ptr, deps = context.wait_lists(ops, own=True)
            handles = b"".join(
                ctypes.string_at(self._mpi._addressof(self._requests[lane, op]), handle_bytes) for op in ops
            )
            arrays = np.array(ops, np.int32), ptr, deps, np.frombuffer(handles or b"\0", np.uint8)
            self._kept += arrays
            route = self._route(i)
            route[0] = len(ops)
            route[3:7] = [array.ctypes.data for array in arrays]
            route[7] = context.counters.address(lane)

    def _route(self, i: int) -> npt.NDArray[np.int64]:
        """Return the words of a lane: n, issued, done, addresses of ops, dep_ptr, deps, handles, counters."""
        start = len(_Word) + i * _ROUTE_WORDS
        return self._state[start : start + _ROUTE_WORDS]

    def run(self, repeat: int) -> bool:
        """Carry every transfer of the node once; return False where the epoch was aborted.

        Raises:
            ExecutionError: MPI reports an error.
        """
        context, state = self._context, self._state
        state[_Word.EPOCH] = context.epoch
        state[_Word.START_S] = context.start_s[repeat].ctypes.data
        state[_Word.FINISH_S] = context.finish_s[repeat].ctypes.data
        state[_Word.LOOKED] = 0
        for i in range(len(context.lanes)):
            self._route(i)[1:3] = 0
        address = int(state.ctypes.data)
        while True:
            result = self._carry(address)
            if result == _DONE:
                return True
            if result == _ABORTED:
                self._adopt()
                return False
            if result == _ERROR:
                raise ExecutionError("MPI reports an error of a transfer; see the output of the job's ranks")
            self._poll()

    def _adopt(self) -> None:
        """Know what the helper has posted, to drain it."""
        for i, lane in enumerate(self._context.lanes):
            self._posted[lane] = int(self._route(i)[1])
        active = self._active_ops[: int(self._state[_Word.N_ACTIVE])].tolist()
        self._pending_ops = [
            (self._context.lanes[route], op, posted_s)
            for (route, op), posted_s in zip(active, self._posted_s.tolist(), strict=False)
        ]
        self._pending = [self._requests[lane, op] for lane, op, _ in self._pending_ops]
        self._state[_Word.N_ACTIVE] = 0


_DONE, _QUIET, _ABORTED, _ERROR = range(4)
"""What the helper returns."""


def mpi_functions() -> tuple[int, int] | None:
    """Return the addresses of ``MPI_Start`` and ``MPI_Testsome``, or None where they cannot be found."""
    from mpi4py import MPI

    try:
        library = ctypes.CDLL(MPI.__file__)
        start, testsome = (ctypes.cast(f, ctypes.c_void_p).value for f in (library.MPI_Start, library.MPI_Testsome))
    except (OSError, AttributeError):
        return None
    return None if start is None or testsome is None else (start, testsome)


def _ends(program: Program) -> dict[int, tuple[int, int]]:
    """Return transfer → the agent ranks that send and receive it."""
    agents = {role.node: rank for rank, role in enumerate(program.ranks) if role.device is None}
    agent_of = np.array([agents.get(node, -1) for node in program.memory_nodes])
    transfers = np.flatnonzero(program.op_kind == OpKind.TRANSFER)
    source, target = (
        agent_of[program.residency_memory[residency[transfers]]].tolist()
        for residency in (program.op_source, program.op_target)
    )
    return dict(zip(transfers.tolist(), zip(source, target, strict=True), strict=True))


def _tags(program: Program) -> dict[int, int]:
    """Return transfer → tag: its number among those of its pair of agents, in the sender's order."""
    tags: dict[int, int] = {}
    counts: Counter[tuple[int, int]] = Counter()
    ends = _ends(program)
    for lane, kind in enumerate(program.lane_kinds.tolist()):
        if kind != LaneKind.SEND:
            continue
        for op in program.lane_ops[program.lane_ptr[lane] : program.lane_ptr[lane + 1]].tolist():
            pair = ends[op]
            tags[op] = counts[pair] % _TAGS
            counts[pair] += 1
    return tags
