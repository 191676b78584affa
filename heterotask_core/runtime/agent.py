"""A node agent: network courier and watchdog; it runs no kernels."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from heterotask_core.errors import ExecutionError
from heterotask_core.runtime.context import Context, write_error
from heterotask_core.runtime.courier import Courier
from heterotask_core.runtime.loop import Loop

IDLE_SLEEP_S = 1e-3
COURIER_SLEEP_S = 50e-6
_CHECK_S = 0.2
_ABORT_TAG = 1


class AgentRole:
    """What an agent does with program after program (see rank.py)."""

    barrier_sleep_s = IDLE_SLEEP_S

    def __init__(self, control: Any) -> None:
        """Tell other agents of an abort through ``control``, a communicator of all ranks."""
        self._control = control

    @property
    def op(self) -> int | None:
        """The op that was posted last."""
        return self._loop.op

    def load(self, context: Context) -> None:
        """Make the requests of the program's transfers."""
        self._context = context
        self._peers = [r for r, role in enumerate(context.program.ranks) if role.device is None and r != context.rank]
        self._told = self._heard = False
        self._courier = Courier(context)
        self._watchdog = Watchdog(context)
        sleep_s = COURIER_SLEEP_S if context.lanes else IDLE_SLEEP_S
        self._loop = Loop(context, self._courier, sleep_s=sleep_s, poll=self.watch)

    def run(self, repeat: int) -> bool:
        """Carry the node's transfers of one repeat; return False where it was aborted."""
        self._watchdog.start()
        self._courier.begin()
        return self._loop.run(repeat)

    def watch(self) -> None:
        """Look after the job while waiting: is anything moving, has a node aborted."""
        context = self._context
        # Nobody counts while ranks load; the launcher's limit holds there.
        if context.repeat >= 0:
            self._watchdog.check()
        if not self._heard and self._control.Iprobe(tag=_ABORT_TAG):
            self._hear()
            context.abort()
        if not self._told and context.epoch and context.memory.aborted(context.epoch):
            self._told = context.failed = True
            for peer in self._peers:
                self._control.Send(np.zeros(0), dest=peer, tag=_ABORT_TAG)

    def _hear(self) -> None:
        from mpi4py import MPI

        self._control.Recv(np.zeros(0), source=MPI.ANY_SOURCE, tag=_ABORT_TAG)
        self._heard = True

    def drain(self) -> None:
        """After an abort: complete what is posted. Every rank of the program takes part."""
        context = self._context
        sent = np.zeros((context.comm.size, 2), np.int64)
        sent[:, 0] = self._courier.sent()
        sent[self._peers, 1] = self._told
        expected = np.empty_like(sent)
        context.comm.Alltoall(sent, expected)
        self._courier.drain(expected[:, 0])
        for _ in range(int(expected[:, 1].sum()) - self._heard):
            self._hear()

    def finish(self) -> None:
        """Free the program's requests."""
        self._courier.close()

    def close(self) -> None:
        """Nothing is held between programs."""


class Watchdog:
    """Ends the job when no rank has issued or completed anything for the job's ``stall_s``."""

    def __init__(self, context: Context) -> None:
        """Watch the counters of all ranks of the job."""
        self._context = context
        self._total = -1
        self._since_s = self._checked_s = time.monotonic()

    def start(self) -> None:
        """Count from now on."""
        self._since_s = time.monotonic()

    def check(self) -> None:
        """Look at the counters at times.

        Raises:
            ExecutionError: nothing moves; the message lists what every lane of this node waits for.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        total = self._context.counters.total()
        if total != self._total:
            self._total = total
            self._since_s = now_s
            return
        if now_s - self._since_s < self._context.spec.stall_s:
            return
        message = (
            f"no progress for {now_s - self._since_s:.0f} s; lanes of node {self._context.role.node!r}:\n"
            + "\n".join(self._table())
        )
        write_error(self._context.folder, self._context.rank, message)
        # Agents of other nodes find it at about the same time: let them write what their lanes wait for.
        time.sleep(2 * _CHECK_S)
        raise ExecutionError(message)

    def _table(self) -> list[str]:
        """Return a line for every lane of the node: what runs, or what its head waits for."""
        context, counters = self._context, self._context.counters
        lines = []
        for lane in context.node_lanes():
            ops = context.lane_ops(lane)
            position = counters.issued(lane) - (context.epoch - 1) * len(ops)
            line = f"  lane {context.program.lane_names[lane]!r} of rank {context.program.lane_rank[lane]}: "
            running = counters.issued(lane) - counters.done(lane)
            if running:
                line += f"{running} in flight, last issued {context.describe(ops[position - 1])}; "
            if position == len(ops):
                line += "nothing left to issue"
            else:
                missing = [d for d in context.waits_for(ops[position]) if not context.memory.seen(d, context.epoch)]
                line += f"{context.describe(ops[position])} waits for "
                line += ", ".join(context.describe(d) for d in missing) or "its turn (its kernel may be running)"
            lines.append(line)
        return lines
