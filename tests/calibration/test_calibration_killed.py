"""kill -9 at every step of a calibration, for real: resuming repeats nothing, and ends as if it had never died."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from calibration_killed import HIDDEN
from calibration_toy import ToyEvaluator

from calibration.loop import calibrate

HERE = Path(__file__).parent


@pytest.mark.parametrize("how", ["after", pytest.param("within", marks=pytest.mark.slow)])
def test_killed_at_every_step_it_repeats_nothing_and_ends_the_same(tmp_path, how):
    whole = ToyEvaluator(HIDDEN)
    expected = calibrate(whole, record_dir=tmp_path / "whole", seed=2, max_evaluations=3)
    assert expected.status == "promoted"
    done = subprocess.run(
        [sys.executable, HERE / "calibration_killed.py", tmp_path / "cut", how],
        cwd=HERE.parents[1],
        env={"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    attempts, code = map(int, done.stdout.split())
    assert code == 0
    steps = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()
    assert (tmp_path / "cut" / "journal" / "journal.jsonl").read_text().splitlines() == steps
    # A kill within a line loses that step; everywhere else each step is done once.
    lost = attempts - (len(steps) - 1)
    assert (lost > 0) == (how == "within")
    measured = (tmp_path / "cut" / "measured").read_text().splitlines()
    assert len(whole.measured) <= len(measured) <= len(whole.measured) + lost
    results = [
        json.loads((folder / "result.json").read_text()) | {"seconds": 0}
        for folder in (tmp_path / "whole", tmp_path / "cut" / "journal")
    ]
    assert results[0] == results[1]
