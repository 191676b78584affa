"""The Canny kernels and the tiled graph; strips of neighbouring tiles are data items of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heterotask_core.graph import DataItem, TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.canny import scratch
from kernels.canny.numpy_variants import OFFSETS
from kernels.canny.png import band_bytes

NUMPY = "kernels.canny.numpy_variants"
OPPOSITE = {"N": "S", "S": "N", "W": "E", "E": "W", "NW": "SE", "SE": "NW", "NE": "SW", "SW": "NE"}


Scratch = Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], int]


def _numpy(function: str) -> Variant:
    return Variant("numpy", "cpu", f"{NUMPY}:{function}", requires=("numpy", "scipy"), warm_up=True)


def _all(
    function: str, on_host: Scratch | None = None, on_device: Scratch | None = None, *, runs: bool = False
) -> tuple[Variant, ...]:
    """Return the variants of a kernel; ``runs``: another one for OpenCL devices that are CPUs, the profile decides."""
    gpu = f"kernels.canny.gpu_variants:{function}"
    source = "kernels.canny:canny.cl"
    with_runs = Variant(
        "opencl_runs", "opencl", f"{gpu}_runs", source=source, requires=("pyopencl",), scratch_bytes=on_device
    )
    return (
        _numpy(function),
        Variant(
            "numba",
            "cpu",
            f"kernels.canny.numba_variants:{function}",
            requires=("numba", "scipy"),
            warm_up=True,
            scratch_bytes=on_host,
        ),
        Variant("opencl", "opencl", gpu, source=source, requires=("pyopencl",), scratch_bytes=on_device),
        *((with_runs,) if runs else ()),
        Variant("cuda", "cuda", gpu, source=source, requires=("cupy",), scratch_bytes=on_device),
    )


def _file(function: str, warm_up: bool) -> tuple[Variant, ...]:
    """Input and output: the host's work, also for a rank that drives a device (where the node has no CPU device)."""
    path, needs = f"{NUMPY}:{function}", ("numpy", "scipy")
    return (
        Variant("numpy", "cpu", path, requires=needs, warm_up=warm_up),
        *(
            Variant(
                f"{kind}_host",
                kind,
                path,
                requires=(*needs, package),
                warm_up=warm_up,
                on_host=True,
                blocking=True,
            )
            for kind, package in (("opencl", "pyopencl"), ("cuda", "cupy"))
        ),
    )


WEIGHTS = Kernel("weights", __name__, writes=("taps", "row_mask", "column_mask"), variants=_all("weights"))
LOAD = Kernel("load", __name__, writes=("tile", "strips"), free_params=("row", "column"), variants=_file("load", True))
GAUSSIAN = Kernel(
    "gaussian",
    __name__,
    reads=("tile", "taps", "row_mask", "column_mask", "halo"),
    writes=("blurred", "strips"),
    free_params=("row", "column"),
    variants=_all("gaussian", scratch.padded_tile, scratch.blurred_lines, runs=True),
)
SOBEL = Kernel(
    "sobel",
    __name__,
    reads=("blurred", "halo"),
    writes=("down", "across", "magnitude", "strips"),
    variants=_all("sobel", scratch.ring, runs=True),
)
SUPPRESS = Kernel(
    "suppress",
    __name__,
    reads=("down", "across", "magnitude", "halo"),
    writes=("thin",),
    variants=_all("suppress", scratch.ring, runs=True),
)
THRESHOLD = Kernel("threshold", __name__, reads=("thin",), writes=("grade",), variants=_all("threshold"))
LABEL = Kernel(
    "label",
    __name__,
    reads=("grade",),
    writes=("labels", "frame"),
    variants=_all("label", scratch.labels, scratch.labels),
)
MERGE = Kernel(
    "merge",
    __name__,
    reads=("first", "second"),
    writes=("union",),
    variants=_all("merge", scratch.frames, scratch.frames),
)
SPREAD = Kernel(
    "spread",
    __name__,
    reads=("whole", "first", "second"),
    writes=("first_final", "second_final"),
    variants=_all("spread", scratch.frames, scratch.frames),
)
APPLY = Kernel(
    "apply",
    __name__,
    reads=("labels", "frame"),
    writes=("edges",),
    variants=_all("apply", scratch.flags, scratch.flags),
)
ENCODE = Kernel("encode", __name__, reads=("tiles",), writes=("band",), variants=_file("encode", True))
STORE = Kernel("store", __name__, reads=("bands",), variants=_file("store", False), sink=True)

Cell = tuple[int, int]


@dataclass(frozen=True)
class Block:
    """A rectangle of tiles in the merge tree: its extent in pixels, its frame, and its two halves."""

    name: str
    rows: int
    columns: int
    frame: DataItem
    halves: tuple[Block, Block] | None
    cell: Cell
    stacked: bool


