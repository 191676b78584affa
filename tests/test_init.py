"""``heterotask init`` writes an application that runs and whose test passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heterotask_core.commands.init import FILES, write_application
from heterotask_core.errors import ApplicationError


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.mpi
def test_the_new_application_runs_and_its_test_passes(tmp_path: Path) -> None:
    made = run(tmp_path, "heterotask_core.cli", "init", "my_app")
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "my_app"
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == sorted(
        target.format(name="my_app") for target in FILES.values()
    )
    ran = run(folder, "heterotask_core.cli", "run", "my_app.app:APP", "-p", "rows=64", "--check")
    assert ran.returncode == 0, ran.stderr
    assert "check: passed: 0 of 131072 numbers are wrong" in ran.stdout
    tested = run(folder, "pytest", "-q", "tests")
    assert tested.returncode == 0, tested.stdout
    assert "4 passed" in tested.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-App", "cannot name a Python package"),
        ("../up", "cannot name a Python package"),
        ("class", "cannot name a Python package"),
        ("numpy", "a Python module is called 'numpy' already"),
        ("taken", "exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ApplicationError, match=message):
        write_application(name, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ApplicationError, match="cannot write"):
        write_application("my_app", tmp_path)
