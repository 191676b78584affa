"""SciPy's BLAS and LAPACK without the package around them, whose import takes longer than many a task graph."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import scipy


def extension(name: str) -> ModuleType:
    """Return an extension module of ``scipy.linalg``: ``_fblas``, ``_flapack``, ``cython_blas``, ``cython_lapack``.

    It is the one that ``scipy.linalg`` finds when it is imported later; where SciPy is built otherwise, it is imported
    with it. Raises :class:`ImportError` where neither has it.
    """
    full = f"scipy.linalg.{name}"
    if "scipy.linalg" not in sys.modules and full not in sys.modules:
        places = [str(Path(place) / "linalg") for place in scipy.__path__]
        spec = PathFinder.find_spec(full, places)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            sys.modules[full] = module
            try:
                spec.loader.exec_module(module)
            except ImportError:
                del sys.modules[full]
    return sys.modules.get(full) or import_module(full)
