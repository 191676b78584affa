"""A graph whose one kernel says that it runs, and never returns."""

from __future__ import annotations

import os
import time
from pathlib import Path

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.platform.model import Device, Memory, Node, Platform


def hang(output, started):
    part = Path(started).with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.replace(started)
    while True:
        time.sleep(60)


HANG = Kernel("hang", __name__, writes=("output",), variants=(Variant("plain", "cpu", f"{__name__}:hang"),))


def hanging_graph(started: str) -> TaskGraph:
    graph = TaskGraph("hanging")
    graph.add(HANG, writes={"output": graph.data("x", shape=(4,), dtype="float32")}, params={"started": started})
    return graph


def platform() -> Platform:
    core = min(os.sched_getaffinity(0))
    return Platform(
        (Node("n0", os.uname().nodename),),
        (Memory("n0", "n0"),),
        (Device("c0", "cpu", "n0", "n0", "test", (core,)),),
        (),
    )
