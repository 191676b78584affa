"""A mosaic of overlapping sky images: parameters, graph and the outside check."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.errors import ApplicationError, MissingExtraError
from heterotask_core.graph import TaskGraph
from kernels.mosaic.check import check_mosaic
from kernels.mosaic.files import content_hash, read_folder
from kernels.mosaic.graph import Source, build_graph
from kernels.mosaic.layout import lay_out
from kernels.mosaic.sky import Recipe, all_made, image_file

MAX_PIECES = 1_000_000


class MosaicParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: str = Field("", description="folder of FITS images with TAN WCS; empty: made from a photograph")
    size: int = Field(1024, ge=16, le=16384, description="rows and columns of a made image, pixels")
    count: int = Field(24, ge=2, le=20_000, description="number of made images")
    seed: int = Field(1, ge=0, description="chooses rotations, shifts and backgrounds of made images")
    cache: str = Field("", description="folder for made images; empty: the user's cache folder")
    tile: int = Field(512, ge=16, le=16384, description="rows and columns of a tile of the mosaic, pixels")
    shrink: int = Field(
        4, ge=1, le=256, description="pixels of the mosaic to a pixel of the preview, in each direction"
    )


class Mosaic:
    """The application ``mosaic``; its results are FITS tiles, a preview (FITS, PNG) and the background planes."""

    name: ClassVar[str] = "mosaic"
    summary: ClassVar[str] = "Mosaic of overlapping FITS images: reproject, match backgrounds, co-add (as Montage)"
    Params: ClassVar[type[BaseModel]] = MosaicParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`ApplicationError` for unusable images or sizes."""
        if params.tile % params.shrink:
            raise ApplicationError(f"tile={params.tile} is no multiple of shrink={params.shrink}; choose one that is")
        sources, frame, unit = _sources(params)
        layout = lay_out([s.field for s in sources])
        pieces = sum((b.rows // params.tile + 2) * (b.columns // params.tile + 2) for b in layout.boxes)
        if pieces > MAX_PIECES:
            raise ApplicationError(
                f"tile={params.tile} cuts the images into over a million pieces; choose a larger tile"
            )
        return build_graph(sources, layout, tile=params.tile, shrink=params.shrink, frame=frame, unit=unit)

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare the mosaic with one by ``reproject``, and the background planes with those that were added."""
        sources, _, _ = _sources(params)
        recipe = None if params.images else Recipe(params.size, params.count, params.seed)
        paths = [
            Path(params.images) / s.field.name if recipe is None else image_file(params.cache, recipe, k)
            for k, s in enumerate(sources)
        ]
        layout = lay_out([s.field for s in sources])
        return check_mosaic(paths, layout, output_dir, tile=params.tile, shrink=params.shrink, recipe=recipe)


def _sources(params: Any) -> tuple[list[Source], str, str]:
    """Return the images, the frame of their WCS and the unit of their pixels."""
    if importlib.util.find_spec("astropy") is None:
        raise MissingExtraError("mosaic reads and writes FITS with Astropy: pip install 'heterotask[apps]'")
    if params.images:
        images = read_folder(str(Path(params.images).resolve()))
        sources = [Source(i.field, {"file": i.path, "content": i.content, "made": []}) for i in images]
        return sources, images[0].frame, images[0].unit
    recipe = Recipe(params.size, params.count, params.seed)
    cache = str(Path(params.cache).resolve()) if params.cache else ""
    sources = []
    for k, made in enumerate(all_made(recipe)):
        content = content_hash(image_file(cache, recipe, k))
        number = [params.size, params.count, params.seed, k]
        sources.append(Source(made.field, {"file": cache, "content": content, "made": number}))
    return sources, "RA ICRS", "count"


MOSAIC = Mosaic()
