"""Which rank died first: seen by the launcher itself, because mpiexec may name one that it has killed.

A rank whose work is done leaves ``done-R`` in the job's folder; one that ends without it has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path


class RankWatch:
    """Follows the processes that ``rank-R.json`` files of a job name, through pidfds."""

    def __init__(self, folder: Path, n_ranks: int) -> None:
        """Watch the ranks of the job in ``folder`` from the moment that each has written its file."""
        self._folder = folder
        self._missing = set(range(n_ranks))
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}
        self.first_dead: tuple[int, ...] = ()
        """Ranks that ended first without being done: one, or several that ended between two looks."""

    @property
    def started(self) -> bool:
        """Whether any rank has run."""
        return bool(self._ranks) or bool(self.first_dead)

    def wait(self, timeout_s: float) -> None:
        """Wait until a rank ends, at most ``timeout_s``."""
        dead = self._open()
        for descriptor, _ in self._poll.poll(timeout_s * 1e3):
            self._poll.unregister(descriptor)
            os.close(descriptor)
            dead.append(self._ranks.pop(descriptor))
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
            try:
                descriptor = os.pidfd_open(json.loads(path.read_text())["pid"])
            except ProcessLookupError:
                dead.append(rank)
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)
        return dead

    def end(self, grace_s: float) -> None:
        """Give the ranks ``grace_s`` to end with their mpiexec, kill what is left, and stop watching."""
        deadline_s = time.monotonic() + grace_s
        self.wait(0.0)
        while self._ranks and time.monotonic() < deadline_s:
            self.wait(grace_s)
        for descriptor in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._ranks.clear()
