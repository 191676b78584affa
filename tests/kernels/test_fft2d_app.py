"""The 2-D FFT against SciPy, over sizes, bands and variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import cuda_assembly, needs_nvcc, needs_opencl, run_serially

from heterotask_core.app import Application
from heterotask_core.errors import ApplicationError
from kernels.fft2d import cpu_variants
from kernels.fft2d.app import FFT2D, Fft2dParams
from kernels.fft2d.graph import ROWS

VARIANTS = ["scipy", "numba", pytest.param("opencl", marks=needs_opencl)]


def run(params: Fft2dParams, folder: Path, variant: str) -> tuple[bool, str]:
    run_serially(FFT2D.build(params), folder, [variant])
    result = FFT2D.check(params, folder)
    return result.passed, "; ".join(result.details)


def test_fft2d_is_an_application() -> None:
    assert isinstance(FFT2D, Application)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("size", "band"), [(2, 1), (4, 4), (64, 64), (128, 50), (512, 128)])
def test_the_spectrum_is_that_of_scipy(tmp_path: Path, size: int, band: int, variant: str) -> None:
    passed, text = run(Fft2dParams(size=size, band=band), tmp_path, variant)
    assert passed, text


@settings(max_examples=20, deadline=None)
@given(size=st.integers(2, 90), bands=st.integers(1, 6))
def test_any_size_and_banding(tmp_path_factory: pytest.TempPathFactory, size: int, bands: int) -> None:
    passed, text = run(Fft2dParams(size=size, band=-(-size // bands)), tmp_path_factory.mktemp("run"), "scipy")
    assert passed, text


@pytest.mark.parametrize("kernel", ["rows", "transpose", "columns"])
def test_the_check_notices_each_kernel_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    right = getattr(cpu_variants, kernel)

    def wrong(**arguments: Any) -> None:
        right(**arguments)
        made = {"rows": "blocks", "transpose": "turned", "columns": "band"}[kernel]
        for array in arguments[made] if kernel == "rows" else [arguments[made]]:
            array *= np.float32(1.0001)

    monkeypatch.setattr(cpu_variants, kernel, wrong)
    assert not run(Fft2dParams(size=64, band=32), tmp_path, "scipy")[0]


def test_gpu_variants_want_a_power_of_two() -> None:
    supports = ROWS.variant("cuda").supports
    assert supports is not None
    assert [supports({}, {"band": (4, n)}) for n in (1, 2, 3, 96, 4096)] == [True, True, False, False, True]


def test_too_many_blocks_are_refused() -> None:
    with pytest.raises(ApplicationError, match="band=1 cuts 2048² into over a million blocks; choose more rows"):
        FFT2D.build(Fft2dParams(size=2048, band=1))


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_as_cuda(tmp_path: Path, architecture: str) -> None:
    assert ".entry stage" in cuda_assembly(ROWS.variant("cuda"), tmp_path, architecture)
