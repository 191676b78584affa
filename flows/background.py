"""Server and worker as processes in the background, with a log and a PID file each in Prefect's folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flows.access import DeployError, prefect_home

_END_S = 20.0
_LOOK_S = 0.2


class Background:
    """A process called ``name`` that outlives this one."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        """``arguments`` follow ``python -m``."""
        self._arguments = list(arguments)
        self.log = prefect_home() / f"heterotask-{name}.log"
        self._pid_file = prefect_home() / f"heterotask-{name}.pid"
        self._name = name

    def pid(self) -> int | None:
        """Return the process if it runs and is what was started (numbers are used again)."""
        try:
            pid = int(self._pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except (OSError, ValueError):
            return None
        return pid if set(self._arguments) <= set(words) else None

    def start(self, *, cwd: Path) -> None:
        """Start it in a session of its own, so that closing the terminal does not end it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={"DO_NOT_TRACK": "1", **os.environ},
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self._pid_file.write_text(str(process.pid))

    def wait_for(self, ready: Callable[[], bool], limit_s: float) -> None:
        """Wait until ``ready`` says so; raises :class:`DeployError` with the end of the log if it does not."""
        until_s = time.monotonic() + limit_s
        while not ready():
            if self.pid() is None:
                raise DeployError(f"the {self._name} ended at once; it said: {self._tail()} (see {self.log})")
            if time.monotonic() > until_s:
                raise DeployError(f"the {self._name} does not answer after {limit_s:.0f} s; see {self.log}")
            time.sleep(_LOOK_S)

    def stop(self) -> bool:
        """End it, at once if it does not end by itself; return whether it ran."""
        pid = self.pid()
        if pid is None:
            self._pid_file.unlink(missing_ok=True)
            return False
        os.kill(pid, signal.SIGTERM)
        until_s = time.monotonic() + _END_S
        while self.pid() is not None and not _is_zombie(pid):
            if time.monotonic() > until_s:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)
        self._pid_file.unlink(missing_ok=True)
        return True

    def _tail(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or "nothing"


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
