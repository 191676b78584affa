"""The tutorial's commands, as printed, in a folder of their own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs/tutorial.md"


def commands(text: str) -> list[str]:
    """Return the indented commands of sections 1 to 4, in order."""
    return re.findall(r"^    ((?:heterotask|pip|python) .*)$", text.split("## 5")[0], re.MULTILINE)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    text = TUTORIAL.read_text()
    found = commands(text)
    assert [command.split()[1] for command in found] == [
        *("init", "install", "run", "-m", "run", "profile", "plan", "whatif", "report", "calibrate")
    ]
    # Installed into a folder that only this test sees: its entry point is found through PYTHONPATH.
    site = tmp_path / "site"
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{tmp_path / 'my_app'}"}
    said = {}
    for command in found:
        words = shlex.split(command)
        if words[0] == "heterotask":
            words = [sys.executable, "-m", "heterotask_core.cli", *words[1:]]
        elif words[0] == "pip":
            assert words[1:] == ["install", "-e", "my_app"]
            words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), "./my_app"]
        else:
            words = [sys.executable, *words[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said[command] = done.stdout
    assert "check: passed: 0 of 1048576 numbers are wrong" in said["heterotask run my_app --check"]
    assert "check: passed: 0 of 1048576 numbers are wrong" in text
    assert "4 passed" in said["python -m pytest -q my_app/tests"]
    assert "portfolio" in said["heterotask plan my_app --compare peft,heft,portfolio"]
