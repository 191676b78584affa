"""The loop on a toy machine: what it finds, what it records, how it resumes and how it gives up."""

import json

import pytest
from calibration_toy import ToyEvaluator, toy_program

from calibration.bench import program_key
from calibration.loop import calibrate
from heterotask_core.errors import CalibrationError, StoreError
from heterotask_core.profiling.costs import Overheads

HIDDEN = Overheads(dispatch_s={"opencl": 3e-3})


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


def journal(directory):
    return [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]


def test_hidden_dispatch_is_found_and_the_faster_plan_promoted(tmp_path):
    evaluator = ToyEvaluator(HIDDEN, noise=0.01)
    oracle_s = evaluator.plan(HIDDEN)[1]
    result = calibrate(evaluator, record_dir=tmp_path, seed=1, max_evaluations=6)
    assert result.status == "promoted"
    assert result.estimate.overheads.dispatch_s["opencl"] == pytest.approx(3e-3, rel=0.02)
    assert result.measured_s == pytest.approx(oracle_s, rel=0.03)
    assert result.predicted_s == pytest.approx(result.measured_s, rel=0.05)
    assert result.comparison.gain_low <= result.comparison.gain <= result.comparison.gain_high
    assert result.comparison.gain_low > 0.2
    assert result.band.low_s < result.measured_s < result.band.high_s
    stored = json.loads((tmp_path / "result.json").read_text())
    assert (stored["status"], stored["text"]) == ("promoted", result.text)


def test_nothing_hidden_promotes_nothing(tmp_path):
    statuses = [
        calibrate(ToyEvaluator(noise=0.02, seed=s), record_dir=tmp_path / str(s), seed=s, max_evaluations=5).status
        for s in range(4)
    ]
    assert statuses == ["kept"] * 4


def test_fewer_than_five_programs_leave_nothing_to_calibrate(tmp_path):
    evaluator = ToyEvaluator(HIDDEN, tasks=1)
    result = calibrate(evaluator, record_dir=tmp_path)
    assert (result.status, result.distinct_programs, evaluator.measured) == ("nothing to calibrate", 2, [])
    assert result.overheads == Overheads()
    assert "reach only 2 different programs" in result.text


def test_a_program_is_measured_once_and_evaluations_are_bounded(tmp_path):
    evaluator = ToyEvaluator(HIDDEN, noise=0.01)
    result = calibrate(evaluator, record_dir=tmp_path, seed=3, max_evaluations=5)
    searched = [program_key(p) for p, repeats in evaluator.measured if repeats > 1]
    assert len(searched) == len(set(searched)) == result.evaluations <= 5


@pytest.mark.parametrize("runs_before", [0, 1, 3, 12])
def test_killed_and_resumed_repeats_nothing_and_ends_the_same(tmp_path, runs_before):
    whole = ToyEvaluator(HIDDEN)
    expected = calibrate(whole, record_dir=tmp_path / "whole", seed=2, max_evaluations=4)

    class Dying(ToyEvaluator):
        def measure(self, program, repeats):
            if len(self.measured) == runs_before:
                raise Killed
            return super().measure(program, repeats)

    first = Dying(HIDDEN)
    with pytest.raises(Killed):
        calibrate(first, record_dir=tmp_path / "cut", seed=2, max_evaluations=4)
    with (tmp_path / "cut" / "journal.jsonl").open("a") as file:
        file.write('{"step": "run", "key": "cut o')
    second = ToyEvaluator(HIDDEN)
    resumed = calibrate(second, record_dir=tmp_path / "cut", seed=2, max_evaluations=4, resume=True)
    assert resumed == expected
    assert journal(tmp_path / "cut") == journal(tmp_path / "whole")
    assert len(first.measured) + len(second.measured) == len(whole.measured)


def test_a_finished_calibration_resumes_without_planning_or_measuring(tmp_path):
    expected = calibrate(ToyEvaluator(HIDDEN), record_dir=tmp_path, max_evaluations=4)
    again = ToyEvaluator(HIDDEN)
    assert calibrate(again, record_dir=tmp_path, max_evaluations=4, resume=True) == expected
    assert (again.planned, again.measured) == (0, [])


