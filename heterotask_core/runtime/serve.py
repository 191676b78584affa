"""The ranks of a session: one job that takes program after program.

Rank 0 holds a socket to the caller. READY: it waits for a program and hands it to all ranks. LOADING: every rank
decodes, imports, compiles, binds; nothing starts unless all agree. RUNNING, DRAINING: as in a job of one program. A
program that fails is reported, and the ranks are READY again where they are sound.
"""

from __future__ import annotations

import enum
import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.program.model import RankRole
from heterotask_core.runtime.binding import StaleModuleError
from heterotask_core.runtime.context import Context, JobSpec, record_rank, settle
from heterotask_core.runtime.lookout import Lookout
from heterotask_core.runtime.rank import Role, gather, map_memory, open_role, run_program, share_cores, spin_allowed_s
from heterotask_core.runtime.wire import Message, program_of, receive, send

SPEC_FILE = "session.json"
SOCKET_FILE = "session.sock"
_FIRST_PROGRAM_S = 60.0
_EAGER_S = 1.0
"""How long after a program ranks look often for the next one."""
_EAGER_SLEEP_S = 2e-4
_SLEEP_S = 2e-3


class State(enum.Enum):
    """Where a session's job is."""

    READY = "ready"
    LOADING = "loading"
    RUNNING = "running"
    DRAINING = "draining"
    DEAD = "dead"


class Outcome(enum.IntEnum):
    """What loading came to on a rank; the largest counts."""

    LOADED = 0
    REFUSED = 1
    STALE = 2
    """A loaded module differs from its source: only a new process can run the program."""


@dataclass(frozen=True)
class SessionSpec:
    """What the ranks of a session know from the start."""

    ranks: tuple[RankRole, ...]
    arenas: Mapping[str, str]
    devices: Mapping[str, Mapping[str, str]]
    memory_bytes: Mapping[str, int]
    """Size of every arena and slab."""
    n_ops: int
    """Flags of every node."""
    idle_s: float
    """The job ends when no program comes for so long."""

    def save(self, folder: Path) -> None:
        """Write ``session.json``."""
        (folder / SPEC_FILE).write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(folder: Path) -> SessionSpec:
        """Read ``session.json``."""
        values = json.loads((folder / SPEC_FILE).read_text())
        values["ranks"] = tuple(RankRole(**{**r, "core_ids": tuple(r["core_ids"])}) for r in values["ranks"])
        return SessionSpec(**values)

    def job(self, *, output_dir: str, repeats: int, verify: float = 0.0, dilate: float = 0.0) -> JobSpec:
        """Return what a program's context needs."""
        return JobSpec(output_dir, repeats, self.arenas, self.devices, verify, dilate)


def serve(folder: Path, comm: Any, *, cores: int) -> None:
    """Be rank ``comm.rank`` of the session in ``folder`` until the caller is gone or nothing comes any more."""
    recorded = record_rank(folder, comm.rank)
    spec = SessionSpec.load(folder)
    own = spec.ranks[comm.rank]
    job = spec.job(output_dir="", repeats=0)
    lookout = Lookout(folder, comm.rank, spec.ranks)
    arena_bytes = spec.memory_bytes[own.node]
    memory = map_memory(folder, job, spec.ranks, comm, recorded, arena_bytes=arena_bytes, n_ops=spec.n_ops)
    role = open_role(folder, job, own, comm, memory, dict(spec.memory_bytes))
    caller = _connect(folder) if comm.rank == 0 else None
    epochs, spin_s = 0, spin_allowed_s(comm, cores)
    if not spin_s:
        share_cores(own, spec.ranks)
    settle(comm.Ibarrier())
    while True:
        _tell(caller, State.READY)
        # A job is started for a program that comes at once, however slowly its caller may go on.
        data = _next_program(comm, caller, spec.idle_s if epochs else max(spec.idle_s, _FIRST_PROGRAM_S))
        if data is None:
            break
        _tell(caller, State.LOADING)
        program_comm, request = comm.Idup()
        settle(request)
        context, outcome, message = None, Outcome.LOADED, ""
        try:
            order = Message.decode(data)
            program = program_of(order)
            context = Context(
                folder,
                program,
                spec.job(**{name: order.head[name] for name in ("output_dir", "repeats", "verify", "dilate")}),
                program_comm,
                memory,
                epochs_before=epochs,
                spin_s=spin_s,
                files=Path(order.head["files"]),
                survive=True,
            )
            role.load(context)
        except Exception as error:
            outcome = Outcome.STALE if isinstance(error, StaleModuleError) else Outcome.REFUSED
            failures = context.failures if context is not None else []
            message = failures[0] if failures else f"loading on rank {comm.rank} failed: {error}"
        reply = _run(comm, caller, role, context, lookout, outcome, message)
        if context is not None:
            epochs = context.epoch
        epochs = _agree(comm, epochs)
        program_comm.Free()
        if caller is not None and reply is not None:
            send(caller, reply)
    role.close()
    # From here on the end of this process is no failure.
    (folder / f"done-{comm.rank}").touch()
    lookout.close()


