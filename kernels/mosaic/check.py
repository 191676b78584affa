"""The outside check: mosaic and planes against ``reproject`` and NumPy, the planes against those that were added.

The reference knows the files' own WCS through Astropy and interpolates with ``reproject``; of the application it takes
the common grid, the weights' definition and, for the pixels, the planes that the run found.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.app import CheckResult
from heterotask_core.errors import MissingExtraError
from kernels.mosaic.cpu_variants import MAX_WEIGHT
from kernels.mosaic.files import STRETCH, wcs_cards
from kernels.mosaic.geometry import Tangent
from kernels.mosaic.graph import shrunken, tile_path, tiles
from kernels.mosaic.layout import Box, Layout
from kernels.mosaic.sky import Recipe, all_made, background

Array = np.ndarray[Any, Any]

PIXEL_TOLERANCE = 3e-6
"""Largest error of a pixel as a share of the largest input value: some roundings of float32."""
PIXELS_PER_DIFFERENCE = 1_000_000
"""One pixel in so many may differ more: a weight changes by one where a distance is an integer but for rounding."""
PLANE_TOLERANCE = 60.0
"""Largest error of a background times the side of an image, grey values × pixels.

Two images sample the sky at other places, so bilinear interpolation smooths them differently: the difference at a pixel
is some grey values at a star, with either sign. It averages out over the n pixels of an overlap as 1/sqrt(n), which is
as one over the side. Seen from 6 to 100 images of 32 to 1024 pixels a side: 5 to 38. Offsets reach 50 grey values.
"""
FITTED_TOLERANCE = 1e-6
"""Largest distance from the reference's planes, as a share of the largest input value."""
MARGIN = 4
"""Pixels beyond an image's box in which the reference looks for values that the box should have held."""


def check_mosaic(
    paths: Sequence[Path], layout: Layout, output_dir: Path, *, tile: int, shrink: int, recipe: Recipe | None
) -> CheckResult:
    """Check what a run wrote about the images in ``paths``, which ``recipe`` made (None: the user's own)."""
    try:
        import reproject
        from astropy.io import fits
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(f"the check needs {error.name}: pip install 'heterotask[apps]'") from error
    del reproject
    boxes = tiles(layout, tile)
    names = [*(tile_path(cell) for cell in boxes), "preview.fits", "preview.png", "planes.npy"]
    for name in names:
        if not (output_dir / name).is_file():
            return CheckResult(False, f"{output_dir / name} is missing: the run wrote no result")
    images = [_Input(path) for path in paths]
    planes = np.load(output_dir / "planes.npy", allow_pickle=False)
    if planes.shape != (len(paths), 3):
        return CheckResult(False, f"planes.npy is {planes.shape}, not {(len(paths), 3)}")
    mosaic = np.full((layout.rows, layout.columns), np.nan, np.float32)
    for cell, box in boxes.items():
        pixels, header = fits.getdata(output_dir / tile_path(cell), header=True)
        if pixels.shape != (box.rows, box.columns):
            return CheckResult(False, f"{tile_path(cell)} is {pixels.shape}, not {(box.rows, box.columns)}")
        if not _same_place(header, layout.grid.moved(box.left, box.top)):
            return CheckResult(False, f"{tile_path(cell)} has another WCS than its place in the mosaic")
        mosaic[box.top : box.top + box.rows, box.left : box.left + box.columns] = pixels
    preview, header = fits.getdata(output_dir / "preview.fits", header=True)
    with Image.open(output_dir / "preview.png") as picture:
        grey = np.asarray(picture.convert("L"))
    peak = max(image.peak for image in images)
    expected, weights, fitted = _reference(images, layout, planes)
    findings = [
        _check_pixels(mosaic, expected, weights, peak),
        _check_fitted(images, layout, planes, fitted, peak),
        *([_check_known(images, layout, planes, recipe)] if recipe else []),
        _check_preview(mosaic, preview, header, shrunken(layout.grid, shrink), shrink, peak),
        _check_picture(preview, grey),
    ]
    passed = all(ok for ok, _ in findings)
    details = tuple(text for _, text in sorted(findings, key=lambda finding: finding[0]))
    return CheckResult(passed, "the mosaic is correct" if passed else "the mosaic is wrong", details)


