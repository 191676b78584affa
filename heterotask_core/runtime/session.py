"""A started MPI job that takes program after program: no start of processes, MPI, imports and devices between them.

    with Session(platform) as session:
        first = session.run(program, output_dir=folder)
        second = session.run(other, output_dir=folder)

Results and traces are those of :func:`~heterotask_core.runtime.job.execute`. The job starts with the first program.
Arenas and slabs are sized then, with room; a program that does not fit, or whose kernels' source has changed since
they were imported, restarts the job, which is logged and counted in ``restarts``. A program that fails ends alone
where its ranks stay sound, else with the job; the next one then starts a new job. Used from one thread.
"""

from __future__ import annotations

import json
import logging
import select
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from heterotask_core.emulation import OpTimes, is_emulated, write_times
from heterotask_core.errors import ArenaTooSmallError, ExecutionError, LaunchError, ProgramError
from heterotask_core.platform.model import Platform
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime import job as jobs
from heterotask_core.runtime.arena import SHM, Counters, check_free, node_bytes
from heterotask_core.runtime.cleanup import remove_job
from heterotask_core.runtime.context import counters_file, describe_devices
from heterotask_core.runtime.job import RunResult
from heterotask_core.runtime.launch.base import Launcher, is_here
from heterotask_core.runtime.launch.choose import choose_launcher
from heterotask_core.runtime.mpijob import LOADING_S, End, MpiJob, make_folder
from heterotask_core.runtime.nearby import for_launcher
from heterotask_core.runtime.outputs import Outputs
from heterotask_core.runtime.partial import drop_partial, keep_times
from heterotask_core.runtime.serve import SOCKET_FILE, Outcome, SessionSpec, State
from heterotask_core.runtime.times import read_times
from heterotask_core.runtime.wire import Message, program_message, receive, send

ROOM = 1.25
"""Arenas and slabs are so much larger than the largest program known at the start."""
IDLE_S = 300.0
_LEAST_OPS = 4096
_POLL_S = 0.02
_IDLE = "its job has ended for lack of programs"
_log = logging.getLogger(__name__)


class _IdleError(ExecutionError):
    """The job ended by itself, with nothing wrong, while a program was on its way to it."""


