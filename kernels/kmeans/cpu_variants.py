"""Host variants (NumPy and Numba). Sums of 8-bit colours are integers, so no order of summation changes a bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from kernels.kmeans.pixels import pixels, start_centres
from kernels.results import write_array, write_behind

Array = np.ndarray[Any, Any]

_jit: Any = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")


class EmptyClusterError(ArithmeticError):
    """A cluster lost all its pixels, so it has no centre."""


def _empty(clusters: Array) -> EmptyClusterError:
    return EmptyClusterError(f"cluster {int(clusters[0])} has no pixels; choose fewer clusters or another seed")


def load(*, block: Array, picture: str, start: int) -> None:
    """Fill a block of pixels, from number ``start`` on."""
    block[...] = pixels(picture)[start : start + len(block)]


def seed(*, centres: Array, picture: str, seed: int) -> None:
    """Write the first centres."""
    centres[...] = start_centres(picture, len(centres), seed)


def _nearest(block: Array, centres: Array) -> Array:
    best = np.full(len(block), np.inf, centres.dtype)
    found = np.zeros(len(block), np.int32)
    colours = block.astype(centres.dtype)
    for k, centre in enumerate(centres):
        d = colours - centre
        distance = (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]
        closer = distance < best
        best[closer] = distance[closer]
        found[closer] = k
    return found


def accumulate(*, block: Array, centres: Array, sums: Array, dtype: str) -> None:
    """Write the sum of colours and the number of pixels of each cluster: (clusters, 4), int64."""
    found = _nearest(block, centres)
    for channel in range(3):
        # Weights are added in float64, which holds these integers exactly.
        sums[:, channel] = np.bincount(found, weights=block[:, channel], minlength=len(centres))
    sums[:, 3] = np.bincount(found, minlength=len(centres))


def assign(*, block: Array, centres: Array, labels: Array, dtype: str) -> None:
    """Write the nearest centre of each pixel; of equal ones the first."""
    labels[...] = _nearest(block, centres)


def reduce(*, parts: Sequence[Array], total: Array) -> None:
    """Add partial sums."""
    np.sum(parts, axis=0, out=total)


def update(*, total: Array, centres: Array, dtype: str) -> None:
    """Write the mean colour of each cluster.

    Raises:
        EmptyClusterError: naming the cluster without pixels.
    """
    empty = np.flatnonzero(total[:, 3] == 0)
    if len(empty):
        raise _empty(empty)
    centres[...] = total[:, :3] / total[:, 3:]


def store(*, labels: Sequence[Array], centres: Array, labels_path: Path, centres_path: Path) -> None:
    """Write labels and centres as ``.npy`` files.

    Raises:
        EmptyClusterError: a device variant left a cluster without a centre.
    """
    empty = np.flatnonzero(np.isnan(centres[:, 0]))
    if len(empty):
        raise _empty(empty)
    write_behind(labels_path, labels)
    write_array(centres_path, centres)


@_jit
def _closest(r, g, b, centres):  # type: ignore[no-untyped-def]
    found, best = 0, centres.dtype.type(np.inf)
    for k in range(len(centres)):
        dr, dg, db = r - centres[k, 0], g - centres[k, 1], b - centres[k, 2]
        distance = (dr * dr + dg * dg) + db * db
        if distance < best:
            best = distance
            found = k
    return found


@_jit
def _accumulate(block, centres, sums):  # type: ignore[no-untyped-def]
    real = centres.dtype.type
    sums[...] = 0
    for i in range(len(block)):
        k = _closest(real(block[i, 0]), real(block[i, 1]), real(block[i, 2]), centres)
        for channel in range(3):
            sums[k, channel] += block[i, channel]
        sums[k, 3] += 1


@_jit
def _assign(block, centres, labels):  # type: ignore[no-untyped-def]
    real = centres.dtype.type
    for i in range(len(block)):
        labels[i] = _closest(real(block[i, 0]), real(block[i, 1]), real(block[i, 2]), centres)


@_jit
def _add(part, total):  # type: ignore[no-untyped-def]
    for k in range(len(part)):
        for field in range(4):
            total[k, field] += part[k, field]


def accumulate_numba(*, block: Array, centres: Array, sums: Array, dtype: str) -> None:
    """Write the sums of each cluster in one pass over the pixels."""
    _accumulate(block, centres, sums)


def assign_numba(*, block: Array, centres: Array, labels: Array, dtype: str) -> None:
    """Write the nearest centre of each pixel."""
    _assign(block, centres, labels)


def reduce_numba(*, parts: Sequence[Array], total: Array) -> None:
    """Add partial sums."""
    total[...] = 0
    for part in parts:
        _add(part, total)
