"""Kernels that fail in every way a kernel can; each first leaves its pid, so that a test knows it runs."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np

from heterotask_core.kernel import Kernel, Variant


def _begin(started: Path, output) -> None:
    print("about to fail", flush=True)
    part = started.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.replace(started)


def raises(input, output, started):
    _begin(started, output)
    raise ValueError("no such luck")


def exits(input, output, started):
    _begin(started, output)
    os._exit(3)


def killed(input, output, started):
    _begin(started, output)
    os.kill(os.getpid(), signal.SIGKILL)


def crashes(input, output, started):
    _begin(started, output)
    ctypes.string_at(0)


def stops(input, output, started):
    _begin(started, output)
    os.kill(os.getpid(), signal.SIGSTOP)


def holds_gil(input, output, started):
    """Hang in C without giving the interpreter's lock away."""
    _begin(started, output)
    ctypes.PyDLL(None).pause()


def forever(input, output, started):
    _begin(started, output)
    while True:
        time.sleep(3600)


def spins(input, output, started):
    """Never return, but use the core: no watchdog minds for a while."""
    _begin(started, output)
    while True:
        output[0] += 1.0


def wrong_shape(input, output, started):
    _begin(started, output)
    output[:] = np.zeros(output.size + 1)


def fills_disk(input, output, started, result):
    _begin(started, output)
    result.write_bytes(bytes(64 << 20))


def nearly_fills_disk(input, output, started, result):
    """Succeed, and leave room for the small result, but none for the trace."""
    _begin(started, output)
    output[:] = input
    stat = os.statvfs(started.parent)
    result.write_bytes(bytes((stat.f_bavail - 3) * stat.f_frsize))


FAILING = {
    function.__name__: Kernel(
        function.__name__,
        __name__,
        reads=("input",),
        writes=("output",),
        variants=(Variant("plain", "cpu", f"{__name__}:{function.__name__}"),),
    )
    for function in (
        raises,
        exits,
        killed,
        crashes,
        stops,
        holds_gil,
        forever,
        spins,
        wrong_shape,
        fills_disk,
        nearly_fills_disk,
    )
}
RAISES, EXITS, KILLED, CRASHES, STOPS = (FAILING[n] for n in ("raises", "exits", "killed", "crashes", "stops"))
HOLDS_GIL, FOREVER, SPINS, WRONG_SHAPE = (FAILING[n] for n in ("holds_gil", "forever", "spins", "wrong_shape"))
FILLS_DISK, NEARLY_FILLS_DISK = (FAILING[n] for n in ("fills_disk", "nearly_fills_disk"))
