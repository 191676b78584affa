"""The k-means kernels and the graph: assign ‖ → tree reduce → update, an iteration after the other."""

from __future__ import annotations

from heterotask_core.graph import DataItem, TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.kmeans import gpu_variants
from kernels.kmeans.gpu_variants import FIELDS
from kernels.variants import host_variants, source_variants, typed_source_variants

CPU = "kernels.kmeans.cpu_variants"
GPU = "kernels.kmeans.gpu_variants"
SOURCE = "kernels.kmeans:kmeans.cl"
FAN_IN = 4
"""Partial sums that one task of the reduction adds."""


def _numpy(function: str) -> Variant:
    return Variant("numpy", "cpu", f"{CPU}:{function}", requires=("numpy",), warm_up=True)


def _numba(function: str) -> Variant:
    return Variant("numba", "cpu", f"{CPU}:{function}_numba", requires=("numba",), warm_up=True)


LOAD = Kernel(
    "load",
    __name__,
    writes=("block",),
    free_params=("start",),
    variants=host_variants(f"{CPU}:load", requires=("numpy",), warm_up=True),
)
SEED = Kernel(
    "seed", __name__, writes=("centres",), variants=host_variants(f"{CPU}:seed", requires=("numpy",), warm_up=True)
)
ACCUMULATE = Kernel(
    "accumulate",
    __name__,
    reads=("block", "centres"),
    writes=("sums",),
    variants=(
        _numpy("accumulate"),
        _numba("accumulate"),
        *typed_source_variants(f"{GPU}:accumulate", SOURCE, scratch=gpu_variants.accumulate_scratch),
    ),
)
REDUCE = Kernel(
    "reduce",
    __name__,
    reads=("parts",),
    writes=("total",),
    variants=(_numpy("reduce"), _numba("reduce"), *source_variants(f"{GPU}:reduce", SOURCE)),
)
UPDATE = Kernel(
    "update",
    __name__,
    reads=("total",),
    writes=("centres",),
    variants=(_numpy("update"), *typed_source_variants(f"{GPU}:update", SOURCE)),
)
ASSIGN = Kernel(
    "assign",
    __name__,
    reads=("block", "centres"),
    writes=("labels",),
    variants=(_numpy("assign"), _numba("assign"), *typed_source_variants(f"{GPU}:assign", SOURCE)),
)
STORE = Kernel(
    "store",
    __name__,
    reads=("labels", "centres"),
    variants=host_variants(f"{CPU}:store", requires=("numpy",), warm_up=False),
    sink=True,
)


def build_graph(
    count: int, *, picture: str, clusters: int, iterations: int, block: int, dtype: str, seed: int
) -> TaskGraph:
    """Return the graph that clusters ``count`` pixels in blocks of ``block``."""
    graph = TaskGraph("kmeans")
    extents = {start: min(block, count - start) for start in range(0, count, block)}
    blocks, sums, labels = [], [], []
    for k, (start, extent) in enumerate(extents.items()):
        blocks.append(graph.data(f"pixels[{k}]", shape=(extent, 3), dtype="uint8"))
        sums.append(graph.data(f"sums[{k}]", shape=(clusters, FIELDS), dtype="int64"))
        labels.append(graph.data(f"labels[{k}]", shape=(extent,), dtype="int32"))
        graph.add(LOAD, name=f"load[{k}]", writes={"block": blocks[-1]}, params={"picture": picture, "start": start})
    centres = graph.data("centres", shape=(clusters, 3), dtype=dtype)
    graph.add(SEED, name="seed", writes={"centres": centres}, params={"picture": picture, "seed": seed})
    totals: dict[str, DataItem] = {}
    params = {"dtype": dtype}
    for iteration in range(iterations):
        for k, pixels in enumerate(blocks):
            graph.add(
                ACCUMULATE,
                name=f"accumulate[{k}].{iteration}",
                reads={"block": pixels, "centres": centres},
                writes={"sums": sums[k]},
                params=params,
            )
        total = _reduce(graph, sums, clusters, iteration, totals)
        graph.add(
            UPDATE, name=f"update.{iteration}", reads={"total": total}, writes={"centres": centres}, params=params
        )
    for k, pixels in enumerate(blocks):
        graph.add(
            ASSIGN,
            name=f"assign[{k}]",
            reads={"block": pixels, "centres": centres},
            writes={"labels": labels[k]},
            params=params,
        )
    graph.add(
        STORE,
        name="store",
        reads={"labels": labels, "centres": centres},
        params={"labels_path": OutputPath("labels.npy"), "centres_path": OutputPath("centres.npy")},
    )
    return graph


def _reduce(
    graph: TaskGraph, parts: list[DataItem], clusters: int, iteration: int, totals: dict[str, DataItem]
) -> DataItem:
    """Add the tree of additions of one iteration and return the item that holds the total."""
    level = 0
    while len(parts) > 1:
        above = []
        for group, start in enumerate(range(0, len(parts), FAN_IN)):
            taken = parts[start : start + FAN_IN]
            if len(taken) == 1:
                above.append(taken[0])
                continue
            name = f"total[{level},{group}]"
            if name not in totals:
                totals[name] = graph.data(name, shape=(clusters, FIELDS), dtype="int64")
            graph.add(
                REDUCE,
                name=f"reduce[{level},{group}].{iteration}",
                reads={"parts": taken},
                writes={"total": totals[name]},
            )
            above.append(totals[name])
        parts = above
        level += 1
    return parts[0]
