"""OpenCL and CUDA variant of the step: one launch of ``heat.cl``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heterotask_core.kernel import ArrayArg, Launch
from kernels.heat.field import SIDES

PLANE = (32, 8)


def step(
    field: ArrayArg,
    next: ArrayArg,
    halo: Sequence[ArrayArg] = (),
    strips: Sequence[ArrayArg] = (),
    *,
    sides: str,
    alpha: float,
) -> list[Launch]:
    """Write the field one step later and the edges for the neighbours; a side without one gets an unused pointer."""
    rows, columns = field.shape
    around, given = dict(zip(sides, halo, strict=True)), dict(zip(sides, strips, strict=True))
    has = sum(1 << SIDES.index(side) for side in sides)
    args = (
        field,
        *(around.get(side, field) for side in SIDES),
        next,
        *(given.get(side, next) for side in SIDES),
        *(np.int32(value) for value in (rows, columns, has)),
        np.float32(alpha),
    )
    return [Launch("jacobi", (columns, rows), PLANE, args)]
