"""A started MPI job: its processes and its folder, how it is, and its end, whatever happens."""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from heterotask_core import scratch
from heterotask_core.errors import ExecutionError, LaunchError
from heterotask_core.program.model import Program, RankRole
from heterotask_core.runtime import failure
from heterotask_core.runtime.cleanup import remove_files, remove_job
from heterotask_core.runtime.echo import Echo
from heterotask_core.runtime.launch.base import Launcher, clean_environment, is_here
from heterotask_core.runtime.line import Line
from heterotask_core.runtime.nearby import NearbyNode
from heterotask_core.runtime.reaper import Reaper
from heterotask_core.runtime.watch import RankWatch, under_debugger

SILENCE_S = 5.0
"""An agent that says nothing for so long is lost."""
LOADING_S = 300.0
"""From the job's start until its first program runs: MPI, imports, compilers, devices."""
_POLL_S = 0.1
"""How often it is looked for what does not wake: what ranks print, and errors that they leave."""
_DRAIN_S = 2.0
"""How long a job may take to end by itself after a rank has failed or died."""
_LAUNCHER_S = 5.0
"""How long the launcher may take to end after its ranks; it says what ended them."""
_REPORT_S = 6.0
"""How long the agents have to say what their lanes were doing then."""
_LONGEST_GAP_S = 0.5
_HEARD_S = 1.0
_COMPUTES = 0.02
"""Share of a core that a rank has at least, even beside much other load, while it computes."""


class End(enum.Enum):
    """How a job came to its end."""

    RUNNING = enum.auto()
    EXITED = enum.auto()
    FAILED = enum.auto()
    """A rank left an error or died."""
    SILENT = enum.auto()
    STALLED = enum.auto()
    LOADING = enum.auto()


def make_folder(output_dir: Path, hosts: Sequence[str]) -> Path:
    """Return a new folder for a job: in the temporary folder, or, for several hosts, where the results go.

    What jobs have left there whose callers and reapers were killed together is removed, shared memory too.

    Raises:
        LaunchError: it cannot be made.
    """
    try:
        if all(is_here(host) for host in hosts):
            return scratch.make_folder("heterotask-job-", remove=remove_files)
        return scratch.make_folder(".heterotask-job-", output_dir, remove=remove_files)
    except OSError as error:
        raise LaunchError(f"cannot make the job's folder: {error}; free space there, or set TMPDIR") from error


