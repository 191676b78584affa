"""Ranks start without SciPy's linear algebra, and what needs it still finds it."""

import subprocess
import sys

PROGRAM = """
import sys
import numba
import numpy as np
from heterotask_core.runtime.quick_numba import import_array_functions

import_array_functions()
import_array_functions()

@numba.njit
def total(x):
    return x.sum()

assert total(np.ones(4)) == 4.0
assert "scipy.linalg" not in sys.modules, "looked for"

@numba.njit
def product(a, b):
    return np.dot(a, b)

assert product(np.ones(4), np.ones(4)) == 4.0
assert np.array_equal(product(np.eye(3), 2 * np.eye(3)), 2 * np.eye(3))
assert "scipy.linalg" in sys.modules

@numba.njit
def inverse(a):
    return np.linalg.inv(a)

assert np.allclose(inverse(2 * np.eye(3)), 0.5 * np.eye(3))
assert np.array_equal(numba.njit(lambda a, b: np.correlate(a, b))(np.ones(3), np.ones(2)), [2.0, 2.0])
"""


def test_linear_algebra_is_imported_by_what_uses_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_where_nothing_has_imported_numba() -> None:
    program = (
        "import sys; from heterotask_core.runtime.quick_numba import import_array_functions as f; f();"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