def test_three_failures_in_a_row_end_it_with_the_reason(tmp_path):
    evaluator = ToyEvaluator(HIDDEN)
    evaluator.fail = lambda run: run >= 2
    with pytest.raises(
        CalibrationError, match=r"3 evaluations in a row failed.*rank 2: boom; the plan in use is unchanged"
    ):
        calibrate(evaluator, record_dir=tmp_path, max_evaluations=8)
    assert len(evaluator.measured) == 4
    assert not (tmp_path / "result.json").exists()


def test_single_failures_are_survived(tmp_path):
    evaluator = ToyEvaluator(HIDDEN)
    evaluator.fail = lambda run: run % 5 == 1
    assert calibrate(evaluator, record_dir=tmp_path, max_evaluations=6).status == "promoted"


def test_records_are_not_mixed(tmp_path):
    calibrate(ToyEvaluator(HIDDEN), record_dir=tmp_path, max_evaluations=3)
    with pytest.raises(CalibrationError, match="resume it"):
        calibrate(ToyEvaluator(HIDDEN), record_dir=tmp_path, max_evaluations=3)
    with pytest.raises(CalibrationError, match=r"other settings \(seed 0 → 5\)"):
        calibrate(ToyEvaluator(HIDDEN), record_dir=tmp_path, max_evaluations=3, seed=5, resume=True)
    (tmp_path / "journal.jsonl").write_text("a diary\n")
    with pytest.raises(StoreError, match="is damaged"):
        calibrate(ToyEvaluator(HIDDEN), record_dir=tmp_path, max_evaluations=3, resume=True)


def test_too_few_evaluations_are_refused(tmp_path):
    with pytest.raises(CalibrationError, match="max_evaluations is 1"):
        calibrate(ToyEvaluator(), record_dir=tmp_path, max_evaluations=1)


def test_program_key_sees_placement_and_order_but_not_times():
    base = toy_program([0, 1, 0], [0, 1, 2], [1.0, 1.0, 1.0])
    assert program_key(toy_program([0, 1, 0], [0, 1, 2], [2.0, 3.0, 4.0])) == program_key(base)
    assert program_key(toy_program([0, 1, 1], [0, 1, 2], [1.0, 1.0, 1.0])) != program_key(base)
    assert program_key(toy_program([0, 1, 0], [2, 1, 0], [1.0, 1.0, 1.0])) != program_key(base)


def test_only_errors_of_ours_count_as_failed_evaluations(tmp_path):
    evaluator = ToyEvaluator(HIDDEN)

    def broken(program, repeats):
        raise ZeroDivisionError

    evaluator.measure = broken
    with pytest.raises(ZeroDivisionError):
        calibrate(evaluator, record_dir=tmp_path)


def test_a_finalist_that_fails_drops_out_and_the_rest_is_decided(tmp_path):
    evaluator = ToyEvaluator(HIDDEN)
    incumbent = program_key(evaluator.plan(Overheads())[0])
    tried = []

    def fail(run):
        program, repeats = evaluator.measured[-1]
        if repeats == 1:
            tried.append(program_key(program))
        others = [key for key in tried if key != incumbent]
        return repeats == 1 and bool(others) and tried[-1] == others[0]

    evaluator.fail = fail
    result = calibrate(evaluator, record_dir=tmp_path, max_evaluations=8)
    broken = next(key for key in tried if key != incumbent)
    assert tried.count(broken) == 2
    assert len(set(tried)) >= 3
    assert result.status == "promoted"
    assert program_key(evaluator.plan(result.overheads)[0]) != broken


def test_an_incumbent_that_fails_again_and_again_ends_acceptance(tmp_path):
    evaluator = ToyEvaluator(HIDDEN)
    incumbent = program_key(evaluator.plan(Overheads())[0])
    evaluator.fail = lambda run: evaluator.measured[-1][1] == 1 and program_key(evaluator.measured[-1][0]) == incumbent
    with pytest.raises(CalibrationError, match="failed"):
        calibrate(evaluator, record_dir=tmp_path, max_evaluations=8)
