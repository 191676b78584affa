"""The FFT kernels and the graph: rows of every band, all-to-all transpose in blocks, columns of every band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.fft2d import gpu_variants
from kernels.variants import Scratch, Supports, host_variants, source_variants

CPU = "kernels.fft2d.cpu_variants"
GPU = "kernels.fft2d.gpu_variants"


def _power_of_two(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    length = shapes["band"][1]
    return length & (length - 1) == 0


def _all(
    function: str,
    supports: Supports | None = None,
    scratch: Scratch | None = None,
) -> tuple[Variant, ...]:
    return (
        Variant("scipy", "cpu", f"{CPU}:{function}", requires=("scipy",), warm_up=True),
        Variant(
            "numba", "cpu", f"{CPU}:{function}_numba", requires=("numba",), warm_up=True, supports=supports, exact=False
        ),
        *source_variants(
            f"{GPU}:{function}", "kernels.fft2d:fft2d.cl", supports=supports, scratch=scratch, exact=False
        ),
    )


LOAD = Kernel(
    "load",
    __name__,
    writes=("band",),
    free_params=("row",),
    variants=host_variants(f"{CPU}:load", requires=("numpy",), warm_up=True),
)
ROWS = Kernel(
    "rows",
    __name__,
    reads=("band",),
    writes=("blocks",),
    variants=_all("rows", _power_of_two, gpu_variants.scratch_bytes),
)
TRANSPOSE = Kernel("transpose", __name__, reads=("block",), writes=("turned",), variants=_all("transpose"))
COLUMNS = Kernel(
    "columns",
    __name__,
    reads=("blocks",),
    writes=("band",),
    variants=_all("columns", _power_of_two, gpu_variants.scratch_bytes),
)
STORE = Kernel(
    "store",
    __name__,
    reads=("band",),
    variants=host_variants(f"{CPU}:store", requires=("numpy",), warm_up=False),
    sink=True,
)


def build_graph(size: int, *, band: int) -> TaskGraph:
    """Return the graph for a field of ``size``² in bands of ``band`` rows; the last may be smaller."""
    graph = TaskGraph("fft2d", exact=False)
    extents = [min(band, size - start) for start in range(0, size, band)]
    n = len(extents)
    blocks = [
        [graph.data(f"block[{i},{j}]", shape=(extents[i], extents[j]), dtype="complex64") for j in range(n)]
        for i in range(n)
    ]
    turned = [
        [graph.data(f"turned[{j},{i}]", shape=(extents[j], extents[i]), dtype="complex64") for i in range(n)]
        for j in range(n)
    ]
    for i, extent in enumerate(extents):
        field = graph.data(f"field[{i}]", shape=(extent, size), dtype="float32")
        graph.add(LOAD, name=f"load[{i}]", writes={"band": field}, params={"size": size, "row": i * band})
        graph.add(ROWS, name=f"rows[{i}]", reads={"band": field}, writes={"blocks": blocks[i]})
    for i in range(n):
        for j in range(n):
            graph.add(
                TRANSPOSE,
                name=f"transpose[{i},{j}]",
                reads={"block": blocks[i][j]},
                writes={"turned": turned[j][i]},
            )
    for j, extent in enumerate(extents):
        result = graph.data(f"spectrum[{j}]", shape=(extent, size), dtype="complex64")
        graph.add(COLUMNS, name=f"columns[{j}]", reads={"blocks": turned[j]}, writes={"band": result})
        graph.add(
            STORE, name=f"store[{j}]", reads={"band": result}, params={"path": OutputPath(f"columns-{j:04d}.npy")}
        )
    return graph
