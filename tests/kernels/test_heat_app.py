"""Heat against NumPy on the whole grid, over sizes, tilings and variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import cuda_assembly, needs_nvcc, needs_opencl, run_serially

from heterotask_core.app import Application
from kernels.heat import cpu_variants
from kernels.heat.app import HEAT, HeatParams
from kernels.heat.field import initial_field
from kernels.heat.graph import STEP

VARIANTS = ["numpy", "numba", pytest.param("opencl", marks=needs_opencl)]


def run(params: HeatParams, folder: Path, variant: str) -> tuple[bool, str]:
    run_serially(HEAT.build(params), folder, [variant])
    result = HEAT.check(params, folder)
    return result.passed, "; ".join(result.details)


def test_heat_is_an_application() -> None:
    assert isinstance(HEAT, Application)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("size", "tile", "steps"), [(1, 2, 3), (7, 2, 4), (65, 32, 5), (130, 130, 3), (600, 256, 2)])
def test_every_variant_gives_the_bits_of_numpy_on_the_whole_grid(
    tmp_path: Path, size: int, tile: int, steps: int, variant: str
) -> None:
    passed, text = run(HeatParams(size=size, tile=tile, steps=steps), tmp_path, variant)
    assert passed, text


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 40),
    tile=st.integers(5, 45),
    steps=st.integers(0, 4),
    alpha=st.floats(0.01, 0.25),
    variant=st.sampled_from(["numpy", "numba"]),
)
def test_any_size_and_tiling(
    tmp_path_factory: pytest.TempPathFactory, size: int, tile: int, steps: int, alpha: float, variant: str
) -> None:
    params = HeatParams(size=size, tile=tile, steps=steps, alpha=alpha)
    passed, text = run(params, tmp_path_factory.mktemp("run"), variant)
    assert passed, text


def test_the_check_notices_a_step_that_forgets_its_halo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu_variants.step

    def wrong(*, halo: Any, **arguments: Any) -> None:
        right(halo=[strip * np.float32(1.001) for strip in halo], **arguments)

    monkeypatch.setattr(cpu_variants, "step", wrong)
    passed, text = run(HeatParams(size=64, tile=32, steps=2), tmp_path, "numpy")
    assert not passed
    assert "cells differ" in text


def test_the_check_notices_a_wrong_start_by_its_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu_variants.load

    def wrong(*, field: Any, **arguments: Any) -> None:
        right(field=field, **arguments)
        field += np.float32(0.01)

    monkeypatch.setattr(cpu_variants, "load", wrong)
    passed, text = run(HeatParams(size=64, tile=64, steps=0), tmp_path, "numpy")
    assert not passed
    assert "the sum changed by 0.0e+00" not in text


def test_the_field_is_the_photograph_mirrored() -> None:
    from skimage import data

    field = initial_field(600)
    np.testing.assert_array_equal(field[:512, :512], data.camera().astype(np.float32) + 1)
    np.testing.assert_array_equal(field[512], field[511])
    assert field.shape == (600, 600)


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_as_cuda(tmp_path: Path, architecture: str) -> None:
    assert "fma.rn.f32" not in cuda_assembly(STEP.variant("cuda"), tmp_path, architecture)