def neighbours(cell: Cell, cells: Iterable[Cell]) -> list[str]:
    """Return the sides on which ``cell`` has a neighbour."""
    present = set(cells)
    return [side for side, (down, right) in OFFSETS.items() if (cell[0] + down, cell[1] + right) in present]


class CannyGraph:
    """Builds the graph of one picture of ``rows`` × ``columns`` pixels in tiles of ``tile``."""

    def __init__(self, rows: int, columns: int, tile: int) -> None:
        """Lay out the tiles; the last row and column of tiles may be partial."""
        self.graph = TaskGraph("canny")
        self.rows, self.columns = rows, columns
        self.cells = {
            (i, j): (top, left, min(tile, rows - top), min(tile, columns - left))
            for i, top in enumerate(range(0, rows, tile))
            for j, left in enumerate(range(0, columns, tile))
        }
        self.sides = {cell: neighbours(cell, self.cells) for cell in self.cells}

    def item(self, name: str, cell: Cell, dtype: str = "float32") -> DataItem:
        """Declare a data item of the tile's shape."""
        return self.graph.data(f"{name}[{cell[0]},{cell[1]}]", shape=self.cells[cell][2:], dtype=dtype)

    def strips(self, name: str, cell: Cell, depth: int) -> dict[str, DataItem]:
        """Declare the strips that a tile gives its neighbours, by the side on which they lie."""
        _, _, rows, columns = self.cells[cell]
        return {
            side: self.graph.data(
                f"{name}.{side}[{cell[0]},{cell[1]}]",
                shape=(
                    min(depth, rows) if OFFSETS[side][0] else rows,
                    min(depth, columns) if OFFSETS[side][1] else columns,
                ),
                dtype="float32",
            )
            for side in self.sides[cell]
        }

    def halo(self, strips: dict[Cell, dict[str, DataItem]], cell: Cell) -> list[DataItem]:
        """Return the neighbours' strips that lie around a tile, in the order of its sides."""
        return [
            strips[cell[0] + OFFSETS[side][0], cell[1] + OFFSETS[side][1]][OPPOSITE[side]] for side in self.sides[cell]
        ]

    def block(self, frames: dict[Cell, DataItem], rows: range, columns: range) -> Block:
        """Add the merges of a rectangle of tiles, halving its longer side; return its block."""
        cell = (rows.start, columns.start)
        if len(rows) == len(columns) == 1:
            return Block(f"{cell[0]},{cell[1]}", *self.cells[cell][2:], frames[cell], None, cell, False)
        stacked = len(rows) >= len(columns)
        half = (len(rows) if stacked else len(columns)) // 2
        first = self.block(frames, rows[:half] if stacked else rows, columns if stacked else columns[:half])
        second = self.block(frames, rows[half:] if stacked else rows, columns if stacked else columns[half:])
        extent = (first.rows + second.rows, first.columns) if stacked else (first.rows, first.columns + second.columns)
        name = f"{rows.start}:{rows.stop},{columns.start}:{columns.stop}"
        union = self.graph.data(f"frame[{name}]", shape=(2 * sum(extent),), dtype="int32")
        self.graph.add(
            MERGE,
            name=f"merge[{name}]",
            reads={"first": first.frame, "second": second.frame},
            writes={"union": union},
            params=_join_params(first, second, stacked),
        )
        return Block(name, *extent, union, (first, second), cell, stacked)

    def spread(self, block: Block, final: DataItem, finals: dict[Cell, DataItem]) -> None:
        """Add the tasks that carry a block's final frame down to its tiles."""
        if block.halves is None:
            finals[block.cell] = final
            return
        first, second = block.halves
        ends = [self.graph.data(f"final[{b.name}]", shape=b.frame.shape, dtype="int32") for b in block.halves]
        self.graph.add(
            SPREAD,
            name=f"spread[{block.name}]",
            reads={"whole": final, "first": first.frame, "second": second.frame},
            writes={"first_final": ends[0], "second_final": ends[1]},
            params=_join_params(first, second, block.stacked),
        )
        self.spread(first, ends[0], finals)
        self.spread(second, ends[1], finals)


def _join_params(first: Block, second: Block, stacked: bool) -> dict[str, object]:
    return {
        "first_shape": [first.rows, first.columns],
        "second_shape": [second.rows, second.columns],
        "stacked": stacked,
    }


