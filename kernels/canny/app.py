"""Canny edge detection of a picture: parameters, graph and the outside check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.errors import ApplicationError, MissingExtraError
from heterotask_core.graph import TaskGraph
from kernels.canny.graph import build_graph
from kernels.canny.images import any_size, grey_image, picture_content, picture_shape
from kernels.canny.reference import canny_reference

PIXELS_PER_DIFFERENCE = 100_000
EDGES_PER_DIFFERENCE = 1_000


class CannyParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field("", description="PNG, JPEG or TIFF, up to 16 bits; empty: scikit-image's retina, mirrored")
    size: int = Field(4096, ge=3, le=65536, description="rows and columns of the built-in picture, pixels")
    tile: int = Field(1024, ge=16, le=16384, description="rows and columns of a tile, pixels")
    sigma: float = Field(1.4, ge=0.2, le=20.0, description="standard deviation of the Gaussian, pixels")
    low: float = Field(
        0.1, gt=0.0, le=10.0, description="gradient from which a pixel may join an edge (image in 0 to 1)"
    )
    high: float = Field(
        0.2, gt=0.0, le=10.0, description="gradient from which a pixel starts an edge (image in 0 to 1)"
    )


class Canny:
    """The application ``canny``; its result is ``edges.png``."""

    name: ClassVar[str] = "canny"
    summary: ClassVar[str] = "Edges of a picture (Canny), tiled, hysteresis across tiles"
    Params: ClassVar[type[BaseModel]] = CannyParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`ApplicationError` for an unusable picture or tile."""
        if params.low > params.high:
            raise ApplicationError(f"low={params.low} is above high={params.high}; low must not exceed high")
        radius = int(4.0 * params.sigma + 0.5)
        if params.tile < radius:
            raise ApplicationError(
                f"tile={params.tile} is smaller than the Gaussian's radius {radius}; choose a larger tile or less sigma"
            )
        image = str(Path(params.image).resolve()) if params.image else ""
        content = picture_content(image)
        rows, columns = picture_shape(image, params.size, content)
        return build_graph(
            rows,
            columns,
            image=image,
            content=content,
            size=params.size,
            tile=params.tile,
            sigma=params.sigma,
            low=params.low,
            high=params.high,
        )

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare ``edges.png`` with the untiled NumPy reference (equal) and with ``skimage.feature.canny``."""
        try:
            from PIL import Image
            from skimage import feature

            canny: Callable[..., Any] = feature.canny
        except ImportError as error:
            raise MissingExtraError(f"the check needs {error.name}: pip install 'heterotask[apps]'") from error
        path = output_dir / "edges.png"
        if not path.is_file():
            return CheckResult(False, f"{path} is missing: the run wrote no result")
        with any_size(), Image.open(path) as picture:
            edges = np.asarray(picture.convert("L"))
        image = str(Path(params.image).resolve()) if params.image else ""
        grey = grey_image(image, params.size, picture_content(image))
        own = canny_reference(grey, sigma=params.sigma, low=params.low, high=params.high)
        if edges.shape != own.shape:
            return CheckResult(False, f"edges.png is {edges.shape}, the picture {own.shape}")
        wrong = int(np.count_nonzero(edges != own))
        outside = canny(grey, sigma=params.sigma, low_threshold=params.low, high_threshold=params.high)
        differing = int(np.count_nonzero((edges > 0) != outside))
        found = int(np.count_nonzero(outside))
        close = differing * PIXELS_PER_DIFFERENCE <= grey.size and differing * EDGES_PER_DIFFERENCE <= found
        details = (
            f"{wrong} of {grey.size} pixels differ from the untiled NumPy reference (0 allowed)",
            f"{differing} pixels differ from skimage.feature.canny, which finds {found} edge pixels",
        )
        passed = wrong == 0 and close
        return CheckResult(passed, "edges.png is correct" if passed else "edges.png is wrong", details)


CANNY = Canny()
