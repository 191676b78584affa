"""Other load during a measurement: seen, said, and marked in the record."""

import json
import multiprocessing
import time

from calibration_toy import ToyEvaluator

from calibration.load import Usage, other_load, usage
from calibration.loop import calibrate
from heterotask_core.profiling.costs import Overheads


def test_what_others_computed_is_told_from_what_we_did():
    before = Usage(100.0, 50.0, 10.0, 2)
    assert other_load(before, Usage(101.0, 51.5, 11.5, 2)) == ""
    assert other_load(before, Usage(101.0, 51.6, 11.5, 2)) == ""
    assert other_load(before, Usage(101.0, 52.0, 10.5, 2)) == "other processes used 1.50 of 2 cores for 1 s"


def _work(until_s):
    while time.monotonic() < until_s:
        """Compute."""


def test_own_processes_are_not_others():
    before = usage()
    process = multiprocessing.get_context("fork").Process(target=_work, args=(time.monotonic() + 0.3,))
    process.start()
    process.join()
    after = usage()
    # It ran on one core at most; waiting for its turn is not computing.
    assert after.own_s - before.own_s > 0.0
    assert after.own_s - before.own_s <= after.wall_s - before.wall_s + 0.2
    assert after.all_s >= before.all_s


class Shared(ToyEvaluator):
    def measure(self, program, repeats):
        self.disturbance = "other processes used 1.00 of 2 cores for 1 s" if len(self.measured) % 4 == 1 else ""
        return super().measure(program, repeats)


def test_disturbed_measurements_are_marked_and_said(tmp_path):
    machine = Shared(Overheads(dispatch_s={"opencl": 3e-3}))
    result = calibrate(machine, record_dir=tmp_path, max_evaluations=4)
    marked = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines() if "disturbed" in line]
    assert len(marked) == len(result.disturbed) > 0
    assert result.text.endswith(
        f"{len(marked)} of {result.runs} measurements were disturbed: other processes used 1.00 of 2 cores for 1 s"
    )
    assert calibrate(machine, record_dir=tmp_path, max_evaluations=4, resume=True) == result
