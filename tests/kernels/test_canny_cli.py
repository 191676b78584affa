"""Canny from the command line on every kind of device here; stale plans are noticed, bad pictures refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from test_canny_properties import needs_opencl, picture

QUICK = ["--profile-budget", "1", "--evaluations", "5", "--json"]


def heterotask(*argv):
    """Run the command in a process of its own; returns (exit code, stdout, stderr)."""
    command = [sys.executable, "-m", "heterotask_core.cli", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a picture and a store, which all share: each kind of device is profiled once."""
    path = tmp_path_factory.mktemp("canny")
    Image.fromarray(picture(64, 128, "plateaus", 4)).save(path / "picture.png")
    return path


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--devices", "cpu:2"], {"cpu"}),
        pytest.param(["--devices", "cpu:1,opencl:1"], {"cpu", "opencl"}, marks=needs_opencl),
        pytest.param(["--devices", "opencl:1"], {"opencl"}, marks=needs_opencl),
        (["--devices", "cpu:1", "--nodes", "2"], {"cpu"}),
    ],
    ids=["cpu", "both", "opencl", "nodes"],
)
def test_run_on_devices(folder, options, kinds):
    params = ["-p", f"image={folder / 'picture.png'}", "-p", "tile=64", "--store", folder / "store"]
    code, out, err = heterotask("run", "canny", *params, *options, "--check", *QUICK)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["check"]["passed"], answer["check"]
    assert {name.rsplit(".", 1)[1].rstrip("0123456789") for name in answer["utilisation"]} == kinds


@pytest.mark.mpi
def test_another_picture_under_the_same_name_makes_the_plan_stale(folder):
    image = folder / "picture.png"
    options = ["-p", f"image={image}", "-p", "tile=64", "--devices", "cpu:2", "--store", folder / "store"]
    code, out, err = heterotask("plan", "canny", *options, *QUICK)
    assert code == 0, err
    plan = json.loads(out)["folder"]
    Image.fromarray(picture(64, 128, "noise", 4)).save(image)
    code, _, err = heterotask("execute", "canny", "--plan", plan, *options)
    assert code == 1
    assert "another graph" in err


@pytest.mark.parametrize("case", ["torn", "pages", "gif"])
def test_bad_picture_is_one_line_and_leaves_nothing(tmp_path, case):
    image = tmp_path / "bad.png"
    pixels = picture(60, 70, "noise", 4)
    if case == "torn":
        Image.fromarray(pixels).save(image)
        image.write_bytes(image.read_bytes()[:1000])
    elif case == "pages":
        first = Image.fromarray(np.asarray(pixels))
        first.save(image, format="TIFF", save_all=True, append_images=[first])
    else:
        Image.fromarray(pixels).save(image, format="GIF")
    store = tmp_path / "store"
    code, out, err = heterotask("run", "canny", "-p", f"image={image}", "--devices", "cpu:1", "--store", store)
    assert code == 1
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: ")
    assert "bad.png" in err
    assert [p for p in store.rglob("*") if p.is_file() and p.name != "manifest.json"] == []
