"""The heat kernels and the graph: tiles × steps, edges of neighbouring tiles as data items of their own."""

from __future__ import annotations

from heterotask_core.graph import DataItem, TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.heat.field import SIDES
from kernels.variants import host_variants, source_variants

CPU = "kernels.heat.cpu_variants"
OFFSETS = {"N": (-1, 0), "S": (1, 0), "W": (0, -1), "E": (0, 1)}
OPPOSITE = {"N": "S", "S": "N", "W": "E", "E": "W"}

Cell = tuple[int, int]


LOAD = Kernel(
    "load",
    __name__,
    writes=("field", "strips"),
    free_params=("row", "column"),
    variants=host_variants(f"{CPU}:load", requires=("skimage",), warm_up=True),
)
STEP = Kernel(
    "step",
    __name__,
    reads=("field", "halo"),
    writes=("next", "strips"),
    variants=(
        Variant("numpy", "cpu", f"{CPU}:step", requires=("numpy",), warm_up=True),
        Variant("numba", "cpu", f"{CPU}:step_numba", requires=("numba",), warm_up=True),
        *source_variants("kernels.heat.gpu_variants:step", "kernels.heat:heat.cl"),
    ),
)
STORE = Kernel(
    "store",
    __name__,
    reads=("field",),
    variants=host_variants(f"{CPU}:store", requires=("numpy",), warm_up=False),
    sink=True,
)


def tile_path(cell: Cell) -> str:
    """Return the name of a tile's result file."""
    return f"field-{cell[0]:03d}-{cell[1]:03d}.npy"


def cells(size: int, tile: int) -> dict[Cell, tuple[int, int, int, int]]:
    """Return tile → (first row, first column, rows, columns); the last of a row or column may be smaller."""
    starts = list(enumerate(range(0, size, tile)))
    return {
        (i, j): (top, left, min(tile, size - top), min(tile, size - left)) for i, top in starts for j, left in starts
    }


def build_graph(size: int, *, tile: int, steps: int, alpha: float) -> TaskGraph:
    """Return the graph of ``steps`` steps on a grid of ``size`` × ``size`` cells."""
    graph = TaskGraph("heat")
    extents = cells(size, tile)
    sides = {
        cell: "".join(s for s in SIDES if (cell[0] + OFFSETS[s][0], cell[1] + OFFSETS[s][1]) in extents)
        for cell in extents
    }
    # Two items each: a step reads the ones and writes the others.
    fields: dict[tuple[Cell, int], DataItem] = {}
    strips: dict[tuple[Cell, str, int], DataItem] = {}
    for cell, (_, _, rows, columns) in extents.items():
        for parity, kind in enumerate(("even", "odd")):
            name = f"{kind}[{cell[0]},{cell[1]}]"
            fields[cell, parity] = graph.data(name, shape=(rows, columns), dtype="float32")
            for side in sides[cell]:
                shape = (columns if side in "NS" else rows,)
                strips[cell, side, parity] = graph.data(f"edge.{side}.{name}", shape=shape, dtype="float32")

    def own(cell: Cell, parity: int) -> list[DataItem]:
        return [strips[cell, side, parity] for side in sides[cell]]

    def halo(cell: Cell, parity: int) -> list[DataItem]:
        return [
            strips[(cell[0] + OFFSETS[side][0], cell[1] + OFFSETS[side][1]), OPPOSITE[side], parity]
            for side in sides[cell]
        ]

    for cell, (top, left, _, _) in extents.items():
        graph.add(
            LOAD,
            name=f"load[{cell[0]},{cell[1]}]",
            writes={"field": fields[cell, 0], "strips": own(cell, 0)},
            params={"size": size, "row": top, "column": left, "sides": sides[cell]},
        )
    for k in range(steps):
        now, then = k % 2, (k + 1) % 2
        for cell in extents:
            graph.add(
                STEP,
                name=f"step[{cell[0]},{cell[1]},{k}]",
                reads={"field": fields[cell, now], "halo": halo(cell, now)},
                writes={"next": fields[cell, then], "strips": own(cell, then)},
                params={"sides": sides[cell], "alpha": alpha},
            )
    for cell in extents:
        graph.add(
            STORE,
            name=f"store[{cell[0]},{cell[1]}]",
            reads={"field": fields[cell, steps % 2]},
            params={"path": OutputPath(tile_path(cell))},
        )
    return graph