class MpiJob:
    """One MPI job; leave it with :meth:`close`. Everything is called from the thread that made it."""

    def __init__(
        self,
        folder: Path,
        *,
        ranks: Sequence[RankRole],
        hosts: Sequence[str],
        launcher: Launcher,
        module: str = "heterotask_core.runtime.worker",
    ) -> None:
        """Start ``python -m mpi4py -m MODULE FOLDER`` as one rank for each of ``ranks``, rank i on ``hosts[i]``.

        The job owns ``folder`` and removes it at its end.

        Raises:
            LaunchError: the launcher is missing or cannot be started.
        """
        self.folder = folder
        self._ranks = tuple(ranks)
        self.stall_s = float("inf")
        """Seconds without any progress, while a program runs, after which it counts as stalled."""
        self.compiling_s = 0.0
        """So many more as long as a rank that runs an op uses its core: it may compile."""
        self.end_kind = End.RUNNING
        here = [rank for rank, host in enumerate(hosts) if is_here(host)]
        self._watch = RankWatch(folder, here)
        self._echo = Echo(folder, ranks)
        self._line = _line(folder, ranks, self._watch, here_only=len(here) == len(hosts))
        self._debugged = under_debugger() or sys.gettrace() is not None
        self._moved: tuple[int, bool, int] = (0, False, -1)
        self._idle_s = self._loading_s = self._computed_s = 0.0
        self._looked_s = time.monotonic()
        self._failed_s: float | None = None
        self._reported_s: float | None = None
        argv = [sys.executable, "-m", "mpi4py", "-m", module, str(folder)]
        try:
            command = launcher.command(
                n_ranks=len(ranks), argv=argv, hosts=() if len(here) == len(hosts) else tuple(hosts)
            )
            self._command = command
            environment = clean_environment(
                os.environ,
                python_path=[str(Path(p).resolve()) for p in sys.path],
                one_host=len(here) == len(hosts),
            )
            with (folder / "output.txt").open("wb") as output:
                # The parent-death guard belongs to the thread that starts the job: this one.
                # SIGPIPE stays ignored: mpiexec may write to a proxy that a rank's death has ended already, and its own
                # death would hide that of the rank.
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    restore_signals=False,
                )
        except OSError as error:
            self._line.hang_up()
            raise LaunchError(f"the MPI job did not start: {error}") from error
        except LaunchError:
            self._line.hang_up()
            raise
        self._watch.wake_for(self.process.pid)
        if isinstance(self._line, Line):
            self._watch.wake_by(self._line.fileno())
        self._reaper = Reaper(folder, self.process.pid, here)
        scratch.dismiss_guard(folder)

    def follow(self, program: Program, files: Path) -> None:
        """Tell of ``program`` from now on, whose counters are in ``files``; agents know by themselves."""
        if isinstance(self._line, NearbyNode):
            self._line.follow(program, files)

    @property
    def done_ops(self) -> int:
        """Return how many ops on lanes are complete in the program that runs, as the agents last said."""
        return sum(state.done for state in self._line.agents.values())

    @property
    def repeat(self) -> int:
        """The pass of the program that runs, as the agents last said; −1 before the first."""
        return max((state.repeat for state in self._line.agents.values()), default=-1)

    @property
    def running(self) -> bool:
        """Whether some rank is between a program's first and last barrier, as the agents last said."""
        return any(state.running for state in self._line.agents.values())

    @property
    def failing(self) -> bool:
        """Whether a rank has failed or died: the job ends within a moment."""
        return self._failed_s is not None

    def step(self, wait_s: float = _POLL_S) -> bool:
        """Look after the job, at most ``wait_s``; return whether it still runs. Afterwards ask :meth:`error`."""
        if self.end_kind is not End.RUNNING:
            return False
        self._watch.wait(wait_s)
        self._line.poll()
        self._echo.poll()
        now_s = time.monotonic()
        gap_s, self._looked_s = min(now_s - self._looked_s, _LONGEST_GAP_S), now_s
        if self.process.poll() is not None:
            self.end_kind = End.EXITED
        elif self._failed_s is not None:
            told = all(state.report is not None or state.gone for state in self._line.agents.values())
            if now_s - self._failed_s > (_DRAIN_S if told else _REPORT_S):
                self.end_kind = End.FAILED
        elif self._dead() or any(self.folder.glob("error-*.json")):
            self._failed_s = now_s
            self._line.tell("report")
        else:
            self._watchdog(gap_s, now_s)
        return self.end_kind is End.RUNNING

    def _dead(self) -> tuple[int, ...]:
        """Return the ranks that died first, as far as it can be told."""
        agents = self._line.agents
        told = self._watch.first_dead or next((state.dead for state in agents.values() if state.dead), ())
        return told or tuple(sorted(rank for rank, state in agents.items() if state.gone))

    def _watchdog(self, gap_s: float, now_s: float) -> None:
        """End a job whose agents are silent, in which nothing moves, or which does not come to run."""
        agents = self._line.agents
        if self._debugged or any(state.traced for state in agents.values()):
            self._idle_s = self._loading_s = 0.0
            return
        if any(state.silent_s > SILENCE_S and not state.finished for state in agents.values()):
            self.end_kind = End.SILENT
            return
        moved = (
            sum(state.progress for state in agents.values()),
            self.running,
            sum(state.repeat for state in agents.values()),
        )
        computed_s = sum(state.computed_s for state in agents.values())
        if self.running and moved == self._moved:
            # Of a node that is not heard nobody knows whether anything moves there.
            self._idle_s += gap_s if all(state.silent_s < _HEARD_S for state in agents.values()) else 0.0
        else:
            self._idle_s, self._computed_s = 0.0, computed_s
        self._moved = moved
        computes = computed_s - self._computed_s > _COMPUTES * self._idle_s
        if self._idle_s > self.stall_s + (self.compiling_s if computes else 0.0):
            if self._reported_s is None:
                self._line.tell("report")
                self._reported_s = now_s
            elif now_s - self._reported_s > 1.0 or all(s.report is not None for s in agents.values()):
                self.end_kind = End.STALLED
        elif not any(state.repeat >= 0 or state.finished for state in agents.values()):
            self._loading_s += gap_s
            if self._loading_s > LOADING_S:
                self.end_kind = End.LOADING

    def stop(self) -> None:
        """End every process of the job, the sound ones after a moment of their own; safe to call again."""
        self._line.tell("end")
        grace_s = _DRAIN_S if self.end_kind is End.EXITED else 0.0
        self._watch.end(grace_s)
        try:
            # With its ranks gone, mpiexec ends by itself and clears up.
            self.process.wait(_LAUNCHER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._echo.poll(last=True)
        self._line.hang_up()

    def close(self) -> None:
        """Stop the job if it runs, and remove everything that it had."""
        try:
            self.stop()
        finally:
            remove_job(self.folder)
            self._reaper.dismiss()

    def error(self) -> ExecutionError | None:
        """Return why the job has ended, after :meth:`stop`; None where it ended well."""
        code = self.process.returncode
        lanes = [lane for state in self._line.agents.values() if state.report for lane in state.report["lanes"]]
        messages = failure.errors_of(self.folder)
        printed = (self.folder / "output.txt").read_text(errors="replace")
        if messages:
            return ExecutionError("\n".join(messages))
        if self.end_kind is End.EXITED and code < 0 and -code != signal.SIGPIPE:
            nodes = dict.fromkeys(role.node for role in self._ranks)
            lanes = [lane for node in nodes for lane in failure.last_lanes(self.folder, node)]
            return ExecutionError(
                f"the launcher ({' '.join(self._command[:6])} …) was ended by signal {-code}, by a person or for "
                f"lack of memory (see dmesg); all ranks were ended with it"
                f"{failure.were_running(self._ranks, lanes, self.folder)}"
            )
        if self.end_kind is End.SILENT:
            rank, state = max(self._line.agents.items(), key=lambda item: item[1].silent_s)
            return ExecutionError(failure.silent(self._ranks, rank, state.silent_s, self.folder))
        if self.end_kind is End.STALLED:
            return ExecutionError(failure.stalled(self._ranks, self._idle_s, lanes, self.folder))
        if self.end_kind is End.LOADING:
            absent = [rank for rank in range(len(self._ranks)) if not (self.folder / f"rank-{rank}.json").exists()]
            which = f"ranks {absent} have not started" if absent else "all ranks have started"
            said = failure.tail(printed) or "nothing"
            return ExecutionError(f"loading took more than {LOADING_S:.0f} s ({which}); the launcher says: {said}")
        dead = self._dead()
        if dead:
            told = {self._ranks[rank].node for rank, state in self._line.agents.items() if state.report}
            for node in {self._ranks[rank].node for rank in dead} - told:
                lanes += failure.last_lanes(self.folder, node)
            signals = {r: n for state in self._line.agents.values() for r, n in state.signals.items()}
            signals |= self._watch.signals
            return ExecutionError(failure.died(self._ranks, dead, lanes, self.folder, printed, signals))
        if not any(self.folder.glob("rank-*.json")):
            said = failure.tail(printed) or "nothing"
            return LaunchError(f"the MPI job did not start (exit code {code}); the launcher says: {said}")
        if code != 0:
            return ExecutionError(
                f"the MPI job ended with exit code {code}; it says: {failure.tail(printed) or 'nothing'}"
            )
        return None


def _line(folder: Path, ranks: Sequence[RankRole], watch: RankWatch, *, here_only: bool) -> Line | NearbyNode:
    """Return how the caller knows of its nodes: through their agents, or by itself where a node has none."""
    if all(role.device is not None for role in ranks):
        return NearbyNode(watch)
    return Line(folder, here_only=here_only)
