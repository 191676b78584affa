"""The README's example application runs exactly as printed, through the installed command."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.mpi
def test_example_application_runs(tmp_path):
    text = README.read_text()
    (source,) = re.findall(r"```python\n# sums\.py\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"^    heterotask (run sums:APP .*)$", text, re.MULTILINE)
    (tmp_path / "sums.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "heterotask_core.cli", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "check: passed" in done.stdout
    (result,) = (tmp_path / ".heterotask" / "runs").glob("*/total.txt")
    assert float(result.read_text()) > 0
