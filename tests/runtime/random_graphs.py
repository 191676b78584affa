"""Random task graphs that store everything they make, with what that must be."""

from __future__ import annotations

import random

import numpy as np
from runtime_kernels import ADD, FILL, STORE, TWICE

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import OutputPath


def random_graph(seed: int, n_tasks: int, *, length: int) -> tuple[TaskGraph, list[np.ndarray]]:
    """Return a graph of arrays of so many float64, and what its results ``0.npy``, ``1.npy``, … must be."""
    rng = random.Random(seed)
    graph, items, values = TaskGraph("random"), [], []
    for i in range(n_tasks):
        made = graph.data(f"d{i}", shape=(length,), dtype="float64")
        kind = rng.choice(["fill", "twice", "twice", "add"]) if len(items) > 3 else "fill"
        if kind == "fill":
            graph.add(FILL, writes={"output": made}, params={"value": i})
            values.append(np.arange(length) + float(i))
        elif kind == "twice":
            j = rng.randrange(len(items))
            graph.add(TWICE, reads={"input": items[j]}, writes={"output": made})
            values.append(2.0 * values[j] + 1.0)
        else:
            chosen = rng.sample(range(len(items)), 3)
            graph.add(ADD, reads={"parts": [items[j] for j in chosen]}, writes={"output": made})
            values.append(np.sum([values[j] for j in chosen], axis=0))
        items.append(made)
    for i, item in enumerate(items):
        graph.add(STORE, reads={"input": item}, params={"path": OutputPath(f"{i}.npy")})
    return graph, values
