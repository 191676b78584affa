"""Numba's array functions without the look for SciPy's BLAS, a fifth of the start of a rank with Numba kernels."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec


def import_array_functions() -> None:
    """Import them for a process that has imported Numba; without effect where another one has not, or has them.

    Numba imports ``scipy.linalg`` with them, to know whether it is there. Here it is asked whether SciPy is installed.
    What uses linear algebra still looks for itself: Numba when it compiles, its helpers when they are called.
    """
    if "numba" not in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    linalg = import_module("numba.np.linalg")
    look = getattr(linalg, "ensure_blas", None)
    if look is None:
        return
    linalg.ensure_blas = _installed  # type: ignore[attr-defined]
    try:
        import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = look  # type: ignore[attr-defined]


def _installed() -> None:
    if find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")
