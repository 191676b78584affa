"""The mosaic kernels and the graph: wide, irregular, and serial where the background model is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterotask_core.graph import DataItem, TaskGraph
from heterotask_core.kernel import Kernel, OutputPath, Variant
from kernels.mosaic import gpu_variants
from kernels.mosaic.files import wcs_cards
from kernels.mosaic.geometry import Tangent
from kernels.mosaic.layout import Box, Field, Layout, source_matrix
from kernels.variants import Scratch, host_variants, source_variants

CPU = "kernels.mosaic.cpu_variants"
NUMBA = "kernels.mosaic.numba_variants"
GPU = "kernels.mosaic.gpu_variants"


def _all(function: str, scratch: Scratch | None = None) -> tuple[Variant, ...]:
    """Return the variants of a pixel kernel; all give the same bits."""
    return (
        Variant("numpy", "cpu", f"{CPU}:{function}", requires=("numpy",), warm_up=True),
        Variant("numba", "cpu", f"{NUMBA}:{function}", requires=("numba",), warm_up=True),
        *source_variants(f"{GPU}:{function}", "kernels.mosaic:mosaic.cl", scratch=scratch),
    )


LOAD = Kernel(
    "load",
    __name__,
    writes=("pixels",),
    free_params=("file", "content", "made"),
    variants=host_variants(f"{CPU}:load", requires=("astropy",), warm_up=True),
)
REPROJECT = Kernel(
    "reproject",
    __name__,
    reads=("pixels",),
    writes=("area", "weight"),
    free_params=("matrix",),
    variants=_all("reproject"),
)
FIT = Kernel(
    "fit",
    __name__,
    reads=("first", "first_weight", "second", "second_weight"),
    writes=("sums",),
    free_params=("first_start", "second_start"),
    variants=_all("fit", gpu_variants.fit_scratch),
)
SOLVE = Kernel(
    "solve",
    __name__,
    reads=("sums",),
    writes=("planes",),
    variants=host_variants("kernels.mosaic.solve:solve", requires=("scipy",), warm_up=False),
)
CORRECT = Kernel(
    "correct",
    __name__,
    reads=("area", "weight", "planes"),
    writes=("pieces", "piece_weights"),
    free_params=("index", "start", "cuts"),
    variants=_all("correct"),
)
COADD = Kernel(
    "coadd",
    __name__,
    reads=("pieces", "piece_weights"),
    writes=("tile", "covered"),
    free_params=("places",),
    variants=_all("coadd", gpu_variants.coadd_scratch),
)
SHRINK = Kernel(
    "shrink", __name__, reads=("tile", "covered"), writes=("small", "small_covered"), variants=_all("shrink")
)
STORE_TILE = Kernel(
    "store_tile",
    __name__,
    reads=("tile", "covered"),
    free_params=("cards",),
    variants=host_variants(f"{CPU}:store_tile", requires=("astropy",), warm_up=False),
    sink=True,
)
STORE_PREVIEW = Kernel(
    "store_preview",
    __name__,
    reads=("smalls", "small_covered", "planes"),
    variants=host_variants(f"{CPU}:store_preview", requires=("astropy", "PIL"), warm_up=False),
    sink=True,
)


@dataclass(frozen=True)
class Source:
    """An image and where its pixels come from: the parameters of its loading task."""

    field: Field
    params: Mapping[str, Any]


Cell = tuple[int, int]


def tile_path(cell: Cell) -> str:
    """Return the name of a tile's result file."""
    return f"mosaic-{cell[0]:03d}-{cell[1]:03d}.fits"


def tiles(layout: Layout, tile: int) -> dict[Cell, Box]:
    """Return the tiles of the mosaic on which an image lies, row by row; the last ones may be smaller."""
    found = {
        (i, j): Box(top, left, min(tile, layout.rows - top), min(tile, layout.columns - left))
        for i, top in enumerate(range(0, layout.rows, tile))
        for j, left in enumerate(range(0, layout.columns, tile))
    }
    used = {cell for box in layout.boxes for cell in _under(box, tile)}
    return {cell: box for cell, box in found.items() if cell in used}


