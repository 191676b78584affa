"""Rounds survive a killed run and become the tables that they are; a limited time is shared out among the cases."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "starpu"))

import compare
from checks import shared
from rows import Rows, best, lost, overview, ratio, table

CASE = "heat size=64 on cpu:2"


def filled(rows: Rows, *, done: bool = True) -> Rows:
    """Three rounds in which we need 2 ms and 1.5 s, dmda 1 ms and 2 s; lws was left out."""
    rows.add(case=CASE, left_out={"lws": 0.005})
    for k in range(3):
        own = {"step": 0.003, "store": 0.002 + k * 0.001}
        rows.add(case=CASE, side="HeteroTask", round=k, makespan_s=0.002, completion_s=1.5, once_s=0.003, kernels=own)
        for side, makespan_s in (("dmda", 0.001), ("dmdas", 0.004)):
            parts = {"native_s": 0.2, "python_s": 1.0, "start_s": 0.15}
            rows.add(
                case=CASE,
                side=side,
                round=k,
                makespan_s=makespan_s,
                completion_s=2.0,
                once_s=0.005,
                **parts,
                kernels={"step": 0.002},
            )
    if done:
        rows.add(case=CASE, done=True, report="busy 90 %\nidle 10 %")
    return rows


def test_a_file_gives_back_what_was_added(tmp_path: Path) -> None:
    rows = filled(Rows(tmp_path / "r.jsonl"))
    assert Rows.read(tmp_path / "r.jsonl").rows == rows.rows


def test_a_line_that_was_cut_off_is_dropped_and_the_case_starts_anew(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    filled(Rows(file), done=False)
    with file.open("a") as stream:
        stream.write('{"case": "hea')
    rows = Rows.read(file)
    assert (rows.done(CASE), len(rows.rows)) == (None, 10)
    rows.add(case="other", failed="no worker")
    rows.forget(CASE)
    assert Rows.read(file).cases() == ["other"]


def test_a_case_starts_without_a_file_and_with_one_in_a_new_folder(tmp_path: Path) -> None:
    without, file = Rows(), tmp_path / "new" / "r.jsonl"
    for rows in (without, Rows.read(file)):
        rows.forget(CASE)
        filled(rows)
    assert Rows.read(file).rows == without.rows


def test_reading_what_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", "--read", str(tmp_path / "no.jsonl")])
    with pytest.raises(SystemExit) as end:
        compare.main()
    assert end.value.code == 2
    assert "no.jsonl: there is no such file" in capsys.readouterr().err


ROUND = '{"case": "a", "side": "dmdas", "round": 0, "makespan_s": 1.0, "completion_s": 2.0, "once_s": 1.0}\n'
FOREIGN = {
    "a text": ("hello", "its last line is no round"),
    "lines of text": ("hello\nyou\n", "line 1: Invalid JSON"),
    "other JSON": ("[1]\n", "line 1: Input should be an object"),
    "other rows": ('{"x": 1}\n', "line 1: case: Field required"),
    "half a round": (ROUND + '{"case": "a", "side": "dmda"}\n', "line 2: Value error, a round has makespan_s"),
    "no seconds": (ROUND.replace("1.0", '"long"'), "line 1: makespan_s: Input should be a valid number"),
    "no kind": ('{"case": "a", "round": 1}\n', "line 1: Value error, it is no round"),
    "nothing done": ('{"case": "a", "done": true, "report": ""}\n', "a is done without rounds of HeteroTask and dmdas"),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("option", ["--read", "--out"])
def test_a_file_of_something_else_is_refused_and_stays(
    what: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, told = FOREIGN[what]
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["compare.py", option, str(file)])
    with pytest.raises(shared.RefusedError, match=rf"r\.jsonl.*{told}"):
        compare.main()
    assert file.read_text() == text


def test_reading_leaves_a_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    filled(Rows(file))
    with file.open("a") as stream:
        stream.write('{"ca')
    text = file.read_text()
    monkeypatch.setattr(sys, "argv", ["compare.py", "--read", str(file)])
    assert compare.main() == 0
    assert capsys.readouterr().out.startswith(f"{CASE}\n")
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--rounds", "0"), "--rounds: 0 is less than 1"),
        (("--time-limit", "0"), "--time-limit: 0 must be above 0"),
        (("--tune", "-1"), "--tune: -1 is less than 0"),
        (("--devices", "nope"), "--devices: devices 'nope'"),
        (("--devices", "cpu:1x2"), "--devices: devices 'cpu:1x2': cpu:N and opencl:N"),
        (("--devices", "0xcpu:1"), "--devices: 0 nodes asked for"),
        (("--apps", "nope"), "--apps: invalid choice: 'nope'"),
        (("--out", "."), "--out: '.' is a folder; name a file"),
        (("--read", "."), "--read: . is a folder; name a file"),
    ],
)
def test_arguments_are_checked_first(
    given: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", *given])
    with pytest.raises(SystemExit) as end:
        compare.main()
    printed = capsys.readouterr().err
    assert (end.value.code, len(printed.splitlines())) == (2, 1)
    assert told in printed


def test_the_best_has_the_smallest_median() -> None:
    sides = filled(Rows()).sides(CASE)
    assert (best(sides, "makespan_s"), best(sides, "completion_s")) == ("dmda", "dmda")
    assert lost(sides) == ["makespan_s"]


def test_a_table_says_where_a_lost_makespan_went() -> None:
    lines = list(table(filled(Rows()), CASE))
    assert lines[0] == CASE
    assert "  left out: lws 5.0" in lines
    assert lines[3].split() == [
        "dmda",
        "1.0",
        "2.000",
        "2.000-",
        "2.000",
        "2000",
        "0.750",
        "0.750-",
        "0.750",
        "200",
        "3",
    ]
    assert lines[-5:] == [
        "  our makespan is longer; tasks of a kernel together, ours and StarPU's:",
        "    store 3.0 / 0.0, step 3.0 / 2.0, all 6.0 / 2.0",
        "  where our time went (heterotask report):",
        "    busy 90 %",
        "    idle 10 %",
    ]


def test_a_table_says_what_a_lost_completion_consists_of() -> None:
    rows = Rows()
    rows.add(case=CASE, side="HeteroTask", round=0, makespan_s=0.001, completion_s=1.5, once_s=0.003)
    parts = {"native_s": 0.2, "python_s": 0.9, "start_s": 0.15}
    rows.add(case=CASE, side="dmdas", round=0, makespan_s=0.002, completion_s=1.2, once_s=0.005, **parts)
    rows.add(case=CASE, done=True, report="not printed")
    assert list(table(rows, CASE))[-3:] == [
        "  our completion is longer; where it goes:",
        "    HeteroTask: 3.0 ms tasks, 1497 ms starting and ending ranks",
        "    dmdas: 900 ms Python before StarPU, 150 ms starpu_init, 5.0 ms tasks, 145 ms the rest",
    ]


def test_a_failed_case_is_told_and_not_in_the_overview() -> None:
    rows = filled(Rows())
    rows.add(case="canny", failed="StarPU does not start")
    assert list(table(rows, "canny")) == ["canny", "  failed: StarPU does not start"]
    assert list(overview(rows))[2:] == [
        "| heat size=64 on cpu:2 | 3 | 2.0 | 1.0 `dmda` | 4.0 | **2.00 (2.00 to 2.00)** | 1,500 | 2,000 `dmda` "
        "| 0.75 (0.75 to 0.75) |"
    ]


def test_a_ratio_takes_the_rounds_of_both() -> None:
    assert ratio([1.0, 3.0, 100.0], [2.0, 2.0])[0] == 1.0


def test_what_early_cases_leave_is_shared_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = compare.Clock.of(1.0, [1, 1, 2])
    assert clock is not None
    assert clock.share() == 115.0
    now[0] = 130.0  # the first took twice its share
    assert clock.share() == 140.0
    now[0] = 135.0
    assert clock.share() == 160.0
    assert compare.Clock.of(None, [1]) is None


class FakeCase:
    """Rounds of a second a job."""

    key = CASE
    sides = ("HeteroTask", "lws", "dmda", "dmdas", "dmdar", "heteroprio")

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def once(self, label: str) -> dict[str, float]:
        self._now[0] += 1.0
        return {"completion_s": float(10 - self.sides.index(label)), "once_s": 0.5}

    def several(self, label: str) -> tuple[float, dict[str, float]]:
        self._now[0] += 1.0
        return float(10 - self.sides.index(label)), {}


def test_a_limited_time_goes_to_the_best_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows, case = Rows(), FakeCase(now)
    given: Any = case
    compare.measure(given, rows, rounds=15, end_s=44.0)
    # 5 s for a job of each, then 8 s a round for ours, dmdas and the two best.
    counts = {side: len(values["makespan_s"]) for side, values in rows.sides(CASE).items()}
    assert counts == {"HeteroTask": 4, "dmdas": 4, "dmdar": 4, "heteroprio": 4}
    assert rows.rows[0] == {"case": CASE, "left_out": {"lws": 9.0, "dmda": 8.0}}
    assert now[0] == 37.0
