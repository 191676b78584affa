"""SciPy's BLAS is there without SciPy's linear algebra, which still finds it."""

import subprocess
import sys

from kernels.blas import extension

PROGRAM = """
import sys
from kernels.blas import extension

blas, lapack, cython = extension("_fblas"), extension("_flapack"), extension("cython_blas")
assert "scipy.linalg" not in sys.modules, "imported"
assert extension("_fblas") is blas
import scipy.linalg

assert scipy.linalg.blas.dgemm is blas.dgemm and scipy.linalg.lapack.dpotrf is lapack.dpotrf
from scipy.linalg import cython_blas

assert cython_blas is cython and extension("cython_blas") is cython
assert scipy.linalg.solve([[2.0]], [4.0]) == [2.0]
"""


def test_extensions_come_without_their_package() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_imported_is_taken() -> None:
    from scipy.linalg import blas

    assert extension("_fblas").dgemm is blas.dgemm
