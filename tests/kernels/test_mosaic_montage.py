"""The backgrounds against Montage's own, where MontagePy is installed (it is no dependency)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serial_executor import run_serially

from kernels.mosaic.app import MOSAIC, MosaicParams
from kernels.mosaic.files import wcs_cards
from kernels.mosaic.layout import lay_out
from kernels.mosaic.sky import Recipe, all_made, folder

TOLERANCE = 0.5
"""Grey values, of offsets up to 50: Montage fits planes pair by pair and iterates instead of solving."""


def test_montage_finds_the_same_backgrounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    montage: Any = pytest.importorskip("MontagePy.main", reason="MontagePy is not installed: pip install MontagePy")
    from astropy.io import ascii as tables

    monkeypatch.chdir(tmp_path)
    params = MosaicParams(size=256, count=6, cache="images")
    planes = run_serially(MOSAIC.build(params), tmp_path, ["numba"])["planes"]
    recipe = Recipe(params.size, params.count, params.seed)
    layout = lay_out([made.field for made in all_made(recipe)])
    header = {"SIMPLE": "T", "BITPIX": -64, "NAXIS": 2, "NAXIS1": layout.columns, "NAXIS2": layout.rows}
    cards = header | {k: f"'{v}'" if isinstance(v, str) else v for k, v in wcs_cards(layout.grid).items()}
    Path("grid.hdr").write_text("".join(f"{k:8}= {v}\n" for k, v in cards.items()) + "END\n")
    for name in ("projected", "differences"):
        Path(name).mkdir()
    raw = str(folder("images", recipe))
    steps = [
        (montage.mImgtbl, raw, "raw.tbl"),
        (montage.mProjExec, raw, "raw.tbl", "grid.hdr", "projected"),
        (montage.mImgtbl, "projected", "projected.tbl"),
        (montage.mOverlaps, "projected.tbl", "overlaps.tbl"),
        (montage.mDiffFitExec, "projected", "overlaps.tbl", "grid.hdr", "differences", "fits.tbl"),
        (montage.mBgModel, "projected.tbl", "fits.tbl", "corrections.tbl"),
    ]
    for step, *arguments in steps:
        answer = step(*arguments)
        assert str(answer["status"]) == "0", (step.__name__, answer)
    names = {row["cntr"]: row["fname"] for row in tables.read("projected.tbl", format="ipac")}
    found = {names[row["id"]]: row for row in tables.read("corrections.tbl", format="ipac")}
    residuals, at = [], []
    corner = np.array([(x, y) for x in (0, 255) for y in (0, 255)], float)
    for k, (box, plane) in enumerate(zip(layout.boxes, planes, strict=True)):
        row = next(row for name, row in found.items() if f"field-{k:05d}" in name)
        x, y = (corner + np.array([box.left, box.top])).T
        own = plane[0] + plane[1] * (x - layout.centre[1]) + plane[2] * (y - layout.centre[0])
        theirs = row["a"] * (x + 1 - layout.grid.crpix[0]) + row["b"] * (y + 1 - layout.grid.crpix[1]) + row["c"]
        residuals.append(own - theirs)
        at.append(np.stack([np.ones_like(x), x, y], axis=1))
    design, residual = np.concatenate(at), np.concatenate(residuals)
    common = np.linalg.lstsq(design, residual, rcond=None)[0]
    assert np.abs(residual - design @ common).max() <= TOLERANCE
