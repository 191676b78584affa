"""Are both sides' tasks the same? Results and times of every task class, variant against StarPU's CPU codelet.

    python benchmarks/starpu/same.py [--apps heat cholesky ...]

runs each graph task by task in this process: our variant computes, and the codelet's function computes again from
copies of the same inputs. Every class is then timed both ways by turns; the medians' ratio is printed.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from build import build, install
from checks import run_case_program, shared
from codelets import CALLBACK, NATIVE, Host, call_of
from layer import load_library

from heterotask_core.apps import find_application
from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.kernel import OutputPath, Variant
from heterotask_core.runtime.devices.base import Argument, by_role
from heterotask_core.runtime.devices.cpu import bound_call

Array = np.ndarray[Any, Any]

SMALL: dict[str, dict[str, Any]] = {
    "heat": {"size": 512, "tile": 256, "steps": 2},
    "cholesky": {"size": 768, "tile": 256},
    "kmeans": {"picture": "china", "block": 100_000, "iterations": 1},
    "canny": {"size": 512, "tile": 256},
    "mosaic": {"size": 128, "count": 6, "tile": 128},
}
"""Application → parameters of a graph with every class of tasks."""


@dataclass(frozen=True)
class Pair:
    """A task both ways: the calls, and whether all results are the same bits.

    ``reset`` gives both the inputs again, which a task that updates needs before it is called once more.
    """

    task: Task
    reset: Callable[[], None]
    ours: Callable[[], object]
    starpu: Callable[[], object]
    same: bool
    native: bool


def our_variant(task: Task) -> Variant:
    """Return the variant whose code the codelet runs: Numba's where there is one and no BLAS, else the first."""
    named = {v.name: v for v in task.kernel.variants if v.device_kind == "cpu"}
    for name in ("blas", "lapack", "numba"):
        if name in named:
            return named[name]
    return next(iter(named.values()))


def pairs(graph: TaskGraph, host: Host, folder: Path) -> Iterator[Pair]:
    """Run the graph by our variants and yield each task with its arrays bound both ways.

    Calls of a pair may be repeated until the next pair is taken.
    """
    arrays = [np.zeros(item.shape, item.dtype) for item in graph.items]
    for task in graph:
        call = call_of(task, host)
        own = [arrays[a.item.index] for a in task.arguments]
        inputs, copies = [array.copy() for array in own], [array.copy() for array in own]
        variant = our_variant(task)
        taken = iter(own)
        params = {k: folder / v.name if isinstance(v, OutputPath) else v for k, v in task.params.items()}
        roles = by_role([_role(a) for a in task.arguments], lambda _, taken=taken: next(taken))
        values = {**roles, **params}
        if variant.scratch_bytes is not None:
            values["scratch"] = np.zeros(variant.scratch_bytes(task.params, task.shapes()), np.uint8)
        ours = bound_call(variant.load(), values)
        starpu = _bound(call, copies)
        ours()
        starpu()
        same = all(
            np.array_equal(copies[k].view(np.uint8), arrays[a.item.index].view(np.uint8))
            for k, a in enumerate(task.arguments)
            if copies[k].size
        )
        results = [array.copy() for array in own]
        reset = functools.partial(_restore, inputs, own, copies)
        yield Pair(task, reset, ours, starpu, same, (task.kernel.module, task.kernel.name) in NATIVE)
        _restore(results, own)


def _restore(values: Sequence[Array], *targets: Sequence[Array]) -> None:
    for target in targets:
        for value, array in zip(values, target, strict=True):
            array[...] = value


def _role(argument: Any) -> Any:
    item = argument.item
    return Argument(argument.role, argument.position, item.shape, item.dtype, 0, argument.is_list)


def _bound(call: Any, arrays: list[Array]) -> Callable[[], object]:
    memory = [*arrays, np.zeros(call.scratch_bytes, np.uint8)]
    pointers = (ctypes.c_void_p * len(memory))(*(m.ctypes.data for m in memory))
    numbers = (ctypes.c_int64 * max(1, len(call.numbers)))(*(int(n) for n in call.numbers))
    reals = (ctypes.c_double * max(1, len(call.reals)))(*call.reals)
    function = CALLBACK(call.address)

    def run() -> None:
        function(pointers, numbers, reals)
        assert memory  # the arrays live as long as the call

    return run


def timed(pair: Pair, rounds: int) -> tuple[float, float]:
    """Return median seconds of both, measured by turns."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, seconds in zip((pair.ours, pair.starpu), spent, strict=True):
            pair.reset()
            start_s = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start_s)
    return statistics.median(spent[0]), statistics.median(spent[1])


def open_host(application: str, folder: Path) -> Host:
    """Return what codelets of an application need in this process."""
    import_module(f"codelets_{application}")
    return Host(load_library(build()), folder)


def main() -> int:
    """Print a line a class; return 1 where results differ."""
    parser = shared.Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--apps", nargs="+", default=list(SMALL), choices=list(SMALL))
    parser.add_argument("--rounds", type=shared.whole(), default=15)
    arguments = parser.parse_args()
    install()
    different = 0
    print(f"{'app':9} {'task':22} {'ours us':>9} {'StarPU us':>9} {'ratio':>6}  results")
    for name in arguments.apps:
        app = find_application(name)
        graph = app.build(app.Params(**SMALL[name]))
        seen: set[str] = set()
        with tempfile.TemporaryDirectory() as folder:
            for pair in pairs(graph, open_host(name, Path(folder)), Path(folder)):
                different += not pair.same
                key = class_key(pair.task)
                if key in seen and pair.same:
                    continue
                seen.add(key)
                ours_s, starpu_s = timed(pair, arguments.rounds)
                how = ("same bits" if pair.same else "DIFFERENT") + ("" if pair.native else ", through Python")
                print(
                    f"{name:9} {pair.task.name[:22]:22} {ours_s * 1e6:9.1f} {starpu_s * 1e6:9.1f} "
                    f"{starpu_s / ours_s:6.2f}  {how}",
                    flush=True,
                )
    return int(different > 0)


if __name__ == "__main__":
    run_case_program(main)
