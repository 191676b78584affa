"""Whether the machine was exclusively ours during a measurement: what others computed on its cores meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

TOLERATED = 0.05
"""Share of all cores that others may use."""
TICK_S = 0.01
"""The kernel counts in steps of this length, on every core."""


@dataclass(frozen=True)
class Usage:
    """CPU seconds so far on the cores that we may use: of all processes, and of this one with all it started."""

    wall_s: float
    all_s: float
    own_s: float
    cores: int


def usage() -> Usage:
    """Read the counters of the kernel; processes that end while it reads are left out."""
    cores = sorted(os.sched_getaffinity(0))
    times = psutil.cpu_times(percpu=True)
    busy_s = sum(times[c].user + times[c].system + times[c].nice for c in cores if c < len(times))
    me = psutil.Process()
    own_s = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.Error:
            continue
        own_s += spent.user + spent.system + spent.children_user + spent.children_system
    return Usage(time.monotonic(), busy_s, own_s, len(cores))


def other_load(before: Usage, after: Usage) -> str:
    """Return what others used between two readings, in words; empty if it was little."""
    wall_s = after.wall_s - before.wall_s
    other_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    if other_s <= TOLERATED * wall_s * after.cores + 2 * TICK_S * after.cores:
        return ""
    return f"other processes used {other_s / wall_s:.2f} of {after.cores} cores for {wall_s:.2g} s"
