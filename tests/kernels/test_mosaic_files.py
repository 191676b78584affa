"""Images that are the user's own: read, and refused in one line where they do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy.io import fits
from serial_executor import run_serially

from heterotask_core.errors import ApplicationError
from kernels.mosaic.app import MOSAIC, MosaicParams
from kernels.mosaic.files import fits_bytes, read_folder, read_image, wcs_cards
from kernels.mosaic.geometry import Tangent
from kernels.mosaic.graph import COADD, LOAD

SCALE = 1e-3
ROWS, COLUMNS = 40, 50


def cards(lon: float = 10.0, lat: float = 20.0, frame: str = "RA ICRS", **more: Any) -> dict[str, Any]:
    tangent = Tangent((lon, lat), (25.0, 20.0), ((-SCALE, 0.0), (0.0, SCALE)))
    found = wcs_cards(tangent, frame) | more
    return {key: value for key, value in found.items() if value is not None}


def picture(seed: int = 1) -> np.ndarray:
    smooth = np.random.default_rng(seed).normal(size=(6, 6)).cumsum(0).cumsum(1)
    return np.kron(smooth, np.ones((8, 9)))[:ROWS, :COLUMNS].astype(np.float32)


def write(folder: Path, name: str, header: dict[str, Any] | None = None, pixels: np.ndarray | None = None) -> Path:
    path = folder / name
    path.write_bytes(fits_bytes(picture() if pixels is None else pixels, cards() if header is None else header))
    return path


def test_own_images_become_a_mosaic(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    dented = picture()
    dented[10:14, 20:25] = np.nan
    write(folder, "a.fits", cards(BUNIT="adu"), dented)
    write(folder, "b.fit", cards(lat=20.02, BUNIT="adu"), (picture(2) * 100).astype(np.int16))
    # The picture stands in an extension, turned by 90 degrees.
    turned = cards(10.02, 20.01, CD1_1=0.0, CD1_2=SCALE, CD2_1=SCALE, CD2_2=0.0, BUNIT="adu")
    header = fits.Header(list(turned.items()))
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(picture(3), header)]).writeto(folder / "c.fts")
    (folder / "notes.txt").write_text("not an image")
    params = MosaicParams(images=str(folder), tile=32, shrink=2)
    graph = MOSAIC.build(params)
    assert [t.params["file"] for t in graph if t.kernel is LOAD] == [
        str(folder / name) for name in ("a.fits", "b.fit", "c.fts")
    ]
    run_serially(graph, tmp_path, ["numba"])
    result = MOSAIC.check(params, tmp_path)
    assert result.passed, result
    header = fits.getheader(tmp_path / "mosaic-000-000.fits")
    assert (header["CTYPE1"], header["CTYPE2"], header["RADESYS"], header["BUNIT"]) == (
        "RA---TAN",
        "DEC--TAN",
        "ICRS",
        "adu",
    )


@pytest.mark.parametrize("frame", ["RA FK5 2000", "RA FK4 1950", "GLON ICRS"])
def test_the_mosaic_has_the_frame_of_the_images(tmp_path: Path, frame: str) -> None:
    write(tmp_path, "a.fits", cards(frame=frame))
    write(tmp_path, "b.fits", cards(lat=20.01, frame=frame))
    assert {image.frame for image in read_folder(str(tmp_path))} == {frame}
    params = MosaicParams(images=str(tmp_path), tile=64, shrink=1)
    run_serially(MOSAIC.build(params), tmp_path, ["numba"])
    # The mosaic itself lies among the images now.
    for path in [*tmp_path.glob("mosaic-*"), *tmp_path.glob("preview.fits")]:
        assert read_image(path).frame == frame


def test_the_content_of_the_files_is_part_of_the_graph(tmp_path: Path) -> None:
    write(tmp_path, "a.fits")
    write(tmp_path, "b.fits", cards(lat=20.01))
    params = MosaicParams(images=str(tmp_path))
    graph = MOSAIC.build(params)
    write(tmp_path, "b.fits", cards(lat=20.01), picture(5))
    assert MOSAIC.build(params).fingerprint() != graph.fingerprint()
    with pytest.raises(ApplicationError, match=r"b\.fits' has changed since the task graph was built; run again"):
        run_serially(graph, tmp_path, ["numpy"])


def refused(folder: Path, **params: Any) -> str:
    with pytest.raises(ApplicationError) as caught:
        MOSAIC.build(MosaicParams(images=str(folder), **params))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(folder), "DIR")


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    assert "DIR/none' is not a folder; give a folder of FITS files" in refused(tmp_path / "none").replace(
        "DIR", "DIR/none"
    )
    assert refused(tmp_path) == "images='DIR' holds 0 FITS files; a mosaic needs two or more"
    write(tmp_path, "a.fits")
    assert refused(tmp_path) == "images='DIR' holds 1 FITS files; a mosaic needs two or more"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as FITS"),
        (b"not a FITS file at all" * 200, "cannot be read as FITS"),
        (fits_bytes(picture(), cards())[:-3000], "cannot be read as FITS"),
        (fits_bytes(np.zeros((3, 20, 20), np.float32), cards()), "has 3 axes; give pictures of two"),
        (fits_bytes(np.zeros((9, 90), np.float32), cards()), "is (9, 90); a mosaic needs 16 pixels a side"),
        (fits_bytes(np.full((20, 20), np.nan, np.float32), cards()), "has no finite pixel; leave it out"),
        (fits_bytes(picture(), {}), "has no celestial WCS in its header"),
        (fits_bytes(picture(), cards(CTYPE1="RA---SIN", CTYPE2="DEC--SIN")), "has axes RA---SIN, DEC--SIN; only plain"),
        (fits_bytes(picture(), cards(CTYPE1="DEC--TAN", CTYPE2="RA---TAN")), "longitude first"),
        (fits_bytes(picture(), cards(LONPOLE=90.0)), "pixels from plain TAN (distortion or LONPOLE)"),
        (fits_bytes(picture(), cards(CD1_1=0.0, CD1_2=SCALE)), "has a WCS of no extent"),
        (fits_bytes(picture(), cards(frame="RA FK5 2000")), "has frame 'RA FK5 2000', but 'DIR/a.fits' has 'RA ICRS'"),
        (fits_bytes(picture(), cards(BUNIT="Jy")), "has BUNIT 'Jy', but 'DIR/a.fits' has ''"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, "a.fits")
    (tmp_path / "b.fits").write_bytes(content)
    found = refused(tmp_path)
    assert found.startswith("image 'DIR/b.fits' ")
    assert message in found


def test_a_file_that_holds_only_a_table_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.fits")
    table = fits.BinTableHDU.from_columns([fits.Column("x", "J", array=np.arange(3))])
    fits.HDUList([fits.PrimaryHDU(), table]).writeto(tmp_path / "b.fits")
    assert refused(tmp_path) == "image 'DIR/b.fits' holds no picture, only tables or headers"


def test_images_that_stand_apart_are_named(tmp_path: Path) -> None:
    for name, lat in (("a", 20.0), ("b", 20.01), ("far", 20.5), ("c", 20.02)):
        write(tmp_path, f"{name}.fits", cards(lat=lat))
    assert refused(tmp_path) == (
        "the images fall into 2 groups without overlap: 'far.fits' overlaps none of the other 3; backgrounds cannot be "
        "matched, leave a group out"
    )
    for name in ("far2", "far3", "far4"):
        write(tmp_path, f"{name}.fits", cards(lat=20.51))
    assert "'a.fits', 'b.fits', 'c.fits' overlap none of the other 4" in refused(tmp_path)


def test_images_that_no_plane_or_grid_holds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.fits")
    write(tmp_path, "b.fits", cards(lat=20.01))
    write(tmp_path, "c.fits", cards(lon=190.0, lat=-19.0))
    assert "lies more than 90° from the middle of all images" in refused(tmp_path)
    write(tmp_path, "c.fits", cards(lat=70.0, CD1_1=-SCALE / 100, CD2_2=SCALE / 100))
    assert "more than 131072 a side; give images that lie closer together" in refused(tmp_path)


def test_overlaps_without_common_pixels_are_named_when_the_planes_are_solved(tmp_path: Path) -> None:
    left, right = picture(), picture(2)
    left[:, COLUMNS // 2 :] = np.nan
    right[:, : COLUMNS // 2] = np.nan
    write(tmp_path, "a.fits", pixels=left)
    write(tmp_path, "b.fits", pixels=right)
    with pytest.raises(ApplicationError, match=r"2 groups without overlap: 'a\.fits' overlaps none of the other 1"):
        run_serially(MOSAIC.build(MosaicParams(images=str(tmp_path))), tmp_path, ["numpy"])


def test_parameters_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="tile=100 is no multiple of shrink=7; choose one that is"):
        MOSAIC.build(MosaicParams(tile=100, shrink=7))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ApplicationError, match="give a folder with -p cache=FOLDER"):
        MOSAIC.build(MosaicParams(size=16, count=2, cache=str(blocked)))


def test_tiles_without_an_image_are_left_out(tmp_path: Path) -> None:
    for k in range(4):
        write(tmp_path, f"{k}.fits", cards(lon=10.0 - 0.02 * k, lat=20.0 + 0.02 * k))
    graph = MOSAIC.build(MosaicParams(images=str(tmp_path), tile=16, shrink=4))
    whole = graph.tasks[-1].params["shape"]
    assert sum(t.kernel is COADD for t in graph) < (whole[0] // 4) * (whole[1] // 4)
