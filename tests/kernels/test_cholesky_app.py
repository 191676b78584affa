"""Cholesky against SciPy, over sizes, tilings, precisions and variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import cuda_assembly, needs_nvcc, needs_opencl, run_serially

from heterotask_core.app import Application
from heterotask_core.kernel import Kernel
from kernels.cholesky import blas_variants, numpy_variants
from kernels.cholesky.app import CHOLESKY, CholeskyParams
from kernels.cholesky.graph import GEMM, GRAM, GRAM_DIAGONAL, POTRF, SYRK, TRSM
from kernels.cholesky.points import points

PREFER = {
    "blas": ["blas", "lapack"],
    "numba": ["numba"],
    "opencl": ["opencl", "opencl64"],
}


VARIANTS = ["blas", "numba", pytest.param("opencl", marks=needs_opencl)]


def prefer(variant: str, dtype: str) -> list[str]:
    return [name for name in PREFER[variant] if name != ("opencl64" if dtype == "float32" else "opencl")]


def run(params: CholeskyParams, folder: Path, variant: str) -> tuple[bool, str]:
    run_serially(CHOLESKY.build(params), folder, prefer(variant, params.dtype))
    result = CHOLESKY.check(params, folder)
    return result.passed, result.summary + ": " + "; ".join(result.details)


def test_cholesky_is_an_application() -> None:
    assert isinstance(CHOLESKY, Application)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("size", "tile"), [(1, 1), (200, 64), (300, 97), (257, 300)])
def test_the_factor_is_that_of_scipy(tmp_path: Path, size: int, tile: int, dtype: str, variant: str) -> None:
    passed, text = run(CholeskyParams(size=size, tile=tile, dtype=dtype), tmp_path, variant)
    assert passed, text


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 120), tile=st.integers(1, 130), seed=st.sampled_from(["blas", "numba"]))
def test_any_size_and_tiling(tmp_path_factory: pytest.TempPathFactory, size: int, tile: int, seed: str) -> None:
    params = CholeskyParams(size=size, tile=max(tile, size // 8 + 1), dtype="float64")
    passed, text = run(params, tmp_path_factory.mktemp("run"), seed)
    assert passed, text


@pytest.mark.parametrize("kernel", [GRAM, GRAM_DIAGONAL, POTRF, TRSM, SYRK, GEMM], ids=lambda k: k.name)
def test_the_check_notices_each_kernel_that_is_a_hair_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Kernel
) -> None:
    module: Any = numpy_variants if kernel in (GRAM, GRAM_DIAGONAL) else blas_variants
    right = getattr(module, kernel.name)

    def wrong(**arguments: Any) -> None:
        right(**arguments)
        arguments["tile"][...] *= np.float32(1.0001)

    monkeypatch.setattr(module, kernel.name, wrong)
    passed, text = run(CholeskyParams(size=300, tile=100), tmp_path, "blas")
    assert not passed
    assert "L is wrong" in text


def test_the_check_notices_an_upper_triangle_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = blas_variants.potrf

    def left(**arguments: Any) -> None:
        whole(**arguments)
        arguments["tile"][0, -1] = 1.0

    monkeypatch.setattr(blas_variants, "potrf", left)
    assert not run(CholeskyParams(size=100, tile=50), tmp_path, "blas")[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_matrix_that_is_not_positive_definite_names_the_tile(tmp_path: Path, variant: str) -> None:
    # Nearly equal rows without jitter: the matrix is singular in float32.
    params = CholeskyParams(size=128, tile=64, gamma=1e-9, jitter=0.0)
    with pytest.raises(np.linalg.LinAlgError, match=r"not positive definite: pivot <= 0 at or before tile A\[0,0\]"):
        run(params, tmp_path, variant)


def test_points_are_distinct_and_the_first_are_the_digits() -> None:
    whole = points(4000)
    assert whole.shape == (4000, 64)
    assert len(np.unique(whole, axis=0)) == 4000
    from sklearn import datasets

    digits = datasets.load_digits().data
    assert {tuple(x) for x in whole[: len(digits)]} == {tuple(x) for x in digits}


@needs_nvcc
@pytest.mark.parametrize("name", ["cuda", "cuda64"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_as_cuda(tmp_path: Path, name: str, architecture: str) -> None:
    assert ".entry gemm" in cuda_assembly(GEMM.variant(name), tmp_path, architecture)
