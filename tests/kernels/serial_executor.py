"""Run a task graph serially in this process, with host variants chosen by name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import OutputPath


def run_serially(graph: TaskGraph, output_dir: Path, prefer: Sequence[str]) -> dict[str, np.ndarray]:
    """Run every task with the first variant of ``prefer`` that its kernel has; return the last value of each item."""
    values: dict[int, np.ndarray] = {}
    latest: dict[str, np.ndarray] = {}
    for task in graph:
        variants = {v.name: v for v in task.kernel.variants}
        variant = next(variants[name] for name in (*prefer, "numpy") if name in variants)
        bound: dict[str, object] = {}
        for argument in task.arguments:
            if argument.reads is not None:
                array = values[argument.reads.index]
            else:
                array = np.full(argument.item.shape, 113, dtype=argument.item.dtype)
            if argument.makes is not None:
                array = array.copy() if argument.reads is not None else array
                values[argument.makes.index] = array
                latest[argument.item.name] = array
            else:
                array = array.view()
                array.setflags(write=False)
            if argument.is_list:
                bound.setdefault(argument.role, []).append(array)  # type: ignore[attr-defined]
            else:
                bound[argument.role] = array
        params = {k: str(output_dir / v.name) if isinstance(v, OutputPath) else v for k, v in task.params.items()}
        variant.load()(**bound, **params)
    return latest
