"""The process that clears up after a killed caller, wherever that was started and however the package is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heterotask_core import scratch
from heterotask_core.runtime.reaper import Reaper


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package is installed in place: found by a hook, not in ``sys.path``, and not from here."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p or ".") / "heterotask_core").exists()])
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("in_order", [False, True])
def test_it_ends_the_launcher_and_removes_the_job_unless_that_is_done(tmp_path: Path, in_order: bool) -> None:
    folder = scratch.make_folder("heterotask-job-", tmp_path)
    try:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
            reaper = Reaper(folder, launcher.pid, [])
            if in_order:
                reaper.dismiss()
                assert launcher.poll() is None
            else:
                assert reaper._process.stdin is not None
                reaper._process.stdin.close()
                reaper._process.wait(60)
                assert launcher.wait(60) == -9
            launcher.kill()
        assert folder.exists() is in_order
        assert reaper._process.returncode == 0
    finally:
        scratch.remove_folder(folder)