class _Input:
    """An image as Astropy reads it."""

    def __init__(self, path: Path) -> None:
        from astropy.io import fits

        with warnings.catch_warnings(), fits.open(path) as file:
            warnings.simplefilter("ignore")
            hdu = next(h for h in file if h.is_image and h.data is not None)
            self.pixels = np.asarray(hdu.data, np.float64)
            self.wcs = _wcs(hdu.header)
        self.peak = float(np.abs(self.pixels[np.isfinite(self.pixels)]).max())

    def reprojected(self, grid: Tangent, box: Box) -> tuple[Array, Array]:
        """Return values (not a number outside) and weights on a box of the grid."""
        from reproject import reproject_interp

        y, x = np.indices(self.pixels.shape, np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values, sx, sy = reproject_interp(
                (np.stack([self.pixels, x, y]), self.wcs),
                _wcs(wcs_cards(grid.moved(box.left, box.top), self.frame)),
                shape_out=(box.rows, box.columns),
                order="bilinear",
                roundtrip_coords=False,
                return_footprint=False,
            )
        rows, columns = self.pixels.shape
        distance = np.minimum(np.minimum(sx, columns - 1 - sx), np.minimum(sy, rows - 1 - sy)) + 0.5
        return values, np.where(np.isfinite(values), np.minimum(np.ceil(distance), MAX_WEIGHT), 0.0)

    @property
    def frame(self) -> str:
        longitude = self.wcs.wcs.ctype[0][:4].strip("-")
        system = self.wcs.wcs.radesys.strip() or "ICRS"
        return f"{longitude} {system}" + (f" {self.wcs.wcs.equinox:g}" if system in ("FK4", "FK5") else "")

    def samples(self, grid: Tangent) -> tuple[Array, Array, Array, Array]:
        """Return x and y of some pixels, on the image and on the grid."""
        rows, columns = self.pixels.shape
        at = list(itertools.product(np.linspace(0, columns - 1, 5), np.linspace(0, rows - 1, 5)))
        x, y = np.array(at).T
        lon, lat = self.wcs.all_pix2world(x, y, 0)
        return x, y, *_wcs(wcs_cards(grid, self.frame)).all_world2pix(lon, lat, 0)


def _wcs(header: Any) -> Any:
    from astropy.io import fits
    from astropy.wcs import WCS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WCS(fits.Header(header) if isinstance(header, Mapping) else header)


def _same_place(header: Any, grid: Tangent) -> bool:
    cards = wcs_cards(grid)
    return all(
        abs(header[key] - cards[key]) <= 1e-9 * max(1.0, abs(cards[key]))
        for key in cards
        if key.startswith(("CRVAL", "CRPIX", "CD"))
    )


def _reference(images: Sequence[_Input], layout: Layout, planes: Array) -> tuple[Array, Array, Array]:
    """Return the mosaic with the run's planes taken off, its weights, and the planes that NumPy's least squares finds.

    An image is kept until its last partner has come.
    """
    count, scale = len(images), max(layout.rows, layout.columns)
    total, weights = np.zeros((2, layout.rows, layout.columns))
    system, right = np.zeros((3 * count, 3 * count)), np.zeros(3 * count)
    whole = Box(0, 0, layout.rows, layout.columns)
    row, column = layout.centre
    partners: dict[int, list[int]] = {k: [] for k in range(count)}
    last = dict.fromkeys(range(count), -1)
    for i, j, _ in layout.pairs:
        partners[j].append(i)
        last[i] = j
    kept: dict[int, tuple[Box, Array, Array]] = {}
    for k, (image, own, plane) in enumerate(zip(images, layout.boxes, planes, strict=True)):
        box = Box(own.top - MARGIN, own.left - MARGIN, own.rows + 2 * MARGIN, own.columns + 2 * MARGIN).common(whole)
        values, found = image.reprojected(layout.grid, box)
        here = _slices(box, whole)
        y, x = np.mgrid[here].astype(np.float64)
        level = values - (plane[0] + plane[1] * (x - column) + plane[2] * (y - row))
        total[here] += np.where(found > 0, level * found, 0.0)
        weights[here] += found
        for i in partners[k]:
            other, first, seen = kept[i]
            part = box.common(other)
            at, at_other = _slices(part, box), _slices(part, other)
            y, x = np.nonzero((found[at] > 0) & seen[at_other])
            basis = np.stack([np.ones(len(x)), (x + part.left - column) / scale, (y + part.top - row) / scale], axis=1)
            square, product = basis.T @ basis, basis.T @ (first[at_other][y, x] - values[at][y, x])
            p, q = np.s_[3 * i : 3 * i + 3], np.s_[3 * k : 3 * k + 3]
            for rows, columns, sign in ((p, p, 1), (q, q, 1), (p, q, -1), (q, p, -1)):
                system[rows, columns] += sign * square
            right[p] += product
            right[q] -= product
        kept[k] = box, values, found > 0
        kept = {i: entry for i, entry in kept.items() if last[i] > k}
    # What all planes have in common cannot be told from differences: their sum is held at zero.
    system += np.kron(np.ones((count, count)), np.eye(3)) * system.max() / count
    fitted = np.linalg.solve(system, right).reshape(count, 3) / [1.0, scale, scale]
    return total / np.where(weights > 0, weights, 1.0), weights, fitted


def _slices(box: Box, outer: Box) -> tuple[slice, slice]:
    top, left = box.within(outer)
    return slice(top, top + box.rows), slice(left, left + box.columns)


def _check_pixels(mosaic: Array, expected: Array, weights: Array, peak: float) -> tuple[bool, str]:
    seen, present = weights > 0, np.isfinite(mosaic)
    with np.errstate(invalid="ignore"):
        error = np.abs(mosaic - expected)
    error[~(seen & present)] = 0.0
    allowed = PIXEL_TOLERANCE * peak
    wrong = int(np.count_nonzero(error > allowed)) + int(np.count_nonzero(seen != present))
    limit = 1 + int(np.count_nonzero(seen)) // PIXELS_PER_DIFFERENCE
    rest = np.max(error, where=error <= allowed, initial=0.0)
    text = (
        f"{wrong} of {np.count_nonzero(seen)} pixels are more than {allowed:.1e} from reproject's mosaic "
        f"or covered by one only ({limit} allowed); the rest by up to {rest:.1e}"
    )
    return wrong <= limit, text


def _evaluated(plane: Array, layout: Layout, x: Array, y: Array) -> Array:
    row, column = layout.centre
    return np.asarray(plane[0] + plane[1] * (x - column) + plane[2] * (y - row))


def _check_known(images: Sequence[_Input], layout: Layout, planes: Array, recipe: Recipe) -> tuple[bool, str]:
    """Compare with the backgrounds that were added, at 25 pixels of each image, up to one plane for all."""
    left_over, at = [], []
    for image, plane, made in zip(images, planes, all_made(recipe), strict=True):
        x, y, grid_x, grid_y = image.samples(layout.grid)
        left_over.append(background(made.plane, x, y, recipe.size) - _evaluated(plane, layout, grid_x, grid_y))
        at.append(np.stack([np.ones_like(x), grid_x - layout.centre[1], grid_y - layout.centre[0]], axis=1))
    design, residual = np.concatenate(at), np.concatenate(left_over)
    common = np.linalg.lstsq(design, residual, rcond=None)[0]
    error = float(np.abs(residual - design @ common).max())
    allowed = PLANE_TOLERANCE / recipe.size
    text = f"backgrounds are up to {error:.1e} from those that were added, but for one plane ({allowed:.1e} allowed)"
    return error <= allowed, text


def _check_fitted(
    images: Sequence[_Input], layout: Layout, planes: Array, fitted: Array, peak: float
) -> tuple[bool, str]:
    """Compare with the planes of the reference, at 25 pixels of each image."""
    error = 0.0
    for image, plane, other in zip(images, planes, fitted, strict=True):
        _, _, x, y = image.samples(layout.grid)
        error = max(error, float(np.abs(_evaluated(plane - other, layout, x, y)).max()))
    allowed = FITTED_TOLERANCE * peak
    text = (
        f"backgrounds are up to {error:.1e} from NumPy's least squares on reproject's overlaps ({allowed:.1e} allowed)"
    )
    return error <= allowed, text


def _check_preview(
    mosaic: Array, preview: Array, header: Any, grid: Tangent, factor: int, peak: float
) -> tuple[bool, str]:
    rows, columns = (-(-n // factor) for n in mosaic.shape)
    padded = np.full((rows * factor, columns * factor), np.nan)
    padded[: mosaic.shape[0], : mosaic.shape[1]] = mosaic
    blocks = padded.reshape(rows, factor, columns, factor).swapaxes(1, 2).reshape(rows, columns, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.nanmean(blocks, axis=2)
    if preview.shape != expected.shape or not _same_place(header, grid):
        return False, f"preview.fits is {preview.shape} for {expected.shape}, or has another WCS than the mosaic"
    allowed = PIXEL_TOLERANCE * peak
    wrong = int(np.count_nonzero(~np.isclose(preview, expected, rtol=0.0, atol=allowed, equal_nan=True)))
    return wrong == 0, f"{wrong} of {preview.size} pixels of the preview are not the mean of the mosaic's (0 allowed)"


def _check_picture(preview: Array, grey: Array) -> tuple[bool, str]:
    if grey.shape != preview.shape:
        return False, f"preview.png is {grey.shape}, not {preview.shape}"
    black, white = np.nanpercentile(preview, STRETCH)
    expected = np.interp(np.nan_to_num(preview[::-1], nan=black), [black, white], [0.0, 255.0])
    wrong = int(np.count_nonzero(np.abs(grey - expected) > 1.0))
    return wrong == 0, f"{wrong} of {grey.size} pixels of preview.png are off by more than one grey (0 allowed)"
