"""Real inputs for timing: run the part of a graph that makes them, once, with the reference variants."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import ProfileError
from heterotask_core.graph import Argument, Task, TaskGraph
from heterotask_core.kernel import OutputPath

Array = npt.NDArray[Any]


def encode_params(task: Task) -> dict[str, Any]:
    """Return the parameters as JSON values, an output path as ``{"output": name}``."""
    return {k: {"output": v.name} if isinstance(v, OutputPath) else v for k, v in task.params.items()}


def decode_params(params: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the parameters that an implementation gets; output paths lie in ``folder``."""
    return {k: folder / v["output"] if isinstance(v, dict) and set(v) == {"output"} else v for k, v in params.items()}


def capture_inputs(graph: TaskGraph, wanted: Iterable[Task], folder: Path) -> dict[tuple[int, str, int], Path]:
    """Save what the ``wanted`` tasks read, and return (task index, role, position) → ``.npy`` file in ``folder``.

    Runs only ancestors of the wanted tasks, in program order, with their kernels' first CPU variants; a value is
    freed after its last use. Raises :class:`ProfileError` naming the task that fails.
    """
    tasks = {task.index: task for task in wanted}
    needed = _ancestors(graph, tasks)
    last_use: dict[int, int] = {}
    for index in sorted(needed | set(tasks)):
        for version in graph.tasks[index].inputs:
            last_use[version.index] = index
    values: dict[int, Array] = {}
    files: dict[tuple[int, str, int], Path] = {}
    outputs = folder / "outputs"
    outputs.mkdir()
    for index in sorted(needed | set(tasks)):
        task = graph.tasks[index]
        if index in tasks:
            for a in task.arguments:
                if a.reads is not None:
                    path = folder / f"{index}-{a.role}-{a.position}.npy"
                    np.save(path, values[a.reads.index], allow_pickle=False)
                    files[index, a.role, a.position] = path
        if index in needed:
            _run(task, values, last_use, outputs)
        for version in task.inputs:
            if last_use.get(version.index) == index:
                values.pop(version.index, None)
        for version in task.outputs:
            if version.index not in last_use:
                values.pop(version.index, None)
    return files


def _ancestors(graph: TaskGraph, tasks: Iterable[int]) -> set[int]:
    found: set[int] = set()
    open_ = list(tasks)
    while open_:
        # Order-only dependencies count: a task may read a file that another one wrote.
        for parent in graph.predecessors(graph.tasks[open_.pop()]):
            if parent not in found:
                found.add(parent)
                open_.append(parent)
    return found


def _run(task: Task, values: dict[int, Array], last_use: dict[int, int], folder: Path) -> None:
    variant = task.kernel.reference
    arrays: dict[str, Any] = {}
    for a in task.arguments:
        array = _bind(a, task, values, last_use)
        if a.is_list:
            arrays.setdefault(a.role, []).append(array)
        else:
            arrays[a.role] = array
        if a.makes is not None:
            values[a.makes.index] = array
    extra: dict[str, Any] = {}
    if variant.scratch_bytes is not None:
        extra["scratch"] = np.empty(variant.scratch_bytes(task.params, task.shapes()), np.uint8)
    if variant.max_cores != 1:
        available = max(variant.min_cores, len(os.sched_getaffinity(0)))
        extra["cores"] = available if variant.max_cores is None else min(available, variant.max_cores)
    try:
        variant.load()(**arrays, **decode_params(encode_params(task), folder), **extra)
    except Exception as error:
        raise ProfileError(
            f"task {task.name!r}: variant {variant.name!r} failed while making inputs for the profile: "
            f"{type(error).__name__}: {error}"
        ) from error


def _bind(a: Argument, task: Task, values: dict[int, Array], last_use: dict[int, int]) -> Array:
    if a.reads is None:
        return np.empty(a.item.shape, a.item.dtype)
    taken = values[a.reads.index]
    if a.makes is not None and last_use.get(a.reads.index) != task.index:
        # Others still read the older version: update a copy.
        return taken.copy()
    return taken
