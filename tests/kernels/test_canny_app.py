"""Canny against its untiled reference and scikit-image, over sizes, tilings, sigmas and variants."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serial_executor import needs_opencl, run_serially

from heterotask_core.app import Application
from heterotask_core.errors import ApplicationError
from heterotask_core.runtime.devices.base import source_text
from kernels.canny.app import CANNY, CannyParams
from kernels.canny.graph import LABEL

VARIANTS = ["numpy", "numba", pytest.param("opencl", marks=needs_opencl)]


def picture(tmp_path: Path, rows: int, columns: int, seed: int = 5) -> str:
    rng = np.random.default_rng(seed)
    coarse = rng.random((rows // 12 + 2, columns // 12 + 2))
    pixels = np.kron(coarse, np.ones((12, 12)))[:rows, :columns] + 0.05 * rng.random((rows, columns))
    path = tmp_path / "input.png"
    Image.fromarray((pixels / pixels.max() * 255).astype(np.uint8)).save(path)
    return str(path)


def test_canny_is_an_application() -> None:
    assert isinstance(CANNY, Application)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("rows", "columns", "tile", "sigma"),
    [(64, 64, 32, 1.4), (97, 131, 40, 1.0), (50, 170, 33, 2.3), (120, 41, 40, 0.6), (33, 33, 16, 4.0), (3, 3, 16, 1.4)],
)
def test_edges_are_those_of_the_reference_and_of_skimage(
    tmp_path: Path, rows: int, columns: int, tile: int, sigma: float, variant: str
) -> None:
    params = CannyParams(image=picture(tmp_path, rows, columns), tile=tile, sigma=sigma, low=0.05, high=0.3)
    run_serially(CANNY.build(params), tmp_path, [variant])
    result = CANNY.check(params, tmp_path)
    assert result.passed, result.details


@pytest.mark.parametrize(
    ("size", "sigma"),
    [
        (2048, 1.0),
        (2048, 1.4),
        (2048, 3.0),
        pytest.param(4096, 1.0, marks=pytest.mark.slow),
        (4096, 1.4),
        pytest.param(4096, 3.0, marks=pytest.mark.slow),
    ],
)
def test_retina_matches_skimage(tmp_path: Path, size: int, sigma: float) -> None:
    params = CannyParams(size=size, tile=700, sigma=sigma, low=0.03, high=0.08)
    run_serially(CANNY.build(params), tmp_path, ["numba"])
    result = CANNY.check(params, tmp_path)
    assert result.passed, result.details


@pytest.mark.parametrize("variant", VARIANTS)
def test_long_weak_components_are_followed_through_many_tiles(tmp_path: Path, variant: str) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (150, 170), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    params = CannyParams(image=str(tmp_path / "noise.png"), tile=16, sigma=0.8, low=0.02, high=1.6)
    run_serially(CANNY.build(params), tmp_path, [variant])
    result = CANNY.check(params, tmp_path)
    assert result.passed, result.details
    strict = params.model_copy(update={"low": 1.6})
    assert not CANNY.check(strict, tmp_path).passed


def test_thresholds_and_tile_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match=r"low=0\.5 is above high=0\.2"):
        CANNY.build(CannyParams(low=0.5))
    with pytest.raises(ApplicationError, match="smaller than the Gaussian's radius 40"):
        CANNY.build(CannyParams(tile=16, sigma=10.0))


def test_check_refuses_one_wrong_pixel(tmp_path: Path) -> None:
    params = CannyParams(image=picture(tmp_path, 40, 40), tile=16)
    run_serially(CANNY.build(params), tmp_path, [])
    edges = np.array(Image.open(tmp_path / "edges.png").convert("L"))
    edges[20, 20] ^= 255
    Image.fromarray(edges).save(tmp_path / "edges.png")
    assert not CANNY.check(params, tmp_path).passed


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here to compile the source as CUDA")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_source_compiles_as_cuda(tmp_path: Path, architecture: str) -> None:
    source = tmp_path / "canny.cu"
    source.write_text(source_text(LABEL.variant("cuda")))
    command = ["nvcc", "-ptx", "--fmad=false", f"-arch={architecture}", "-o", str(tmp_path / "canny.ptx"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ptx = (tmp_path / "canny.ptx").read_text()
    assert "fma.rn.f32" not in ptx
    entries = set(re.findall(r"^KERNEL (\w+)", LABEL.variant("cuda").source_path().read_text(), re.MULTILINE))
    assert set(re.findall(r"\.entry (\w+)", ptx)) == entries
