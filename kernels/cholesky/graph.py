"""The Cholesky kernels and the tiled right-looking graph."""

from __future__ import annotations

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.cholesky.points import FEATURES
from kernels.variants import host_variants, typed_source_variants

HOST = "kernels.cholesky.host_variants"
NUMBA = "kernels.cholesky.numba_variants"
GPU = "kernels.cholesky.gpu_variants"
MODULES = {"numpy": "kernels.cholesky.numpy_variants"} | dict.fromkeys(
    ("blas", "lapack"), "kernels.cholesky.blas_variants"
)
"""Variant → module: a rank imports only what its tasks need."""


def _all(function: str, cpu_name: str) -> tuple[Variant, ...]:
    """BLAS sums in its own order, so only the first variant counts as exact."""
    return (
        Variant(cpu_name, "cpu", f"{MODULES[cpu_name]}:{function}", requires=("scipy",), warm_up=True),
        Variant("numba", "cpu", f"{NUMBA}:{function}", requires=("numba",), warm_up=True, exact=False),
        *typed_source_variants(f"{GPU}:{function}", "kernels.cholesky:cholesky.cl", exact=False),
    )


LOAD = Kernel(
    "load",
    __name__,
    writes=("points_block",),
    free_params=("start",),
    variants=host_variants(f"{HOST}:load", requires=("sklearn",), warm_up=True),
)
GRAM_DIAGONAL = Kernel(
    "gram_diagonal", __name__, reads=("left",), writes=("tile",), variants=_all("gram_diagonal", "numpy")
)
GRAM = Kernel("gram", __name__, reads=("left", "right"), writes=("tile",), variants=_all("gram", "numpy"))
POTRF = Kernel("potrf", __name__, updates=("tile",), free_params=("name",), variants=_all("potrf", "lapack"))
TRSM = Kernel("trsm", __name__, reads=("triangle",), updates=("tile",), variants=_all("trsm", "blas"))
SYRK = Kernel("syrk", __name__, reads=("panel",), updates=("tile",), variants=_all("syrk", "blas"))
GEMM = Kernel("gemm", __name__, reads=("left", "right"), updates=("tile",), variants=_all("gemm", "blas"))
STORE = Kernel(
    "store",
    __name__,
    reads=("tiles",),
    free_params=("row",),
    variants=host_variants(f"{HOST}:store", requires=("numpy",), warm_up=False),
    sink=True,
)


def build_graph(size: int, *, tile: int, dtype: str, gamma: float, jitter: float) -> TaskGraph:
    """Return the graph that factorises a matrix of ``size`` rows in tiles of ``tile``; the last may be smaller."""
    graph = TaskGraph("cholesky", exact=False)
    extents = [min(tile, size - start) for start in range(0, size, tile)]
    blocks = []
    for i, extent in enumerate(extents):
        block = graph.data(f"X[{i}]", shape=(extent, FEATURES), dtype=dtype)
        blocks.append(block)
        graph.add(LOAD, name=f"load[{i}]", writes={"points_block": block}, params={"size": size, "start": i * tile})
    a = {}
    for i, rows in enumerate(extents):
        for j, columns in enumerate(extents[: i + 1]):
            a[i, j] = graph.data(f"A[{i},{j}]", shape=(rows, columns), dtype=dtype)
            if i == j:
                graph.add(
                    GRAM_DIAGONAL,
                    name=f"gram[{i},{i}]",
                    reads={"left": blocks[i]},
                    writes={"tile": a[i, i]},
                    params={"gamma": gamma, "jitter": jitter, "dtype": dtype},
                )
            else:
                graph.add(
                    GRAM,
                    name=f"gram[{i},{j}]",
                    reads={"left": blocks[i], "right": blocks[j]},
                    writes={"tile": a[i, j]},
                    params={"gamma": gamma, "dtype": dtype},
                )
    params = {"dtype": dtype}
    n = len(extents)
    for k in range(n):
        graph.add(POTRF, name=f"potrf[{k}]", updates={"tile": a[k, k]}, params={"name": f"A[{k},{k}]", "dtype": dtype})
        for i in range(k + 1, n):
            graph.add(
                TRSM, name=f"trsm[{i},{k}]", reads={"triangle": a[k, k]}, updates={"tile": a[i, k]}, params=params
            )
        for i in range(k + 1, n):
            graph.add(SYRK, name=f"syrk[{i},{k}]", reads={"panel": a[i, k]}, updates={"tile": a[i, i]}, params=params)
            for j in range(k + 1, i):
                graph.add(
                    GEMM,
                    name=f"gemm[{i},{j},{k}]",
                    reads={"left": a[i, k], "right": a[j, k]},
                    updates={"tile": a[i, j]},
                    params=params,
                )
    for i in range(n):
        graph.add(
            STORE,
            name=f"store[{i}]",
            reads={"tiles": [a[i, j] for j in range(i + 1)]},
            params={"path": OutputPath(f"L-{i:04d}.npy"), "row": i},
        )
    return graph
