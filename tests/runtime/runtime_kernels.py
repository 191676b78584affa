"""Small kernels that the runtime's tests execute; ranks import this module by name."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from heterotask_core.kernel import Kernel, Launch, Variant


def fill(output, value):
    output[:] = np.arange(output.size) + value


def twice(input, output):
    np.add(2.0 * input, 1.0, out=output)


def twice_source(input, output):
    n = input.shape[0]
    return [Launch("twice", (n,), (64,), (input, output, np.int32(n)))]


def add(parts, output):
    output[:] = np.sum(parts, axis=0)


def bump(data, scratch, cores):
    scratch[:] = cores
    data += scratch[0]


def mix(parts, data, output, factor):
    output[:] = factor * (parts[0] + parts[1])
    data += 1


def store(input, path):
    np.save(path, input)


def fail(input, output):
    raise ValueError("no such luck")


def die(input, output):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(output, path):
    part = path.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.replace(path)
    while True:
        signal.pause()


def nothing(data):
    pass


def burn(input, output, cpu_s):
    """Use ``cpu_s`` seconds of a core, however many others want it."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass
    np.add(input, 1.0, out=output)


def _cpu(function, **options):
    return Variant("plain", "cpu", f"{__name__}:{function.__name__}", **options)


FILL = Kernel("fill", __name__, writes=("output",), variants=(_cpu(fill),))
TWICE = Kernel(
    "twice",
    __name__,
    reads=("input",),
    writes=("output",),
    variants=(
        _cpu(twice),
        Variant("source", "opencl", f"{__name__}:twice_source", source=f"{__name__}:runtime_kernels.c"),
    ),
)
ADD = Kernel("add", __name__, reads=("parts",), writes=("output",), variants=(_cpu(add),))
BUMP = Kernel("bump", __name__, updates=("data",), variants=(_cpu(bump, max_cores=None),))
STORE = Kernel("store", __name__, reads=("input",), variants=(_cpu(store),), sink=True)
FAIL = Kernel("fail", __name__, reads=("input",), writes=("output",), variants=(_cpu(fail),))
DIE = Kernel("die", __name__, reads=("input",), writes=("output",), variants=(_cpu(die),))
HANG = Kernel("hang", __name__, writes=("output",), variants=(_cpu(hang),), sink=True)
NOTHING = Kernel("nothing", __name__, updates=("data",), variants=(_cpu(nothing),))
BURN = Kernel("burn", __name__, reads=("input",), writes=("output",), variants=(_cpu(burn),))
