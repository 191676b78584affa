"""Clears up after a caller that is killed: ``python -m heterotask_core.runtime.reaper FOLDER PID``.

It holds a pipe to the caller and does nothing until that breaks. A caller that ends in good order says ``done``
first. Else the launcher's process PID and the ranks on this host are killed, and their files removed. It has a
session of its own, so what is sent to the caller's process group does not reach it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from heterotask_core import scratch
from heterotask_core.runtime.cleanup import remove_files, remove_job
from heterotask_core.runtime.watch import RankWatch

_GRACE_S = 1.0


class Reaper:
    """The caller's handle of the process."""

    def __init__(self, folder: Path, pid: int, ranks: list[int]) -> None:
        """Start it for the job in ``folder`` whose launcher runs as ``pid``, with ``ranks`` on this host."""
        # Without site it starts faster, and finds everything in PYTHONPATH, but for this package where it is installed
        # in place: site would set up what finds it then.
        argv = [sys.executable, "-S", "-m", __name__, str(folder), str(pid), *map(str, ranks)]
        path = ":".join(str(Path(p).resolve()) for p in [str(Path(__file__).parents[2]), *sys.path])
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def dismiss(self) -> None:
        """Tell it that the job has been cleared up."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"done\n")


def main(folder: Path, pid: int, ranks: list[int]) -> None:
    """Wait for the caller's end, and clear up unless it said that it has."""
    # When the caller is gone, nobody else may take the folder for abandoned.
    with contextlib.suppress(OSError):
        scratch.hold(folder)
    launcher = None
    with contextlib.suppress(ProcessLookupError):
        launcher = os.pidfd_open(pid)
    if sys.stdin.read().strip() == "done":
        return
    if launcher is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(launcher, signal.SIGKILL)
        select.select([launcher], [], [], _GRACE_S)
    RankWatch(folder, ranks).end(_GRACE_S)
    # Memory first: what comes next takes seconds on a busy host.
    remove_files(folder)
    try:
        # Needs NumPy, which a job that ends in good order should not wait for.
        from heterotask_core.runtime.partial import keep_partial

        keep_partial(folder)
    finally:
        remove_job(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(rank) for rank in sys.argv[3:]])
