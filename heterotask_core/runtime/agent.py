"""A node agent: network courier and messenger of aborts; it runs no kernels. Its lookout tells the caller how it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterotask_core.runtime.context import Context, settle
from heterotask_core.runtime.courier import CompiledCourier, Courier, mpi_functions
from heterotask_core.runtime.loop import Loop
from heterotask_core.runtime.native import native

IDLE_SLEEP_S = 1e-3
COURIER_SLEEP_S = 50e-6
_ABORT_TAG = 1


class AgentRole:
    """What an agent does with program after program (see rank.py)."""

    barrier_sleep_s = IDLE_SLEEP_S
    survives = False

    def __init__(self, control: Any) -> None:
        """Tell other agents of an abort through ``control``, a communicator of all ranks."""
        self._control = control

    @property
    def op(self) -> int | None:
        """The op that was posted last."""
        return self._runner.op

    def load(self, context: Context) -> None:
        """Make the requests of the program's transfers."""
        self._context = context
        self._peers = [r for r, role in enumerate(context.program.ranks) if role.device is None and r != context.rank]
        self._told = self._heard = False
        helper = native()
        self._runner: CompiledCourier | Loop
        functions = mpi_functions()
        if helper is not None and functions is not None and context.lanes:
            self._courier: Courier = CompiledCourier(
                context, helper, functions, sleep_s=COURIER_SLEEP_S, poll=self.watch
            )
            self._runner = self._courier
        else:
            self._courier = Courier(context)
            sleep_s = COURIER_SLEEP_S if context.lanes else IDLE_SLEEP_S
            self._runner = Loop(context, self._courier, sleep_s=sleep_s, poll=self.watch)

    def run(self, repeat: int) -> bool:
        """Carry the node's transfers of one repeat; return False where it was aborted."""
        self._courier.begin()
        return self._runner.run(repeat)

    def watch(self) -> None:
        """Look while waiting whether this node or another has aborted."""
        context = self._context
        if context.repeat < 0:
            # The epoch is still the one of the program before.
            return
        if not self._heard and self._control.Iprobe(tag=_ABORT_TAG):
            self._hear()
            context.abort()
        if not self._told and context.memory.aborted(context.epoch):
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
        settle(context.comm.Ialltoall(sent, expected))
        self._courier.drain(expected[:, 0])
        for _ in range(int(expected[:, 1].sum()) - self._heard):
            self._hear()

    def finish(self) -> None:
        """Free the program's requests."""
        self._courier.close()

    def close(self) -> None:
        """Nothing is held between programs."""
