"""Programs in benchmarks/ run and print their tables, at their smallest size; what they print is not judged here.

Those of the planner and of StarPU are tested beside them. ``apps_at_size.py`` has no small size.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

PROGRAMS = {
    "apps": ("apps.py --apps heat --devices cpu:1 --repeats 2", "heat      cpu:1"),
    "calibration": (
        "calibration.py --draws 1 --tiles 2 --nodes 1 --gpus 2 --families null --evaluations 6 "
        "--planner-evaluations 40 --jobs 1 --no-region",
        "regret",
    ),
    "Canny's variants": ("canny_variants.py --tile 64 --kernels sobel", "sobel"),
    "failure matrix": ("failure_matrix.py --rounds 1 --case wrong_shape", "wrong_shape"),
    "METG": ("metg.py --pattern stencil_1d --steps 20 --repeats 2 --output-bytes 16", "stencil_1d"),
    "overhead": ("overhead.py", "walk"),
    "prediction": (
        "prediction.py heat -p size=64 -p tile=32 -p steps=2 --devices cpu:1 --rounds 1 --repeats 2",
        "full",
    ),
    "session": ("session.py --runs 2", "first"),
}
"""Name → program with arguments, and a word of what it prints."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str, tmp_path: Path) -> None:
    arguments, word = PROGRAMS[name]
    done = subprocess.run(
        [sys.executable, *f"{ROOT / 'benchmarks'}/{arguments}".split()],
        cwd=ROOT,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert word in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["canny", "cholesky", "heat", "kmeans", "fft2d", "mosaic"])
def test_the_plain_way_of_each_application_is_ready(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    apps = importlib.import_module("apps")
    assert set(apps.PLAIN) == {"canny", "cholesky", "heat", "kmeans", "fft2d", "mosaic"}
    assert callable(apps.PLAIN[name](tmp_path))
