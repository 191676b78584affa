"""Compiled code from Numba's cache without Numba's preparations to compile, a third of the start of a rank with it.

Before Numba reads a cached function it imports and registers all that it could compile; when it compiles, it does so
again. A rank that only reads can do without, and without SciPy's linear algebra, for which Numba looks meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_LINALG = "numba.np.linalg"
_ARRAY_FUNCTIONS = "numba.np.arraymath"


def quicken() -> None:
    """Let functions of ``numba.njit`` and ``numba.cfunc`` be read from the cache without preparations.

    For a process that has imported Numba; without effect where another one has not, in a Numba that is built
    otherwise, and when called again. Ufuncs compile a loop although they are cached: they are left alone.
    """
    if "numba" not in sys.modules:
        return
    try:
        cache = import_module("numba.core.caching").FunctionCache
        runtime = import_module("numba.core.runtime").rtsys
        kinds = [import_module("numba.core.dispatcher").Dispatcher, import_module("numba.core.ccallback").CFunc]
        needed = [cache._load_overload, cache._guard_against_spurious_io_errors, runtime.initialize]
        compiles = [kind.compile for kind in kinds]
    except (ImportError, AttributeError):
        return
    if not all(map(callable, needed)) or any(hasattr(compile, "quick") for compile in compiles):
        return

    class QuickCache(cache):  # type: ignore[misc, valid-type]
        """Reads what is cached as it is; what is not is compiled, for which Numba prepares by itself."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                with _no_look_for_blas():
                    runtime.initialize(target_context)
                    with self._guard_against_spurious_io_errors():
                        return self._load_overload(sig, target_context)
            except Exception:
                return super().load_overload(sig, target_context)
            return None  # where the guard has swallowed an error

    for kind, compile in zip(kinds, compiles, strict=True):
        kind.compile = _switching(compile, cache, QuickCache)


def _switching(compile: Any, plain: type, quick: type) -> Any:
    """Return ``compile``, a method of Numba's functions, with their cache made a quick one before."""

    def compile_or_load(self: Any, *args: Any) -> Any:
        if type(self._cache) is plain:
            self._cache.__class__ = quick
        return compile(self, *args)

    compile_or_load.quick = True  # type: ignore[attr-defined]
    return compile_or_load


class _Blas:
    """Finds nothing; at the import of Numba's array functions it is asked whether SciPy is installed, not imported.

    What uses linear algebra still looks for itself: Numba when it compiles, its helpers when they are called.
    """

    def __init__(self) -> None:
        self._look: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _ARRAY_FUNCTIONS and self._look is None:
            linalg = import_module(_LINALG)
            self._look = getattr(linalg, "ensure_blas", None)
            if self._look is not None:
                linalg.ensure_blas = _installed  # type: ignore[attr-defined]

    def restore(self) -> None:
        if self._look is not None:
            sys.modules[_LINALG].ensure_blas = self._look  # type: ignore[attr-defined]


@contextlib.contextmanager
def _no_look_for_blas() -> Iterator[None]:
    finder = _Blas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.restore()


def _installed() -> None:
    if find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")
