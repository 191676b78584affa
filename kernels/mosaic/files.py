"""FITS files: geometry and pixels in, mosaic tiles out, previews as PNG."""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ApplicationError, MissingExtraError
from kernels.mosaic.geometry import Tangent, direction
from kernels.mosaic.layout import Field

Array = np.ndarray[Any, Any]

SUFFIXES = (".fits", ".fit", ".fts", ".fits.gz")
LEAST_SIDE = 16
TOLERANCE = 0.01
"""How far a file's WCS may deviate from a plain TAN projection, pixels."""
STRETCH = (1.0, 99.5)
"""Percentiles of the mosaic that are black and white in the preview."""


@dataclass(frozen=True)
class Image:
    """A FITS image: file, hash of its bytes, geometry; frame and unit must agree among images.

    ``frame`` names longitude, system and equinox: "RA ICRS", "RA FK5 2000", "GLON ICRS".
    """

    path: str
    content: str
    field: Field
    frame: str
    unit: str


def content_hash(path: Path) -> str:
    """Return a hash of a file's bytes; raises :class:`ApplicationError`."""
    return hashlib.sha256(_bytes(path)).hexdigest()[:16]


def read_folder(images: str) -> list[Image]:
    """Return the images of all FITS files of a folder, sorted by name.

    Raises:
        ApplicationError: no folder, fewer than two files, a file that is unreadable or does not fit the others.
    """
    folder = Path(images)
    if not folder.is_dir():
        raise ApplicationError(f"images={images!r} is not a folder; give a folder of FITS files")
    paths = sorted(p for p in folder.iterdir() if p.name.lower().endswith(SUFFIXES) and p.is_file())
    if len(paths) < 2:
        raise ApplicationError(f"images={images!r} holds {len(paths)} FITS files; a mosaic needs two or more")
    found = [read_image(path) for path in paths]
    for image in found[1:]:
        for what, own, first in (("frame", image.frame, found[0].frame), ("BUNIT", image.unit, found[0].unit)):
            if own != first:
                raise ApplicationError(
                    f"image {image.path!r} has {what} {own!r}, but {found[0].path!r} has {first!r}; convert one of them"
                )
    return found


def read_image(path: Path) -> Image:
    """Return a file's image; raises :class:`ApplicationError` naming the file."""
    data = _bytes(path)
    pixels, header = _decoded(data, path)
    if min(pixels.shape) < LEAST_SIDE:
        raise ApplicationError(f"image {str(path)!r} is {pixels.shape}; a mosaic needs {LEAST_SIDE} pixels a side")
    if not np.isfinite(pixels).any():
        raise ApplicationError(f"image {str(path)!r} has no finite pixel; leave it out")
    rows, columns = pixels.shape
    tangent, frame = _tangent(header, path, rows, columns)
    content = hashlib.sha256(data).hexdigest()[:16]
    return Image(str(path), content, Field(path.name, tangent, rows, columns), frame, header.get("BUNIT", ""))


def read_pixels(path: Path, content: str) -> Array:
    """Return a file's pixels, float32 of (rows, columns), first row at the bottom.

    Raises:
        ApplicationError: the file is unreadable, or another one than when ``content`` was its hash.
    """
    data = _bytes(path)
    if hashlib.sha256(data).hexdigest()[:16] != content:
        raise ApplicationError(f"image {str(path)!r} has changed since the task graph was built; run again")
    return _decoded(data, path)[0]


def wcs_cards(tangent: Tangent, frame: str = "RA ICRS") -> dict[str, Any]:
    """Return the header cards of a TAN projection; ``frame`` as in :class:`Image`."""
    longitude, system, *equinox = frame.split()
    cards: dict[str, Any] = {"RADESYS": system}
    if equinox:
        cards["EQUINOX"] = float(equinox[0])
    latitude = "DEC" if longitude == "RA" else f"{longitude[0]}LAT"
    for k, kind in enumerate((longitude, latitude)):
        axis = k + 1
        cards |= {f"CTYPE{axis}": f"{kind:-<4}-TAN", f"CUNIT{axis}": "deg"}
        cards |= {f"CRVAL{axis}": tangent.crval[k], f"CRPIX{axis}": tangent.crpix[k]}
        cards |= {f"CD{axis}_{m + 1}": tangent.cd[k][m] for m in range(2)}
    return cards


