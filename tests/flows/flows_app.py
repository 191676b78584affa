"""The smallest application: one NumPy kernel writes a file that the check reads; and a slow one, to be interrupted."""

import os
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from heterotask_core.app import CheckResult
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant


def squares(*, dst, path):
    if os.environ.get("FLOWS_APP_FAIL"):
        raise ArithmeticError("squares cannot be made")
    dst[:] = np.arange(len(dst)) ** 2
    np.save(path, dst)
    print(f"squares of {len(dst)}", flush=True)


SQUARES = Kernel("squares", __name__, writes=("dst",), variants=(Variant("numpy", "cpu", f"{__name__}:squares"),))


class Params(BaseModel):
    n: int = Field(default=16, ge=1)


class Tiny:
    name = "tiny"
    summary = "Squares, twice"
    Params = Params

    def build(self, params):
        graph = TaskGraph("tiny")
        for i in range(2):
            item = graph.data(f"x{i}", shape=(params.n,), dtype="int64")
            graph.add(SQUARES, name=f"s{i}", writes={"dst": item}, params={"path": OutputPath(f"s{i}.npy")})
        return graph

    def check(self, params, output_dir):
        same = np.array_equal(np.load(Path(output_dir) / "s0.npy"), np.arange(params.n) ** 2)
        return CheckResult(same, "squares")


TINY = Tiny()


def pause(*, dst, seconds):
    time.sleep(seconds)
    dst[:] = 1


PAUSE = Kernel(
    "pause",
    __name__,
    writes=("dst",),
    variants=(Variant("numpy", "cpu", f"{__name__}:pause"),),
)


class SlowParams(BaseModel):
    tasks: int = Field(default=600, ge=1, le=10_000, description="how many tasks, one after the other on a device")
    seconds: float = Field(default=0.1, ge=0.0, le=10.0, description="how long each waits")


class Slow:
    name = "slow"
    summary = "Waits"
    Params = SlowParams

    def build(self, params):
        graph = TaskGraph("slow")
        for i in range(params.tasks):
            item = graph.data(f"x{i}", shape=(8,), dtype="int64")
            graph.add(PAUSE, name=f"s{i}", writes={"dst": item}, params={"seconds": params.seconds})
        return graph

    def check(self, params, output_dir):
        return CheckResult(True, "nothing to check")


SLOW = Slow()
