"""One run of an application by StarPU in a process of its own; writes ``answer-RANK.json`` beside the results.

    python benchmarks/starpu/worker.py SPEC.json

SPEC: application, params, opencl (number of devices), policy, repeats, folder (results), binary, synchronous,
seconds (kernel → seconds on a CPU, for priorities), speedup (kernel → CPU time over OpenCL time), fastest (kernel →
OpenCL variant), models (whether to tell what StarPU's models expect), ranks (MPI rank of each task; empty: no MPI).
StarPU's own variables are set by the caller.
"""

from __future__ import annotations

import time

BORN_S = time.monotonic()

import gc  # noqa: E402

# As our ranks do: what imports make is no garbage.
gc.disable()

import ctypes  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from codelets import Host  # noqa: E402
from flat import Flattener  # noqa: E402
from layer import Layer, StarPuError, load_library  # noqa: E402

from heterotask_core.apps import find_application  # noqa: E402
from heterotask_core.graph import Task, TaskGraph, class_key  # noqa: E402
from heterotask_core.interrupts import leave  # noqa: E402

HETEROPRIO = "heteroprio"


def levels(graph: TaskGraph, seconds: dict[str, float]) -> list[int]:
    """Return priorities: 0 to 1000 in proportion to the longest path to an exit, in seconds of a CPU.

    Without times every task counts one, as in StarPU's own applications.
    """
    successors: list[set[int]] = [set() for _ in graph.tasks]
    for task in graph:
        for before in graph.predecessors(task):
            successors[before].add(task.index)
    level = [0.0] * len(graph)
    for task in reversed(graph.tasks):
        own = seconds.get(class_key(task), 1.0)
        level[task.index] = own + max((level[s] for s in successors[task.index]), default=0.0)
    highest = max(level, default=1.0)
    return [int(1000 * value / highest) for value in level]


def class_medians(graph: TaskGraph, duration_s: Any, ran: Any) -> dict[str, float]:
    """Return class → median seconds of the tasks for which ``ran`` is true."""
    groups: dict[str, list[float]] = {}
    for task in graph:
        if ran[task.index]:
            groups.setdefault(class_key(task), []).append(float(duration_s[task.index]))
    return {key: float(np.median(values)) for key, values in groups.items()}


def kernel_sums(graph: TaskGraph, duration_s: Any, ran: Any) -> dict[str, float]:
    """Return kernel → seconds of all its tasks for which ``ran`` is true."""
    sums: dict[str, float] = {}
    for task in graph:
        if ran[task.index]:
            sums[task.kernel.name] = sums.get(task.kernel.name, 0.0) + float(duration_s[task.index])
    return sums


def main() -> None:
    """Run what the file asks for."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    library = load_library(Path(spec["binary"]))
    app = find_application(spec["application"])
    import_module(f"codelets_{app.name}")
    graph = app.build(app.Params(**spec["params"]))
    host = Host(library, Path(spec["folder"]))
    order = levels(graph, spec.get("seconds", {}))
    flattener = Flattener(graph, host, opencl=spec["opencl"] > 0, fastest=spec.get("fastest", {}))
    ranks = spec.get("ranks") or [0] * len(graph)
    if max(ranks, default=0) > 0:
        _take_own_core(spec["opencl"])
    flat = flattener.build(priority=lambda task: order[task.index], rank_of=lambda task: int(ranks[task.index]))
    if spec["policy"] == HETEROPRIO:
        flat.graph["task_priority"] = flat.graph["task_codelet"].copy()
    speedup = np.array([spec.get("speedup", {}).get(name, 1.0) for name in flat.kernels])
    layer = Layer(library, flat)
    prepared_s = time.monotonic()
    layer.start(spec["policy"], synchronous=spec.get("synchronous", False), speedup=speedup)
    started_s = time.monotonic()
    first, last, windows, medians, kernels = [], [], [], [], []
    kinds = _worker_kinds(library)
    for _ in range(spec["repeats"]):
        windows.append(layer.run())
        ran = layer.start_s > 0
        first.append(float(layer.start_s[ran].min()))
        last.append(float(layer.finish_s.max()))
        on_cpu = np.array([kinds[w] == "cpu" for w in layer.worker])
        duration_s = layer.finish_s - layer.start_s
        timed = layer.finish_s > 0
        kernels.append(kernel_sums(graph, duration_s, timed))
        medians.append(
            {
                "cpu": class_medians(graph, duration_s, timed & on_cpu),
                "opencl": class_medians(graph, duration_s, timed & ~on_cpu),
            }
        )
    if host.errors:
        raise StarPuError(host.errors[0])
    ran_s = time.monotonic()
    expected = _expected(graph, layer, spec["opencl"] > 0) if spec.get("models") else {}
    asked_s = time.monotonic()
    layer.stop()
    stopped_s = time.monotonic()
    result = {
        "tasks": len(graph),
        "first_s": first,
        "last_s": last,
        "window_s": windows,
        "python_s": prepared_s - BORN_S,
        "start_s": started_s - prepared_s,
        "native_s": (ran_s - prepared_s) + (stopped_s - asked_s),
        "medians": medians,
        "kernels_s": kernels,
        "expected": expected,
        "on_opencl": int(np.count_nonzero(~on_cpu)),
    }
    (host.folder / f"answer-{_local_rank()}.json").write_text(json.dumps(result))


def _local_rank() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))


def _take_own_core(opencl: int) -> None:
    """Give each rank of a host a core of its own, its communication thread too, as virtual nodes have on our side."""
    cores = sorted(os.sched_getaffinity(0))
    core = str(cores[_local_rank() % len(cores)])
    os.environ["STARPU_WORKERS_CPUID"] = core
    os.environ["STARPU_MPI_THREAD_CPUID"] = core
    assert opencl == 0, "virtual nodes have one CPU worker each here"


def _worker_kinds(library: ctypes.CDLL) -> list[str]:
    names = {0: "cpu", 2: "opencl"}  # enum starpu_worker_archtype
    return [names.get(library.starpu_worker_get_type(k), "other") for k in range(library.starpu_worker_get_count())]


def _expected(graph: TaskGraph, layer: Layer, opencl: bool) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"cpu": {}, "opencl": {}}
    seen: dict[str, Task] = {}
    for task in graph:
        seen.setdefault(class_key(task), task)
    for key, task in seen.items():
        found["cpu"][key] = layer.expected_s(task.index, opencl=False)
        if opencl:
            found["opencl"][key] = layer.expected_s(task.index, opencl=True)
    return found


if __name__ == "__main__":
    main()
    # As our ranks do: nothing is taken down piece by piece.
    leave(0)