def build_graph(
    rows: int,
    columns: int,
    *,
    image: str,
    content: str,
    size: int,
    tile: int,
    sigma: float,
    low: float,
    high: float,
) -> TaskGraph:
    """Return the graph for a picture of ``rows`` × ``columns`` pixels.

    ``content`` is a hash of the picture: another one makes another graph, whose plan and profile are its own.
    """
    layout = CannyGraph(rows, columns, tile)
    graph = layout.graph
    radius = int(4.0 * sigma + 0.5)
    taps = graph.data("taps", shape=(radius + 1,), dtype="float32")
    row_mask = graph.data("row_mask", shape=(rows,), dtype="float32")
    column_mask = graph.data("column_mask", shape=(columns,), dtype="float32")
    graph.add(
        WEIGHTS,
        name="weights",
        writes={"taps": taps, "row_mask": row_mask, "column_mask": column_mask},
        params={"sigma": sigma},
    )

    def each(name: str, add: Callable[[Cell, str, str], None]) -> None:
        for cell in layout.cells:
            add(cell, f"{name}[{cell[0]},{cell[1]}]", ",".join(layout.sides[cell]))

    cells = layout.cells
    pixels = {cell: layout.item("pixels", cell) for cell in cells}
    pixel_strips = {cell: layout.strips("pixels", cell, radius) for cell in cells}
    blurred = {cell: layout.item("blurred", cell) for cell in cells}
    blurred_strips = {cell: layout.strips("blurred", cell, 1) for cell in cells}
    magnitude = {cell: layout.item("magnitude", cell) for cell in cells}
    magnitude_strips = {cell: layout.strips("magnitude", cell, 1) for cell in cells}
    down = {cell: layout.item("down", cell) for cell in cells}
    across = {cell: layout.item("across", cell) for cell in cells}
    labels = {cell: layout.item("labels", cell, "int32") for cell in cells}
    edges = {cell: layout.item("edges", cell, "uint8") for cell in cells}
    frames = {
        cell: graph.data(f"frame[{cell[0]},{cell[1]}]", shape=(2 * sum(cells[cell][2:]),), dtype="int32")
        for cell in cells
    }

    def load(cell: Cell, name: str, sides: str) -> None:
        graph.add(
            LOAD,
            name=name,
            writes={"tile": pixels[cell], "strips": list(pixel_strips[cell].values())},
            params={
                "image": image,
                "content": content,
                "size": size,
                "row": cells[cell][0],
                "column": cells[cell][1],
                "sides": sides,
            },
        )

    def blur(cell: Cell, name: str, sides: str) -> None:
        graph.add(
            GAUSSIAN,
            name=name,
            reads={
                "tile": pixels[cell],
                "taps": taps,
                "row_mask": row_mask,
                "column_mask": column_mask,
                "halo": layout.halo(pixel_strips, cell),
            },
            writes={"blurred": blurred[cell], "strips": list(blurred_strips[cell].values())},
            params={"row": cells[cell][0], "column": cells[cell][1], "sides": sides},
        )

    def gradient(cell: Cell, name: str, sides: str) -> None:
        graph.add(
            SOBEL,
            name=name,
            reads={"blurred": blurred[cell], "halo": layout.halo(blurred_strips, cell)},
            writes={
                "down": down[cell],
                "across": across[cell],
                "magnitude": magnitude[cell],
                "strips": list(magnitude_strips[cell].values()),
            },
            params={"sides": sides},
        )

    def components(cell: Cell, name: str, sides: str) -> None:
        thin, grade = layout.item("thin", cell), layout.item("grade", cell, "uint8")
        graph.add(
            SUPPRESS,
            name=f"suppress{name}",
            reads={
                "down": down[cell],
                "across": across[cell],
                "magnitude": magnitude[cell],
                "halo": layout.halo(magnitude_strips, cell),
            },
            writes={"thin": thin},
            params={"sides": sides},
        )
        graph.add(
            THRESHOLD,
            name=f"threshold{name}",
            reads={"thin": thin},
            writes={"grade": grade},
            params={"low": low, "high": high},
        )
        graph.add(
            LABEL,
            name=f"label{name}",
            reads={"grade": grade},
            writes={"labels": labels[cell], "frame": frames[cell]},
        )

    each("load", load)
    each("gaussian", blur)
    each("sobel", gradient)
    each("", components)
    last = max(cells)
    root = layout.block(frames, range(last[0] + 1), range(last[1] + 1))
    finals: dict[Cell, DataItem] = {}
    layout.spread(root, root.frame, finals)
    for cell in cells:
        graph.add(
            APPLY,
            name=f"apply[{cell[0]},{cell[1]}]",
            reads={"labels": labels[cell], "frame": finals[cell]},
            writes={"edges": edges[cell]},
        )
    bands: list[DataItem] = []
    heights: list[int] = []
    for i in range(last[0] + 1):
        row = [edges[i, j] for j in range(last[1] + 1)]
        heights.append(row[0].shape[0])
        bands.append(graph.data(f"band[{i}]", shape=(band_bytes(heights[-1], columns),), dtype="uint8"))
        graph.add(ENCODE, name=f"encode[{i}]", reads={"tiles": row}, writes={"band": bands[-1]})
    graph.add(
        STORE,
        name="store",
        reads={"bands": bands},
        params={"heights": heights, "columns": columns, "path": OutputPath("edges.png")},
    )
    return graph
