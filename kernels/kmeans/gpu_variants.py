"""OpenCL and CUDA variants: launches of ``kmeans.cl``, one source for both and for both precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch

LINE = (128,)
EACH = 16
"""Pixels that a work item adds up before the group touches global memory."""

FIELDS = 4


def accumulate(block: ArrayArg, centres: ArrayArg, sums: ArrayArg, *, dtype: str) -> list[Launch]:
    """Write the sum of colours and the number of pixels of each cluster."""
    count, clusters = block.shape[0], centres.shape[0]
    cells = np.int32(FIELDS * clusters)
    return [
        Launch("clear_sums", (int(cells),), LINE, (None, cells)),
        Launch(
            "accumulate",
            (-(-count // EACH),),
            LINE,
            (block, centres, None, np.int32(count), np.int32(clusters), np.int32(EACH)),
        ),
        Launch("widen", (int(cells),), LINE, (None, sums, cells)),
    ]


def accumulate_scratch(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of the 32-bit sums: a block has at most 2^24 pixels, so they cannot overflow."""
    return 4 * FIELDS * shapes["centres"][0]


def assign(block: ArrayArg, centres: ArrayArg, labels: ArrayArg, *, dtype: str) -> list[Launch]:
    """Write the nearest centre of each pixel."""
    count, clusters = block.shape[0], centres.shape[0]
    return [Launch("assign", (count,), LINE, (block, centres, labels, np.int32(count), np.int32(clusters)))]


def reduce(parts: Sequence[ArrayArg], total: ArrayArg) -> list[Launch]:
    """Add partial sums."""
    cells = total.shape[0] * total.shape[1]
    return [
        Launch("add_part", (cells,), LINE, (part, total, np.int32(cells), np.int32(k == 0)))
        for k, part in enumerate(parts)
    ]


def update(total: ArrayArg, centres: ArrayArg, *, dtype: str) -> list[Launch]:
    """Write the mean colour of each cluster."""
    clusters = centres.shape[0]
    return [Launch("update", (3 * clusters,), LINE, (total, centres, np.int32(clusters)))]