class Session:
    """Runs programs of one platform in one job; a context manager. :meth:`run` starts what is not started."""

    def __init__(
        self,
        platform: Platform,
        *,
        arena_bytes: Mapping[str, int] | None = None,
        largest: Iterable[Program] = (),
        launcher: Launcher | None = None,
        idle_s: float = IDLE_S,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        """Make a session; nothing is started.

        ``arena_bytes``: memory name → bytes of its arena or slab; the default is ``ROOM`` times the largest planned
        peak of ``largest`` and of the first program. ``idle_s``: the job ends when no program comes for so long.
        ``launcher``: as for ``execute``. ``on_state`` is told every state of the job.
        """
        self._platform = platform
        self._given = dict(arena_bytes or {})
        self._largest = list(largest)
        self._launcher = launcher
        self._idle_s = idle_s
        self._on_state = on_state
        self._job: MpiJob | None = None
        self._spec: SessionSpec | None = None
        self._connection: socket.socket | None = None
        self._runs = 0
        self.restarts: list[str] = []
        """Why the job was started anew, each time."""
        self.state = State.DEAD
        self.first_task_s: float | None = None
        """Of the last program: seconds from the call of :meth:`run` to the start of its first kernel (real devices)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        program: Program,
        *,
        output_dir: Path,
        repeats: int = 1,
        progress: Callable[[int, int], None] | None = None,
        timeout_s: float | None = None,
        warm_up: bool = False,
        emulation: OpTimes | None = None,
        dilate: float = 0.0,
        verify: float = 0.0,
    ) -> RunResult:
        """Run ``program`` as ``execute`` does; ``completion_s`` counts from this call.

        ``emulation`` says what every op of emulated devices takes in each of the ``repeats`` runs (default: as
        planned), ``dilate`` how long they wait. ``verify`` is the share of tasks that are recomputed with their
        reference variants and compared.

        Raises:
            ProgramError: the program was made for another platform, or its kernels are not those of the plan.
            LaunchError: the job did not start.
            ArenaTooSmallError: the arenas do not fit into the host's shared memory.
            ExecutionError: a task or a rank failed, nothing moved any more, or ``timeout_s`` passed.
        """
        called_s = time.monotonic()
        self._check(program)
        program = for_launcher(program, self._choose(program))
        outputs = Outputs.of(program, output_dir)
        passes = repeats + warm_up
        emulated = is_emulated(program.device_kinds)
        times = (emulation or OpTimes.planned(program, runs=repeats)).padded(passes) if emulated else None
        for attempt in range(2):
            self._prepare(program)
            drop_partial(output_dir)
            try:
                reply = self._hand_over(program, outputs, passes, times, dilate, verify, progress, timeout_s)
            except _IdleError:
                self._restart(_IDLE)
                if attempt == 0:
                    continue
                raise
            except BaseException:
                self.close()
                raise
            failures = "\n".join(reply.head["failures"])
            if reply.head["outcome"] == Outcome.STALE and attempt == 0:
                self._restart(f"the source of a kernel has changed since it was imported: {failures}")
                continue
            if reply.head["outcome"] != Outcome.LOADED or failures:
                raise ExecutionError(failures)
            break
        arrays = reply.arrays
        kernels = program.op_kind == OpKind.KERNEL
        if kernels.any() and not emulated:
            self.first_task_s = float(arrays["start_s"][0, kernels].min()) - called_s
        return jobs.run_result(
            program,
            arrays,
            skip=warm_up,
            dilate=dilate,
            completion_s=time.monotonic() - called_s,
            output_dir=output_dir,
        )

    def close(self) -> None:
        """End the job, whatever it does; the session may be used again. Safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._job is not None:
            job, self._job = self._job, None
            try:
                deadline_s = time.monotonic() + 2.0
                while self.state is State.READY and job.step() and time.monotonic() < deadline_s:
                    """Its ranks see that the caller is gone and end by themselves."""
            finally:
                job.close()
        self._enter(State.DEAD)

    def _check(self, program: Program) -> None:
        if program.platform_fingerprint != self._platform.fingerprint():
            raise ProgramError(f"program {program.name!r} was made for another platform; plan again")

    def _choose(self, program: Program) -> Launcher:
        host_of = {node.name: node.host for node in self._platform.nodes}
        return self._launcher or choose_launcher(hosts=[host_of[role.node] for role in program.ranks])

    def _prepare(self, program: Program) -> None:
        """Have a job that is READY and large enough."""
        while self._job is not None and self._job.step(0.0) and self._job.failing:
            """Wait for the reason."""
        if self._job is not None and self._job.end_kind is not End.RUNNING:
            self._job.stop()
            error = self._job.error()
            self._restart(f"its job has ended: {error}" if error else _IDLE)
        if self._spec is not None and self._job is not None:
            reason = self._misfit(program, self._spec)
            if reason:
                self._restart(reason)
        if self._job is None:
            self._start(program)

    def _misfit(self, program: Program, spec: SessionSpec) -> str:
        """Return why the job cannot take ``program``; empty if it can."""
        if program.ranks != spec.ranks:
            return "the program has other ranks"
        for name, size in zip(program.memory_names, program.memory_size_bytes.tolist(), strict=True):
            if size > spec.memory_bytes[name]:
                return f"the program needs {size} bytes in {name!r}, the job has {spec.memory_bytes[name]}"
        if program.n_ops > spec.n_ops:
            return f"the program has {program.n_ops} ops, the job has flags for {spec.n_ops}"
        return ""

    def _restart(self, reason: str) -> None:
        _log.warning("the session starts its job anew: %s", reason)
        self.restarts.append(reason)
        self.close()

    def _start(self, program: Program) -> None:
        """Start a job in which ``program`` has room, and wait until it is READY."""
        host_of = {node.name: node.host for node in self._platform.nodes}
        hosts = [host_of[role.node] for role in program.ranks]
        if not is_here(hosts[0]):
            raise LaunchError(f"a session is led from the platform's first host, {hosts[0]!r}; start it there")
        launcher = self._choose(program)
        nodes = list(dict.fromkeys(role.node for role in program.ranks))
        token = f"heterotask-{uuid.uuid4().hex[:12]}"
        n_ops = max(_LEAST_OPS, *(int(ROOM * p.n_ops) for p in (program, *self._largest)))
        spec = SessionSpec(
            ranks=program.ranks,
            arenas={node: str(SHM / f"{token}-{i}") for i, node in enumerate(nodes)},
            devices=describe_devices(self._platform),
            memory_bytes=self._sizes(program, n_ops),
            n_ops=n_ops,
            idle_s=self._idle_s,
        )
        folder = make_folder(Path.cwd(), hosts)
        listener = socket.socket(socket.AF_UNIX)
        try:
            try:
                spec.save(folder)
                # What reaches the ranks when mpiexec is killed is read from here.
                (folder / "job.json").write_text(json.dumps({"arenas": dict(spec.arenas)}))
                listener.bind(str(folder / SOCKET_FILE))
                (folder / SOCKET_FILE).chmod(0o600)
                listener.listen(1)
                self._job = MpiJob(folder, ranks=program.ranks, hosts=hosts, launcher=launcher)
            except OSError as error:
                remove_job(folder)
                raise LaunchError(f"cannot make the session's socket in {folder}: {error}; set TMPDIR") from error
            except BaseException:
                remove_job(folder)
                raise
            self._spec = spec
            self._connection = self._accept(self._job, listener)
            self._until_reply({State.READY}, None)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    def _sizes(self, program: Program, n_ops: int) -> dict[str, int]:
        """Return the bytes of every arena and slab: as given, else with room, as far as there is."""
        needed = dict.fromkeys(program.memory_names, 0)
        for known in (program, *self._largest):
            for name, size in zip(known.memory_names, known.memory_size_bytes.tolist(), strict=True):
                needed[name] = max(needed[name], int(size))
        sizes = {}
        for memory in self._platform.memories:
            most = ROOM * needed[memory.name] if memory.capacity_bytes is None else memory.capacity_bytes
            sizes[memory.name] = max(needed[memory.name], min(int(ROOM * needed[memory.name]), int(most)))
        sizes = {**sizes, **self._given}
        host_of = {node.name: node.host for node in self._platform.nodes}
        arenas = [node for node in dict.fromkeys(role.node for role in program.ranks) if is_here(host_of[node])]
        try:
            check_free(sum(node_bytes(sizes[node], n_ops) for node in arenas))
        except ArenaTooSmallError:
            # Without room, then.
            sizes |= {node: needed[node] for node in arenas}
            check_free(sum(node_bytes(sizes[node], n_ops) for node in arenas))
        return sizes

    def _accept(self, job: MpiJob, listener: socket.socket) -> socket.socket:
        """Return the line to rank 0 once it calls."""
        listener.settimeout(_POLL_S)
        until_s = time.monotonic() + LOADING_S
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._look(job)
                if time.monotonic() > until_s:
                    raise LaunchError(f"the session's job did not come to be ready within {LOADING_S:.0f} s") from None
                continue
            connection.setblocking(True)
            return connection

    def _hand_over(
        self,
        program: Program,
        outputs: Outputs,
        passes: int,
        times: OpTimes | None,
        dilate: float,
        verify: float,
        progress: Callable[[int, int], None] | None,
        timeout_s: float | None,
    ) -> Message:
        """Send the program, with the ``times`` of emulated ops, and return the answer."""
        job = self._job
        assert job is not None
        assert self._connection is not None
        self._runs += 1
        files = job.folder / f"program-{self._runs}"
        files.mkdir()
        lanes = [k for k in range(len(program.lane_names)) if program.lane_kinds[k] != LaneKind.CAPACITY]
        total = passes * sum(int(program.lane_ptr[k + 1] - program.lane_ptr[k]) for k in lanes)
        for node in dict.fromkeys(role.node for role in program.ranks):
            Counters(counters_file(files, program, node), len(program.lane_names), create=True)
        if times is not None:
            write_times(files, program, times)
        job.follow(program, files)
        head = {"output_dir": str(outputs.folder), "repeats": passes, "verify": verify, "dilate": dilate}
        try:
            send(self._connection, program_message(program, **head, files=str(files)))
        except ConnectionError:
            """It is gone: the answer, which does not come either, says why."""
        job.stall_s = jobs.stall_limit_s(program, dilate)
        job.compiling_s = jobs.FIRST_PASS_S
        shown = -1
        sent_s = time.monotonic()
        until_s = None if timeout_s is None else sent_s + timeout_s

        def look() -> None:
            nonlocal shown
            if progress is not None and job.done_ops > shown and self.state is State.RUNNING:
                shown = job.done_ops
                progress(shown, total)
            now_s = time.monotonic()
            if until_s is not None and now_s > until_s:
                raise ExecutionError(f"program {program.name!r} did not end within {timeout_s:g} s")
            if self.state in (State.READY, State.LOADING) and now_s - sent_s > LOADING_S:
                raise ExecutionError(f"loading program {program.name!r} took more than {LOADING_S:.0f} s")

        try:
            reply = self._until_reply(set(), look)
        except _IdleError:
            raise
        except ExecutionError:
            keep_times(outputs, *read_times(files, len(program.ranks), passes, program.n_ops))
            raise
        if reply.head["failures"]:
            keep_times(outputs, *read_times(files, len(program.ranks), passes, program.n_ops))
        shutil.rmtree(files, ignore_errors=True)
        if progress is not None and shown != total and not reply.head["failures"]:
            progress(total, total)
        return reply

    def _until_reply(self, until: set[State], look: Callable[[], None] | None) -> Message:
        """Follow the job's states until it answers, or has one of ``until``; raises what went wrong meanwhile."""
        job = self._job
        assert job is not None
        assert self._connection is not None
        reply = None
        while True:
            if not select.select([self._connection], [], [], _POLL_S)[0]:
                self._look(job)
                if look is not None:
                    look()
                continue
            data = receive(self._connection)
            if data is None:
                # Its ranks are dying: wait for the reason.
                while job.step():
                    """The job's own limits hold."""
                self._look(job)
                raise ExecutionError("the session's job hung up")
            message = Message.decode(data)
            if "state" in message.head:
                self._enter(State(message.head["state"]))
                if self.state in until or (self.state is State.READY and reply is not None):
                    return reply or message
            else:
                reply = message

    def _look(self, job: MpiJob) -> None:
        """Look after the job; raises why it has ended, if it has."""
        if job.step(0.0):
            return
        job.stop()
        raise job.error() or _IdleError(
            "the session's job ended for lack of programs while one was handed over; give the session a longer idle_s"
        )

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)
