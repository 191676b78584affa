"""Ranks read Numba's cached functions without what compiling needs, and what compiles still finds it."""

import subprocess
import sys
from pathlib import Path

MODULE = """
import math
import numba
import numpy as np

@numba.njit(cache=True)
def whole(x):
    return x.sum(), len(set(x)), {1: 2.0}, np.linalg.norm(x), "text", numba.typed.List([1, 2])

@numba.njit(cache=True, parallel=True)
def total(x):
    result = 0.0
    for i in numba.prange(len(x)):
        result += x[i]
    return result

@numba.njit(cache=True)
def refused(x):
    if x[0] > 0:
        raise ValueError("positive")
    return np.linalg.solve(np.eye(2), x)

@numba.vectorize(["float64(float64, float64)"], cache=True)
def ready(a, b):
    return math.sin(a) + b

@numba.vectorize(cache=True)
def later(a, b):
    return math.sin(a) - b

@numba.guvectorize(["void(float64[:], float64, float64[:])"], "(n),()->(n)", cache=True)
def scaled(a, b, c):
    for i in range(len(a)):
        c[i] = a[i] * b

@numba.njit
def uncached(x):
    return np.dot(x, x)
"""
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numba
import numpy as np
from heterotask_core.runtime.quick_numba import quicken

if sys.argv[2] == "before":
    quicken()
import functions
if sys.argv[2] == "after":
    quicken()
    quicken()
x = np.arange(1.0, 3.0)
print(functions.whole(x), functions.total(x), functions.refused(-x))
try:
    functions.refused(x)
except ValueError as error:
    print(error)
print(functions.ready(x, 1.0), functions.later(x, 1.0), functions.scaled(x, 2.0))
print("one", functions.uncached(x), functions.total(x.astype(np.float32)))
"""
ONE = """
import sys
sys.path.insert(0, sys.argv[1])
import numba
import numpy as np
from numba.core.base import BaseContext
from heterotask_core.runtime.quick_numba import quicken

def never(self):
    raise AssertionError("prepared to compile")

quicken()
from cached import outer
BaseContext.refresh = never
assert outer(np.ones((3, 3))) == 9.0
assert not outer.stats.cache_misses
assert "scipy.linalg" not in sys.modules, "looked for"
"""
CACHED = """
import numba

@numba.njit(cache=True)
def inner(x):
    return x.sum()

@numba.njit(cache=True)
def outer(x):
    return inner(x)
"""


def _run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_numba_caches_gives_the_same_with_and_without(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(MODULE)
    plain = _run(PROGRAM, tmp_path, "never")
    assert plain.splitlines()[-1].startswith("one 5.0")
    # What is cached now is read, before and after the decorators have run, and the rest is compiled.
    assert _run(PROGRAM, tmp_path, "before") == plain
    assert _run(PROGRAM, tmp_path, "after") == plain


def test_a_cached_function_is_read_without_preparations(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CACHED)
    _run(
        "import sys; sys.path.insert(0, sys.argv[1]); import cached, numpy; cached.outer(numpy.ones((3, 3)))", tmp_path
    )
    _run(ONE, tmp_path)


def test_what_is_not_cached_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CACHED)
    compiled = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cached, numpy;"
        "from heterotask_core.runtime.quick_numba import quicken; quicken();"
        "assert cached.outer(numpy.ones((3, 3))) == 9.0; assert cached.outer.stats.cache_misses"
    )
    _run(compiled, tmp_path)


def test_nothing_is_imported_where_nothing_has_imported_numba() -> None:
    _run(
        "import sys; from heterotask_core.runtime.quick_numba import quicken; quicken();"
        "assert 'numba' not in sys.modules"
    )
