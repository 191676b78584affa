"""Ends a flow process with its worker: a killed worker tells nobody, and nobody could cancel the run any more."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path

from prefect.exceptions import TerminationSignal

from heterotask_core.interrupts import resend_lost

_GRACE_S = 3.0
"""How long the flow has to report that it crashed, before it is killed; the ranks end either way."""


def end_with_worker() -> None:
    """Watch the worker that this process descends from, if any; when it ends, so does this process.

    What such a process is told, also by a person who cancels the run, is not lost while Numba compiles.
    """
    worker = find_worker(os.getpid())
    if worker is None:
        return
    try:
        descriptor = os.pidfd_open(worker)
    except OSError:
        return
    resend_lost({TerminationSignal: signal.SIGTERM})
    threading.Thread(target=_wait, args=(descriptor,), name="end with worker", daemon=True).start()


def find_worker(pid: int) -> int | None:
    """Return the nearest ancestor that is a worker of Prefect."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        if {"worker", "start"} <= set(words) and any("prefect" in word for word in words):
            return pid
    return None


def _wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    # Prefect reports the run as crashed, and the ranks are ended on the way.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