def fits_bytes(pixels: Array, cards: Mapping[str, Any]) -> bytes:
    """Return a FITS file of one image."""
    fits = _fits()
    header = fits.Header()
    for key, value in cards.items():
        header[key] = value
    file = io.BytesIO()
    fits.PrimaryHDU(pixels, header).writeto(file)
    return file.getvalue()


def preview_png(mean: Array, covered: Array) -> bytes:
    """Return the PNG of a mosaic: first row at the bottom, grey between two percentiles, black where nothing is."""
    from PIL import Image as Pillow

    grey = np.zeros(mean.shape, np.uint8)
    seen = covered > 0
    if seen.any():
        black, white = np.percentile(mean[seen], STRETCH)
        span = white - black if white > black else 1.0
        grey[seen] = np.clip((mean[seen] - black) * (255.0 / span), 0.0, 255.0).astype(np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(grey[::-1]).save(file, "PNG")
    return file.getvalue()


def _fits() -> Any:
    try:
        from astropy.io import fits
    except ImportError as error:
        raise MissingExtraError("FITS files need Astropy: pip install 'heterotask[apps]'") from error
    return fits


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApplicationError(f"image {str(path)!r} cannot be read: {error.strerror}; check the file") from error


def _decoded(data: bytes, path: Path) -> tuple[Array, Any]:
    """Return pixels and header of the first image in a file."""
    fits = _fits()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A torn file is no more than a warning to Astropy, with zeros for what is missing.
            warnings.filterwarnings("error", message=".*truncated")
            with fits.open(io.BytesIO(data), lazy_load_hdus=False, memmap=False) as file:
                image = next((hdu for hdu in file if hdu.is_image and hdu.data is not None), None)
                pixels = None if image is None else np.asarray(image.data)
                header = None if image is None else image.header.copy()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ApplicationError(f"image {str(path)!r} cannot be read as FITS: {reason}") from error
    if pixels is None:
        raise ApplicationError(f"image {str(path)!r} holds no picture, only tables or headers")
    if pixels.ndim != 2:
        raise ApplicationError(f"image {str(path)!r} has {pixels.ndim} axes; give pictures of two")
    return np.ascontiguousarray(pixels, dtype=np.float32), header


def _tangent(header: Any, path: Path, rows: int, columns: int) -> tuple[Tangent, str]:
    from astropy.wcs import WCS

    name = f"image {str(path)!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            world = WCS(header)
            x, y = (
                a.ravel().astype(float) for a in np.meshgrid([0, columns / 2, columns - 1], [0, rows / 2, rows - 1])
            )
            kinds = list(world.wcs.ctype)
            if not world.has_celestial:
                raise ApplicationError(f"{name} has no celestial WCS in its header; add one (CTYPE1, CRVAL1, CD1_1 …)")
            if not (kinds[0].endswith("-TAN") and kinds[1].endswith("-TAN") and world.wcs.lng == 0):
                raise ApplicationError(
                    f"{name} has axes {', '.join(kinds)}; only plain TAN is read, longitude first; reproject it before"
                )
            lon, lat = world.all_pix2world(x, y, 0)
            cd = world.pixel_scale_matrix
    except ApplicationError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ApplicationError(f"{name} has a WCS that cannot be used: {reason}") from error
    lon0, lat0 = world.wcs.crval
    cx, cy = world.wcs.crpix
    tangent = Tangent(
        (float(lon0), float(lat0)),
        (float(cx), float(cy)),
        ((float(cd[0, 0]), float(cd[0, 1])), (float(cd[1, 0]), float(cd[1, 1]))),
    )
    if not tangent.scale > 0.0:
        raise ApplicationError(f"{name} has a WCS of no extent (CD1_1 … CD2_2 are singular); correct its header")
    rays = tangent.to_rays() @ np.array([x, y, np.ones_like(x)])
    rays /= np.linalg.norm(rays, axis=0)
    expected = np.array([direction(a, b) for a, b in zip(lon, lat, strict=True)]).T
    off = math.degrees(float(np.linalg.norm(rays - expected, axis=0).max())) / tangent.scale
    if not off <= TOLERANCE:
        raise ApplicationError(
            f"{name} deviates by {off:.2g} pixels from plain TAN (distortion or LONPOLE); reproject it before"
        )
    system = world.wcs.radesys.strip() or "ICRS"
    equinox = f" {world.wcs.equinox:g}" if system in ("FK4", "FK5") else ""
    return tangent, f"{kinds[0][:4].strip('-')} {system}{equinox}"
