"""Which rank died first: seen on its own host, because mpiexec may name one that it has killed.

A rank whose work is done leaves ``done-R`` in the job's folder; one that ends without it has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 0.01
"""How often it is looked for ranks that have not started yet: first tasks come tens of milliseconds later."""


class RankWatch:
    """Follows ranks of this host through pidfds; ``rank-R.json`` in the job's folder names their processes."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        """Watch ``ranks``, each from the moment that it has written its file."""
        self._folder = folder
        self._missing = set(ranks)
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._launcher = -1
        self._news: set[int] = set()
        self.first_dead: tuple[int, ...] = ()
        """Ranks that ended first without being done: one, or several that ended between two looks."""
        self.signals: dict[int, int] = {}
        """Of the dead, the signal that ended them, where their launcher had not yet collected them."""

    def wake_for(self, pid: int) -> None:
        """Let :meth:`wait` return at the end of this process too: the launcher, a child not yet collected."""
        self._launcher = os.pidfd_open(pid)
        self._poll.register(self._launcher, select.POLLIN)

    def wake_by(self, descriptor: int) -> None:
        """Let :meth:`wait` return when there is something to read too; the caller reads it, and keeps it open."""
        self._news.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)

    @property
    def complete(self) -> bool:
        """Whether every rank has started."""
        return not self._missing

    @property
    def started(self) -> bool:
        """Whether any rank has run."""
        return bool(self._pids) or bool(self.first_dead)

    def wait(self, timeout_s: float) -> None:
        """Wait until a rank, or the launcher, ends, or there is news, at most ``timeout_s``."""
        dead = self._open()
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            events = self._poll.poll((left_s if self.complete else min(left_s, _TICK_S)) * 1e3)
            # One that appeared meanwhile, and is dead already, may have died before those whose end was seen.
            dead += self._open()
            if events or dead or left_s <= _TICK_S:
                break
        for descriptor, _ in events:
            if descriptor in self._news:
                continue
            self._poll.unregister(descriptor)
            os.close(descriptor)
            if descriptor == self._launcher:
                self._launcher = -1
                continue
            rank = self._ranks.pop(descriptor)
            number = _end_signal(self._pids[rank])
            if number:
                self.signals[rank] = number
            dead.append(rank)
        dead = [rank for rank in dead if not (self._folder / f"done-{rank}").exists()]
        if not self.first_dead:
            self.first_dead = tuple(sorted(dead))

    def _open(self) -> list[int]:
        """Start watching ranks that have appeared; return those that are dead already."""
        dead = []
        for rank in sorted(self._missing):
            path = self._folder / f"rank-{rank}.json"
            if not path.exists():
                continue
            self._missing.discard(rank)
            self._pids[rank] = json.loads(path.read_text())["pid"]
            try:
                descriptor = os.pidfd_open(self._pids[rank])
            except ProcessLookupError:
                dead.append(rank)
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)
        return dead

    def traced(self) -> bool:
        """Return whether a debugger holds any of the ranks."""
        return any(_tracer(pid) for pid in self._pids.values())

    def cpu_s(self, rank: int) -> float:
        """Return the seconds of a core that a rank has used since it started; 0 where it is not here."""
        with contextlib.suppress(KeyError, OSError, ValueError, IndexError):
            # proc(5): user and system time are the 14th and 15th field.
            fields = _stat(self._pids[rank])
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self, grace_s: float) -> None:
        """Give the ranks ``grace_s`` to end by themselves, kill what is left, and stop watching."""
        deadline_s = time.monotonic() + grace_s
        for descriptor in self._news:
            self._poll.unregister(descriptor)
        self._news.clear()
        self.wait(0.0)
        while self._ranks and time.monotonic() < deadline_s:
            self.wait(grace_s)
        for descriptor in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._ranks.clear()
        if self._launcher >= 0:
            self._poll.unregister(self._launcher)
            os.close(self._launcher)
            self._launcher = -1


def _tracer(pid: int) -> int:
    """Return the process that traces ``pid``, 0 for none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's line from the third on, which follows its name in parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _end_signal(pid: int) -> int:
    """Return the signal that ended a process which its parent has not yet collected; 0 where it cannot be told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # proc(5): the state is the third field, the exit code (as of waitpid) the 52nd.
        fields = _stat(pid)
        if fields[0] == "Z":
            return os.WTERMSIG(int(fields[49])) if os.WIFSIGNALED(int(fields[49])) else 0
    return 0


def under_debugger() -> bool:
    """Return whether this very process is traced by a debugger."""
    return _tracer(os.getpid()) != 0
