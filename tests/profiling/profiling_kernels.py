"""Tiny kernels for the tests of profiling: a source, an update, a reduction, a sink."""

import os
import threading
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Launch, OutputPath, Variant


def fill(*, dst, value):
    dst[:] = value


def scale(*, x, factor):
    if not (x == x.flat[0]).all() or x.flat[0] not in (1, 2):
        raise ValueError(f"input is not what the graph makes: {x}")
    x *= factor


def scale_launches(*, x, factor):
    return [Launch("scale", x.shape, (16,), (x, np.float32(factor), np.int32(x.shape[0])))]


def total(*, parts, dst, scratch, cores):
    assert cores >= 1
    scratch[:] = 0
    dst[0] = sum(p.sum() for p in parts)


def save(*, src, path):
    if Path(path).exists():
        raise FileExistsError(f"{path} is written twice")
    np.save(path, src)


def broken(*, dst):
    raise RuntimeError("no luck")


def hang(*, dst):
    if dst.size:
        threading.Event().wait()


def crash(*, dst):
    os._exit(3)


HERE = __name__
FILL = Kernel("fill", HERE, writes=("dst",), variants=(Variant("numpy", "cpu", f"{HERE}:fill"),))
SCALE = Kernel(
    "scale",
    HERE,
    updates=("x",),
    variants=(
        Variant("numpy", "cpu", f"{HERE}:scale"),
        Variant("fast", "cpu", f"{HERE}:scale", exact=False),
        Variant(
            "opencl", "opencl", f"{HERE}:scale_launches", source=f"{HERE}:profiling_scale.c", requires=("pyopencl",)
        ),
    ),
)
TOTAL = Kernel(
    "total",
    HERE,
    reads=("parts",),
    writes=("dst",),
    variants=(Variant("numpy", "cpu", f"{HERE}:total", max_cores=None, scratch_bytes=lambda params, shapes: 100),),
)
SAVE = Kernel("save", HERE, reads=("src",), variants=(Variant("numpy", "cpu", f"{HERE}:save"),), sink=True)
BROKEN = Kernel("broken", HERE, writes=("dst",), variants=(Variant("numpy", "cpu", f"{HERE}:broken"),))

HANG = Kernel("hang", HERE, writes=("dst",), variants=(Variant("numpy", "cpu", f"{HERE}:hang"),))
CRASH = Kernel("crash", HERE, writes=("dst",), variants=(Variant("numpy", "cpu", f"{HERE}:crash"),))


def small_graph(n: int = 64) -> TaskGraph:
    """Two arrays filled with 1, doubled, summed into one number, saved."""
    g = TaskGraph("small")
    parts = [g.data(f"part{i}", shape=(n,), dtype="float32") for i in range(2)]
    out = g.data("sum", shape=(1,), dtype="float32")
    for i, part in enumerate(parts):
        g.add(FILL, name=f"fill{i}", writes={"dst": part}, params={"value": 1})
        g.add(SCALE, name=f"scale{i}", updates={"x": part}, params={"factor": 2})
    g.add(TOTAL, name="total", reads={"parts": parts}, writes={"dst": out})
    g.add(SAVE, name="save", reads={"src": out}, params={"path": OutputPath("sum.npy")})
    return g


class SmallParams(BaseModel):
    n: int = 64


class SmallApp:
    """The graph above as an application."""

    name = "small"
    summary = "for the tests of profiling"
    Params = SmallParams

    def build(self, params):
        return small_graph(params.n)

    def check(self, params, output_dir):
        raise NotImplementedError


APP = SmallApp()
