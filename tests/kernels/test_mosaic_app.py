"""The mosaic against `reproject` and the backgrounds that were added, over sizes, tilings and variants."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import run_serially

from heterotask_core.app import Application
from heterotask_core.kernel import Kernel
from heterotask_core.runtime.devices.base import source_text
from kernels.mosaic import cpu_variants, solve
from kernels.mosaic.app import MOSAIC, MosaicParams
from kernels.mosaic.graph import (
    COADD,
    CORRECT,
    FIT,
    LOAD,
    REPROJECT,
    SHRINK,
    SOLVE,
    STORE_PREVIEW,
    STORE_TILE,
)
from kernels.mosaic.sky import Recipe, all_made, folder


def opencl_devices() -> bool:
    try:
        import pyopencl as cl

        return bool(cl.get_platforms())
    except Exception:
        return False


needs_opencl = pytest.mark.skipif(not opencl_devices(), reason="no OpenCL device here: install heterotask[opencl]")
VARIANTS = ["numpy", "numba", pytest.param("opencl", marks=needs_opencl)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("images"))


def run(params: MosaicParams, folder: Path, variant: str) -> tuple[bool, str]:
    run_serially(MOSAIC.build(params), folder, [variant])
    result = MOSAIC.check(params, folder)
    return result.passed, "; ".join(result.details) or result.summary


def test_mosaic_is_an_application() -> None:
    assert isinstance(MOSAIC, Application)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_makes_the_mosaic(tmp_path: Path, cache: str, variant: str) -> None:
    # Nine images under every tile: more than one launch of the co-addition adds.
    params = MosaicParams(size=48, count=14, tile=256, shrink=4, cache=cache)
    assert max(len(t.params["places"]) for t in MOSAIC.build(params) if t.kernel is COADD) > 8
    passed, text = run(params, tmp_path, variant)
    assert passed, text


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_variants_give_the_same_bits(tmp_path: Path, cache: str, variant: str) -> None:
    graph = MOSAIC.build(MosaicParams(size=150, count=5, tile=64, shrink=8, cache=cache))
    expected = run_serially(graph, tmp_path, ["numpy"])
    values = run_serially(graph, tmp_path, [variant])
    assert [name for name in expected if values[name].tobytes() != expected[name].tobytes()] == []


@settings(max_examples=8, deadline=None)
@given(
    size=st.integers(24, 60),
    count=st.integers(2, 7),
    cells=st.integers(4, 20),
    shrink=st.integers(1, 5),
    seed=st.integers(0, 1000),
    variant=st.sampled_from(["numpy", "numba"]),
)
def test_any_size_and_tiling(
    tmp_path_factory: pytest.TempPathFactory, size: int, count: int, cells: int, shrink: int, seed: int, variant: str
) -> None:
    place = tmp_path_factory.mktemp("run")
    tile = shrink * max(cells, -(-16 // shrink))
    params = MosaicParams(size=size, count=count, tile=tile, shrink=shrink, seed=seed, cache=str(place / "images"))
    passed, text = run(params, place, variant)
    assert passed, text


def shifted(array: np.ndarray) -> None:
    array[...] = np.roll(array, 1, axis=-1)


def one_more(array: np.ndarray) -> None:
    array.reshape(-1)[array.size // 2] += 1


def steeper(array: np.ndarray) -> None:
    array[..., -1] *= 1.01


BREAKS: list[tuple[Kernel, str, Any, str]] = [
    (LOAD, "pixels", shifted, "from reproject's mosaic"),
    (REPROJECT, "area", shifted, "from reproject's mosaic"),
    (REPROJECT, "weight", one_more, "from reproject's mosaic"),
    (FIT, "sums", steeper, "from NumPy's least squares"),
    (SOLVE, "planes", steeper, "from NumPy's least squares"),
    (CORRECT, "pieces", shifted, "from reproject's mosaic"),
    (COADD, "tile", one_more, "from reproject's mosaic"),
    (COADD, "covered", one_more, "from reproject's mosaic"),
    (SHRINK, "small", one_more, "of the preview are not the mean"),
    (STORE_TILE, "tile", one_more, "from reproject's mosaic"),
    (STORE_PREVIEW, "smalls", shifted, "of the preview are not the mean"),
]


@pytest.mark.parametrize(("kernel", "role", "spoil", "finding"), BREAKS, ids=[f"{k.name}-{r}" for k, r, _, _ in BREAKS])
def test_the_check_notices_each_kernel_that_is_wrong(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, role: str, spoil: Any, finding: str
) -> None:
    module: Any = solve if kernel is SOLVE else cpu_variants
    right = getattr(module, kernel.name)

    def wrong(**arguments: Any) -> None:
        if kernel.sink:
            value = arguments[role]
            arguments[role] = [a.copy() for a in value] if isinstance(value, list) else value.copy()
        else:
            right(**arguments)
        for array in arguments[role] if isinstance(arguments[role], list) else [arguments[role]]:
            spoil(array)
        if kernel.sink:
            right(**arguments)

    monkeypatch.setattr(module, kernel.name, wrong)
    passed, text = run(MosaicParams(size=64, count=4, tile=64, cache=cache), tmp_path, "numpy")
    assert not passed
    assert finding in text.split("; ")[0]


def test_the_check_notices_a_background_that_was_not_added(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = solve.solve

    def wrong(*, planes: Any, **arguments: Any) -> None:
        right(planes=planes, **arguments)
        planes[0, 0] += 3.0

    monkeypatch.setattr(solve, "solve", wrong)
    passed, text = run(MosaicParams(size=64, count=4, tile=64, cache=cache), tmp_path, "numpy")
    assert not passed
    assert "from those that were added" in text.split("; ")[1]


def test_the_check_notices_a_picture_upside_down(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu_variants.preview_png
    monkeypatch.setattr(cpu_variants, "preview_png", lambda mean, covered: right(mean[::-1], covered[::-1]))
    passed, text = run(MosaicParams(size=64, count=4, tile=64, cache=cache), tmp_path, "numpy")
    assert not passed
    assert "of preview.png are off" in text.split("; ")[0]


def test_the_check_names_a_result_that_is_missing(tmp_path: Path, cache: str) -> None:
    result = MOSAIC.check(MosaicParams(size=64, count=4, cache=cache), tmp_path)
    assert (result.passed, result.summary) == (
        False,
        f"{tmp_path / 'mosaic-000-000.fits'} is missing: the run wrote no result",
    )


def test_made_images_are_made_once_and_are_the_same_elsewhere(tmp_path: Path) -> None:
    first, second = (MosaicParams(size=32, count=3, cache=str(tmp_path / name)) for name in ("a", "b"))
    MOSAIC.build(first)
    paths = sorted(folder(first.cache, Recipe(32, 3, 1)).iterdir())
    assert [p.name for p in paths] == [m.field.name for m in all_made(Recipe(32, 3, 1))]
    times = [p.stat().st_mtime_ns for p in paths]
    MOSAIC.build(first)
    assert [p.stat().st_mtime_ns for p in paths] == times
    contents = [[t.params["content"] for t in MOSAIC.build(params) if t.kernel is LOAD] for params in (first, second)]
    assert contents[0] == contents[1]


def test_a_process_without_the_files_makes_its_own(tmp_path: Path) -> None:
    params = MosaicParams(size=32, count=2, cache=str(tmp_path / "images"))
    graph = MOSAIC.build(params)
    shutil.rmtree(params.cache)
    values = run_serially(graph, tmp_path, ["numpy"])
    assert values["pixels[0]"].std() > 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here to compile the source as CUDA")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_for_cuda(tmp_path: Path, architecture: str) -> None:
    source = tmp_path / "mosaic.cu"
    source.write_text(source_text(REPROJECT.variant("cuda")))
    ptx = tmp_path / "out.ptx"
    subprocess.run(["nvcc", "-ptx", f"-arch={architecture}", "--fmad=false", "-o", str(ptx), str(source)], check=True)
    text = ptx.read_text()
    # Divisions are correctly rounded subroutines, which may use fused operations inside; sums and products may not.
    assert "fma.rn.f32" not in text
    assert "div.rn.f64" in text
