"""The plain loop that HeteroTask is compared with: every rank owns a block of points, Isend/Irecv, Waitall, compute.

mpiexec -n 2 python benchmarks/metg_mpi.py '{"pattern": …, "width": …, "steps": …, "doubles": …, "iterations": […],
"repeats": …}' prints, as JSON, the seconds of every repeat of every iteration count.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI
from taskbench_graphs import FUNCTIONS, dependencies, points

KEYS = ("pattern", "width", "steps", "doubles", "iterations", "repeats")


def main() -> None:
    """Run all iteration counts; rank 0 prints."""
    try:
        (text,) = sys.argv[1:]
        given = {name: json.loads(text)[name] for name in KEYS}
    except (ValueError, TypeError, KeyError):
        print(f"metg_mpi.py: give one argument, a JSON object of {', '.join(KEYS)}; metg.py does", file=sys.stderr)
        raise SystemExit(2) from None
    comm = MPI.COMM_WORLD
    pattern, width, steps = given["pattern"], given["width"], given["steps"]

    def owner(point: int) -> int:
        return point * comm.size // width

    buffers = np.zeros((2, width, given["doubles"]))
    plan = []
    for step in range(steps):
        receives, sends, calls = set(), set(), []
        for point in points(pattern, step, width):
            inputs = dependencies(pattern, step, point, width)
            receives |= {(p, owner(p)) for p in inputs if owner(point) == comm.rank != owner(p)}
            sends |= {(p, owner(point)) for p in inputs if owner(p) == comm.rank != owner(point)}
            if owner(point) == comm.rank:
                arrays = [buffers[(step - 1) % 2, p] for p in inputs]
                calls.append((FUNCTIONS[len(inputs)], (*arrays, buffers[step % 2, point])))
        # Both sides post in the same order.
        receives, sends = ([(buffers[(step - 1) % 2, p], p, r) for p, r in sorted(x)] for x in (receives, sends))
        plan.append((receives, sends, calls))

    def run(iterations: int) -> float:
        comm.Barrier()
        start_s = time.perf_counter()
        for receives, sends, calls in plan:
            requests = [comm.Irecv(part, source=other, tag=tag) for part, tag, other in receives]
            requests += [comm.Isend(part, dest=other, tag=tag) for part, tag, other in sends]
            if requests:
                MPI.Request.Waitall(requests)
            for function, arrays in calls:
                function(*arrays, iterations)
        own_s = time.perf_counter() - start_s
        last = plan[-1][2]
        wrong = pattern != "no_dependencies" and any(arrays[-1][0] != steps - 1 for _, arrays in last)
        if comm.allreduce(int(wrong)):
            raise SystemExit(f"{pattern}: wrong result")
        return float(comm.allreduce(own_s, op=MPI.MAX))

    run(1)
    measured = {n: [run(n) for _ in range(given["repeats"])] for n in given["iterations"]}
    if comm.rank == 0:
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