def _under(box: Box, tile: int) -> list[Cell]:
    rows = range(box.top // tile, (box.top + box.rows - 1) // tile + 1)
    columns = range(box.left // tile, (box.left + box.columns - 1) // tile + 1)
    return [(i, j) for i in rows for j in columns]


def build_graph(
    sources: Sequence[Source], layout: Layout, *, tile: int, shrink: int, frame: str = "RA ICRS", unit: str = ""
) -> TaskGraph:
    """Return the graph that makes a mosaic of ``sources`` in tiles of ``tile`` pixels, a multiple of ``shrink``."""
    graph = TaskGraph("mosaic")
    boxes = layout.boxes
    areas, weights = _reprojected(graph, sources, layout)
    row, column = layout.centre
    sums: list[DataItem] = []
    for i, j, box in layout.pairs:
        sums.append(graph.data(f"sums[{i},{j}]", shape=(9,), dtype="float64"))
        graph.add(
            FIT,
            name=f"fit[{i},{j}]",
            reads={"first": areas[i], "first_weight": weights[i], "second": areas[j], "second_weight": weights[j]},
            writes={"sums": sums[-1]},
            params={
                "first_start": box.within(boxes[i]),
                "second_start": box.within(boxes[j]),
                "extent": [box.rows, box.columns],
            },
        )
    planes = graph.data("planes", shape=(len(sources), 3), dtype="float64")
    graph.add(
        SOLVE,
        name="solve",
        reads={"sums": sums},
        writes={"planes": planes},
        params={
            "pairs": [[i, j] for i, j, _ in layout.pairs],
            "origins": [[b.top + b.rows // 2 - row, b.left + b.columns // 2 - column] for _, _, b in layout.pairs],
            "names": [s.field.name for s in sources],
        },
    )
    places = tiles(layout, tile)
    parts: dict[Cell, list[tuple[DataItem, DataItem, Box]]] = {cell: [] for cell in places}
    for k, box in enumerate(boxes):
        pieces = []
        for cell in _under(box, tile):
            part = places[cell].common(box)
            shape, name = (part.rows, part.columns), f"[{k},{cell[0]},{cell[1]}]"
            piece = graph.data(f"piece{name}", shape=shape, dtype="float32")
            pieces.append((piece, graph.data(f"piece_weight{name}", shape=shape, dtype="uint8"), part))
            parts[cell].append(pieces[-1])
        graph.add(
            CORRECT,
            name=f"correct[{k}]",
            reads={"area": areas[k], "weight": weights[k], "planes": planes},
            writes={"pieces": [p for p, _, _ in pieces], "piece_weights": [w for _, w, _ in pieces]},
            params={
                "index": k,
                "start": [box.top - row, box.left - column],
                "cuts": [part.within(box) for _, _, part in pieces],
            },
        )

    def cards(grid: Tangent) -> dict[str, Any]:
        return {**wcs_cards(grid, frame), **({"BUNIT": unit} if unit else {})}

    smalls, small_covered = [], []
    for cell, box in places.items():
        name, shape = f"[{cell[0]},{cell[1]}]", (box.rows, box.columns)
        whole = graph.data(f"tile{name}", shape=shape, dtype="float32")
        covered = graph.data(f"covered{name}", shape=shape, dtype="uint8")
        graph.add(
            COADD,
            name=f"coadd{name}",
            reads={"pieces": [p for p, _, _ in parts[cell]], "piece_weights": [w for _, w, _ in parts[cell]]},
            writes={"tile": whole, "covered": covered},
            params={"places": [part.within(box) for _, _, part in parts[cell]]},
        )
        graph.add(
            STORE_TILE,
            name=f"store{name}",
            reads={"tile": whole, "covered": covered},
            params={"path": OutputPath(tile_path(cell)), "cards": cards(layout.grid.moved(box.left, box.top))},
        )
        shape = (-(-box.rows // shrink), -(-box.columns // shrink))
        smalls.append(graph.data(f"small{name}", shape=shape, dtype="float32"))
        small_covered.append(graph.data(f"small_covered{name}", shape=shape, dtype="uint8"))
        graph.add(
            SHRINK,
            name=f"shrink{name}",
            reads={"tile": whole, "covered": covered},
            writes={"small": smalls[-1], "small_covered": small_covered[-1]},
            params={"factor": shrink},
        )
    graph.add(
        STORE_PREVIEW,
        name="store preview",
        reads={"smalls": smalls, "small_covered": small_covered, "planes": planes},
        params={
            "places": [[box.top // shrink, box.left // shrink] for box in places.values()],
            "shape": [-(-layout.rows // shrink), -(-layout.columns // shrink)],
            "fits_path": OutputPath("preview.fits"),
            "png_path": OutputPath("preview.png"),
            "planes_path": OutputPath("planes.npy"),
            "cards": cards(shrunken(layout.grid, shrink)),
        },
    )
    return graph


def shrunken(grid: Tangent, factor: int) -> Tangent:
    """Return the projection of a grid whose pixels are squares of ``factor`` pixels a side."""
    (a, b), (c, d) = grid.cd
    x, y = ((p - 0.5) / factor + 0.5 for p in grid.crpix)
    return Tangent(grid.crval, (x, y), ((a * factor, b * factor), (c * factor, d * factor)))


def _reprojected(graph: TaskGraph, sources: Sequence[Source], layout: Layout) -> tuple[list[DataItem], list[DataItem]]:
    areas, weights = [], []
    for k, (source, box) in enumerate(zip(sources, layout.boxes, strict=True)):
        field, shape = source.field, (box.rows, box.columns)
        pixels = graph.data(f"pixels[{k}]", shape=(field.rows, field.columns), dtype="float32")
        areas.append(graph.data(f"area[{k}]", shape=shape, dtype="float32"))
        weights.append(graph.data(f"weight[{k}]", shape=shape, dtype="uint8"))
        graph.add(LOAD, name=f"load[{k}]", writes={"pixels": pixels}, params=source.params)
        graph.add(
            REPROJECT,
            name=f"reproject[{k}]",
            reads={"pixels": pixels},
            writes={"area": areas[-1], "weight": weights[-1]},
            params={"matrix": source_matrix(field, layout, box)},
        )
    return areas, weights
