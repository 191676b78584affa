"""Where the runtime's own time goes: nanoseconds of each step of an op, compiled helper and pure Python side by side.

python benchmarks/overhead.py
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from arguments import Parser, run_program
from metg import make_platform, make_program
from taskbench_graphs import step3

from heterotask_core.runtime.arena import Counters, NodeMemory
from heterotask_core.runtime.context import Context, JobSpec, counters_file
from heterotask_core.runtime.native import native
from heterotask_core.runtime.walker import Walker

OPS = 1000
REPEATS = 200


class OneRank:
    """A communicator of which only the rank is asked."""

    rank = 1


def per_op_ns(call: Callable[[], object]) -> tuple[float, float]:
    """Return median and upper quartile of the time an op on a lane of its own, nothing to wait for."""
    platform = make_platform(1)
    program = make_program("no_dependencies", 2, OPS, 2, platform)
    program = replace(program, dep_ptr=np.zeros_like(program.dep_ptr), dep_ops=program.dep_ops[:0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Counters(counters_file(folder, program, "n0"), len(program.lane_names), create=True)
        memory = NodeMemory(folder / "memory", int(program.memory_size_bytes[0]), program.n_ops, create=True)
        spec = JobSpec(output_dir=name, repeats=REPEATS, arenas={}, devices={})
        context = Context(folder, program, spec, OneRank(), memory)
        lane = context.lanes[0]
        walker = Walker(context, lane, [call] * len(context.lane_ops(lane)), sleep_s=5e-5)
        walls = []
        for repeat in range(REPEATS):
            context.begin(repeat)
            start_ns = time.perf_counter_ns()
            walker.run(repeat)
            walls.append((time.perf_counter_ns() - start_ns) / OPS)
    return statistics.median(walls), statistics.quantiles(walls, n=4)[2]


def main() -> None:
    """Print a table."""
    Parser(description=(__doc__ or "").splitlines()[0]).parse_args()
    arrays = [np.zeros(2) for _ in range(4)]
    calls = {
        "walk alone (builtin call)": int,
        "walk + Numba kernel of four arrays": functools.partial(step3, *arrays, 0),
        "walk + the same by keywords": functools.partial(step3, in0=arrays[0], in1=arrays[1], in2=arrays[2],
                                                         output=arrays[3], iterations=0),
        "walk + Python function": functools.partial(lambda a, b: None, *arrays[:2]),
    }  # fmt: skip
    step3(*arrays, 0)
    print(f"{'step':40} {'compiled':>16} {'python':>16}   ns an op, median (upper quartile)")
    for name, call in calls.items():
        cells = []
        for helper in ("1", "0"):
            os.environ["HETEROTASK_NATIVE"] = helper
            if helper == "1" and native() is None:
                cells.append("not built")
                continue
            median, upper = per_op_ns(call)
            cells.append(f"{median:.0f} ({upper:.0f})")
        print(f"{name:40} {cells[0]:>16} {cells[1]:>16}")


if __name__ == "__main__":
    run_program(main)
