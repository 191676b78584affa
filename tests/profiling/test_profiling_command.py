"""`heterotask profile`: measure, show, predict, import, compare; wrong use is one line."""

import json
import shutil
from pathlib import Path

import profiling_kernels as pk  # noqa: F401 - found by the command under this name
import pytest
from typer import Typer
from typer.testing import CliRunner

from heterotask_core.commands.profile import profile_command
from heterotask_core.errors import ProfileError, UsageError
from heterotask_core.profiling import emulated

APP = "profiling_kernels:APP"
COMMAND = Typer()
COMMAND.command()(profile_command)


def profile(*arguments: object) -> str:
    result = CliRunner().invoke(COMMAND, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile") / "store"
    text = profile(APP, "--devices", "cpu:1", "--store", folder, "--profile-budget", 0.3)
    assert "profile: 4 timings measured, 0 from the store\n" in text
    assert "first call" in text
    return folder


def test_show_measures_nothing_and_says_what_is_missing(store):
    text = profile(APP, "--show", "--devices", "cpu:1", "--store", store)
    assert text.startswith("profile: 0 timings measured, 4 from the store")
    assert "not measured" not in text
    text = profile(APP, "--show", "--devices", "cpu:1", "--store", store, "-p", "n=128")
    assert text.startswith("profile: 0 timings measured, 1 from the store")
    assert "not measured yet (3): fill/numpy on " in text
    rows = json.loads(profile("--show", "--store", store, "--json"))
    assert sorted(row["kernel"] for row in rows) == ["fill", "save", "scale", "total"]


def test_predict_says_estimate_source_and_confidence(store):
    rows = json.loads(profile(APP, "--predict", "n=4096", "--devices", "cpu:1", "--store", store, "--json"))
    assert [(r["kernel"], r["size_bytes"], r["source"], r["confidence"]) for r in rows] == [
        ("fill", 16384, "model: proportional over 1 size", "low"),
        ("scale", 32768, "model: proportional over 1 size", "low"),
        ("total", 32772, "model: proportional over 1 size", "low"),
        ("save", 4, "measured", "measured"),
    ]
    text = profile(APP, "--predict", "n=4096", "--devices", "cpu:1", "--store", store)
    assert "confidence low (model: proportional over 1 size)" in text


def test_import_then_diff(store, tmp_path):
    other = tmp_path / "store"
    shutil.copytree(store, other)
    times = tmp_path / "times.csv"
    times.write_text("kernel,variant,device_kind,median_s\nfill,numpy,cpu,0.5\n")
    assert profile(APP, "--import", times, "--devices", "cpu:1", "--store", other) == f"1 timings taken from {times}\n"
    text = profile("--diff", store, other)
    assert "fill               numpy" in text
    assert "(origin changed)" in text
    assert text.endswith("timings: 1 slower, 3 same\n")
    assert profile("--diff", store, store) == "timings: 4 same\n"


def test_emulated_devices_keep_to_the_limits_too(tmp_path, monkeypatch):
    given = {}

    def measure(*_, **limits):
        given.update(limits)
        raise ProfileError("enough")

    monkeypatch.setattr(emulated, "profile", measure)
    platform = Path(__file__).parents[2] / "examples" / "platforms" / "emulated-2x8.yaml"
    with pytest.raises(ProfileError, match="enough"):
        profile(APP, "--platform", platform, "--store", tmp_path, "--kernel-limit", 9, "--profile-budget", 7, "--again")
    assert (given["kernel_limit_s"], given["budget_s"], given["again"]) == (9.0, 7.0, True)


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(UsageError, match="name an application"):
        profile()
    with pytest.raises(ProfileError, match="holds no profile"):
        profile("--diff", tmp_path, tmp_path)
