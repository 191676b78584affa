"""Time every variant of every Canny kernel on one 512² tile with neighbours on all sides, one core each.

python benchmarks/canny_variants.py [--tile N] [--kernels gaussian,sobel]      prints milliseconds and ratios to NumPy.

OpenCL on a CPU (PoCL) is held to one thread. Times are from the launch until the completion is seen; median of at
least 15 launches, and the spread (median absolute deviation).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"), "1"))

import numpy as np
from arguments import Parser, listed, run_program, whole

from heterotask_core.errors import HeteroTaskError
from heterotask_core.graph import Task
from heterotask_core.kernel import Variant
from heterotask_core.profiling.capture import capture_inputs, decode_params, encode_params
from heterotask_core.runtime.devices.base import Argument, Backend, open_backend, view
from kernels.canny.app import CANNY, CannyParams

ALIGNMENT_BYTES = 4096
SECONDS_EACH = 0.4
MIN_LAUNCHES = 15


def wait(event: Any) -> None:
    """Return when the event is complete."""
    while not event.query():
        os.sched_yield()


def placed(task: Task) -> tuple[list[Argument], int]:
    """Return the task's arguments one behind the other, and where they end."""
    arguments, end = [], 0
    for a in task.arguments:
        access = task.kernel.access(a.role)
        arguments.append(Argument(a.role, a.position, a.item.shape, a.item.dtype, end, a.is_list, access))
        end += -(-arguments[-1].size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return arguments, end


def time_variant(
    task: Task, variant: Variant, backend: Backend, arena: np.ndarray, files: dict[Any, Path], folder: Path
) -> tuple[float, float]:
    """Return median and spread in seconds."""
    arguments, end = placed(task)
    for a in arguments:
        if a.access == "read":
            view(arena, a)[...] = np.load(files[task.index, a.role, a.index])
            if backend.own_memory:
                wait(backend.copy_in(a.offset_bytes, a.offset_bytes, a.size_bytes, (), 1))
    scratch = None if variant.scratch_bytes is None else (end, variant.scratch_bytes(task.params, task.shapes()))
    launch = backend.bind(variant, variant.load(), arguments, decode_params(encode_params(task), folder), scratch)
    wait(launch(()))
    samples: list[float] = []
    ends_s = time.perf_counter() + SECONDS_EACH
    while len(samples) < MIN_LAUNCHES or time.perf_counter() < ends_s:
        started_s = time.perf_counter()
        wait(launch(()))
        samples.append(time.perf_counter() - started_s)
    middle = median(samples)
    return middle, median(abs(s - middle) for s in samples)


def main() -> None:
    """Print the table."""
    options = Parser(description=__doc__.splitlines()[0])
    options.add_argument("--tile", type=whole(16, 16384), default=512)
    options.add_argument("--kernels", type=listed(str), help="only these, comma-separated")
    given = options.parse_args()
    graph = CANNY.build(CannyParams(size=3 * given.tile, tile=given.tile))
    tasks: dict[str, Task] = {}
    for task in graph:
        # The tile in the middle, or the last merge; of kernels that run once, the only task.
        if task.kernel.name not in tasks or task.name.endswith("[1,1]") or task.kernel.name == "merge":
            tasks[task.kernel.name] = task
    for name in given.kernels or ():
        if name not in tasks:
            options.error(f"argument --kernels: {name!r} is unknown; there are {', '.join(tasks)}")
    if given.kernels:
        tasks = {name: tasks[name] for name in given.kernels}
    arena = np.zeros(64 * 4 * given.tile**2 // 4 + (64 << 12), np.uint8)
    arena = arena[-arena.ctypes.data % ALIGNMENT_BYTES :]
    backends: dict[str, Backend] = {}
    for kind in ("cpu", "opencl", "cuda"):
        try:
            backends[kind] = open_backend(kind, selector="", arena=arena, memory_bytes=arena.nbytes, cores=1)
        except HeteroTaskError as error:
            print(f"no {kind}: {error}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = capture_inputs(graph, tasks.values(), folder)
        print(f"{'kernel':<12}{'variant':<10}{'median ms':>11}{'spread ms':>11}{'of NumPy':>10}")
        for kernel, task in tasks.items():
            reference_s = 0.0
            for variant in task.kernel.variants:
                if variant.device_kind not in backends or not variant.available():
                    continue
                middle_s, spread_s = time_variant(
                    task, variant, backends[variant.device_kind], arena, files, folder / "outputs"
                )
                reference_s = reference_s or middle_s
                print(
                    f"{kernel:<12}{variant.name:<10}{middle_s * 1e3:11.3f}{spread_s * 1e3:11.3f}"
                    f"{middle_s / reference_s:10.3f}",
                    flush=True,
                )
    for backend in backends.values():
        backend.close()


if __name__ == "__main__":
    run_program(main)