def _run(
    comm: Any,
    caller: socket.socket | None,
    role: Role,
    context: Context | None,
    lookout: Lookout,
    outcome: Outcome,
    message: str,
) -> Message | None:
    """Run what all ranks have loaded, if they all have; return the answer to the caller, on rank 0."""
    agreed = _agree(comm, int(outcome))
    if agreed != Outcome.LOADED or context is None:
        texts = _texts(comm, message)
        if context is not None and outcome == Outcome.LOADED:
            role.finish()
        return Message({"outcome": agreed, "failures": texts}, {}) if caller is not None else None
    lookout.follow(context)
    _tell(caller, State.RUNNING)
    sound = run_program(context, role)
    _tell(caller, State.DRAINING)
    lookout.follow(None)
    role.finish()
    texts = [] if sound else _texts(comm, "\n".join(context.failures))
    measured = gather(context)
    return Message({"outcome": Outcome.LOADED, "failures": texts}, measured) if caller is not None else None


def _connect(folder: Path) -> socket.socket:
    """Return the line to the caller, which listens."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / SOCKET_FILE))
    return connection


def _tell(caller: socket.socket | None, state: State) -> None:
    if caller is not None:
        send(caller, Message({"state": state.value}, {}))


def _next_program(comm: Any, caller: socket.socket | None, idle_s: float) -> memoryview | None:
    """Return the bytes of the next program, the same on all ranks; None where there is none to come."""
    size = np.zeros(1, np.int64)
    data = None
    if caller is not None:
        data = receive(caller) if select.select([caller], [], [], idle_s)[0] else None
        size[0] = 0 if data is None else len(data)
    request = comm.Ibcast(size, root=0)
    since_s = time.monotonic()
    while not request.Test():
        time.sleep(_EAGER_SLEEP_S if time.monotonic() - since_s < _EAGER_S else _SLEEP_S)
    if not size[0]:
        return None
    whole = bytearray(int(size[0])) if data is None else data
    settle(comm.Ibcast(whole, root=0))
    return memoryview(whole)


def _agree(comm: Any, value: int) -> int:
    """Return the largest value of all ranks, without spinning: others may compile for long."""
    from mpi4py import MPI

    own, largest = np.array([value], np.int64), np.zeros(1, np.int64)
    settle(comm.Iallreduce(own, largest, op=MPI.MAX))
    return int(largest[0])


def _texts(comm: Any, text: str) -> list[str]:
    """Return what ranks have to say, in rank order, on rank 0."""
    own = np.frombuffer(text.encode(), np.uint8)
    lengths = np.zeros(comm.size, np.int64)
    settle(comm.Igather(np.array([len(own)], np.int64), lengths, root=0))
    whole = np.empty(int(lengths.sum()), np.uint8)
    settle(comm.Igatherv(own, [whole, lengths.tolist()], root=0))
    ends = np.cumsum(lengths).tolist()
    texts = [whole[end - n : end].tobytes().decode() for end, n in zip(ends, lengths.tolist(), strict=True)]
    return [text for text in texts if text]
