"""Programs in benchmarks/ refuse what they cannot use in one line, before they measure or write anything."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

# The package, before a folder with a program of that name is on the path.
import calibration  # noqa: F401
from heterotask_core.errors import ExecutionError, InstanceError

ROOT = Path(__file__).parents[1]


def refused(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *given: str | Path
) -> str:
    """Return the line that a program ends with, exit code 2; ``program``: a module's name, in a folder or not."""
    folder, _, name = program.rpartition("/")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    if folder:
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / folder))
    shared, module = importlib.import_module("arguments"), importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, given)])
    with pytest.raises(SystemExit) as end:
        shared.run_program(module.main)
    printed = capsys.readouterr()
    assert end.value.code == 2, printed
    lines = [line for line in printed.err.splitlines() if not line.startswith("left out: ")]
    assert len(lines) == 1, printed.err
    assert re.match(r"[a-z_]+\.py: ", lines[0])
    return lines[0]


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    """A folder of one file that is no instance."""
    folder = tmp_path / "instances"
    folder.mkdir()
    (folder / "random-1.json").write_text("{}")
    return folder


FOLDERS = {
    "empty": (("EMPTY",), "has no file *.json*"),
    "missing": (("MISSING",), "is not there; name a folder"),
    "no instance": (("FOLDER",), "no file holds an instance"),
    "match": (("FOLDER", "--match", "wf-*"), "has no file wf-*"),
    "pattern": (("FOLDER", "--match", ""), "'' is no pattern"),
    "evaluations": (("FOLDER", "--evaluations", "-1"), "--evaluations: -1 is less than 0"),
}
PLANNER = {
    "classes": (("FOLDER", "--classes", "wf"), "no class that begins with 'wf'; there are random"),
    "no planner": (("FOLDER", "--planners", ""), "--planners: '' names nothing"),
    "planners": (("FOLDER", "--planners", "nope"), "--planners: 'nope' is unknown; there are portfolio"),
    "only CP-SAT": (("FOLDER", "--planners", "cpsat"), "leaves nothing without --cpsat"),
    "tiles": (("FOLDER", "--tiles", "4,x"), "--tiles: 'x' is not a whole number"),
    "nothing to enlarge": (("FOLDER", "--tiles", "4"), "no file holds a Cholesky factorisation"),
    "seeds": (("FOLDER", "--seeds", "0"), "--seeds: 0 is less than 1"),
    "time": (("FOLDER", "--time-budget", "-1"), "--time-budget: -1 must be 0 or more"),
    "no time": (("FOLDER", "--time-budget", "nan"), "--time-budget: 'nan' is not a finite number"),
    "checker": (("FOLDER", "--checker", "MISSING"), "there is no such file"),
    "a file for a folder": (("FOLDER", "--out", "FILE"), "is a file, not a folder"),
    "a file in a file": (("FOLDER", "--out", "FILE/x"), "is a file, not a folder"),
    "no place": (("FOLDER", "--out", "/proc/x"), "/proc cannot be written into"),
}
BUFFERS = {
    "planner": (("FOLDER", "--planner", "nope"), "--planner: 'nope' is unknown"),
    "limit": (("FOLDER", "--limit", "-1"), "--limit: -1 must be 0 or more"),
}


@pytest.mark.parametrize(
    ("program", "given", "told"),
    [
        pytest.param(program, *case, id=f"{program} {what}")
        for program, cases in {"planner": FOLDERS | PLANNER, "buffers": FOLDERS | BUFFERS}.items()
        for what, case in cases.items()
    ],
)
def test_folders_of_instances(
    program: str,
    given: tuple[str, ...],
    told: str,
    instances: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HETEROTASK_INSTANCES", raising=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    names = {"FOLDER": "instances", "EMPTY": "empty", "MISSING": "missing"}
    before = sorted(tmp_path.rglob("*"))
    words = [names.get(word, word.replace("FILE", "file")) for word in given]
    assert told in refused(program, monkeypatch, capsys, *words)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_file_says_of_starpu_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    planner = importlib.import_module("planner")
    instance = importlib.import_module("heterotask_core.planning.instance")
    document = {
        "format": "heterotask-instance/1",
        "memories": [{"name": "m", "node": "n"}],
        "devices": [{"name": "d", "kind": "cpu", "memory": "m"}],
        "kernels": {"k": {"seconds": {"cpu": 1.0}}},
        "tasks": [{"name": "t", "kernel": "k"}],
    }
    for meta, found in (
        ({"starpu_makespan_s": [1.0], "optimal": "yes"}, {}),
        ({"starpu_makespan_s": {"nocost": {"lws": "1", "dmda": 0}}, "cpsat": {"status": "OPTIMAL"}}, {}),
        ({"starpu_makespan_s": {"nocost": {"dmdas": 2.0, "lws": 1.5}}}, {"starpu": 1.5, "dmdas": 2.0}),
        ({"starpu_makespan_s": {"default": {"dmdas": 3.0}}}, {"dmdas": 3.0}),
        ({"optimal": {"status": "OPTIMAL", "makespan": 4.0}}, {"optimum": 4.0}),
    ):
        problem = instance.instance_to_problem(json.loads(json.dumps(document | {"meta": meta})))
        assert planner.references(problem) == found


MEASURED = {
    "draw": 0, "family": "null", "devices": "GPU", "status": "rejected", "evaluations": 6, "runs": 9,
    "makespan_s": dict.fromkeys(("uncalibrated", "regression + BO", "accepted", "oracle"), 1.0),
    "true_s": dict.fromkeys(("uncalibrated", "regression + BO", "accepted", "oracle"), 1.0),
    "half": {}, "seconds": {}, "spent": {}, "makespan_before": 0.1, "makespan_after": 0.1,
}  # fmt: skip
"""A row of the calibration's benchmark with the arms that there have to be."""


def _without(arm: str) -> dict[str, object]:
    return MEASURED | {"makespan_s": {name: 1.0 for name in MEASURED["makespan_s"] if name != arm}}  # type: ignore[attr-defined]


CALIBRATION = {
    "seed": (("--seed", "-1"), "--seed: -1 is less than 0"),
    "first": (("--first", "-1"), "--first: -1 is less than 0"),
    "draws": (("--draws", "x"), "--draws: 'x' is not a whole number"),
    "evaluations": (("--evaluations", "1"), "--evaluations: 1 is less than 2"),
    "families": (("--families", "null,odd"), "--families: 'odd' is unknown; there are additive, interference, null"),
    "no modes": (("--modes", ""), "--modes: '' names nothing"),
    "no prior": (("--prior", "missing"), "missing: there is no such file"),
    "prior first": (("--prior", "prior.yaml", "--out", "out"), "prior.yaml, known: Field required"),
    "prior's key": (("--prior", "prior.yaml"), "sections: Extra inputs are not permitted"),
    "no file": (("--read", "missing"), "--read: missing: there is no such file"),
    "empty": (("--read", "empty"), "empty holds no rows"),
    "other rows": (("--read", "other"), "other, line 1: draw: Field required"),
    "no oracle": (("--read", "arms"), "arms, line 1: Value error, makespan_s lacks 'oracle'"),
    "other arms": (("--read", "rows", "more"), "more, line 1: its arms or errors are not those of the first line"),
    "append to other": (("--out", "other"), "other, line 1: draw: Field required"),
}


@pytest.mark.parametrize("what", CALIBRATION)
def test_calibration(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prior.yaml").write_text("sections: {}")
    more = {name: MEASURED[name] | {"regression": 1.0} for name in ("makespan_s", "true_s")}  # type: ignore[operator]
    rows = {
        "empty": [],
        "other": [{"x": 1}],
        "arms": [_without("oracle")],
        "rows": [MEASURED],
        "more": [MEASURED | more],
    }
    for name, lines in rows.items():
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    given, told = CALIBRATION[what]
    assert told in refused("calibration_ablation", monkeypatch, capsys, *given)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


OTHERS = {
    "planner_speed": (
        (("--sizes", "0"), "--sizes: 0 is less than 1"),
        (("--evaluations", "0"), "--evaluations: 0 is less than 1"),
        (("--json", "file/x"), "file is a file, not a folder"),
    ),
    "policies": (
        ((), "name a folder of instances, or set HETEROTASK_INSTANCES"),
        (("empty",), "empty has no file starpu-*.json*"),
        (("starpu",), "no file holds StarPU's makespans"),
        (("starpu", "--out", "empty"), "--out: 'empty' is a folder; name a file"),
    ),
    "gpu_check": ((("now",), "unrecognized arguments: now"),),
    "overhead": ((("now",), "unrecognized arguments: now"),),
    "session": ((("--runs", "0"), "--runs: 0 is less than 1"),),
    "metg": (
        (("--width", "0"), "--width: 0 is less than 1"),
        (("--output-bytes", "20"), "--output-bytes: 20 bytes are no whole number of doubles"),
        (("--repeats", "1"), "--repeats: 1 is less than 2"),
        (("--json", "."), "--json: '.' is a folder"),
    ),
    "prediction": (
        (("nope",), "no application 'nope'"),
        (("heat", "-p", "size"), "parameter 'size' has no value"),
        (("heat", "--devices", "nope"), "devices 'nope': unknown kind"),
        (("heat", "--profile-budget", "inf"), "--profile-budget: 'inf' is not a finite number"),
    ),
    "apps": (
        (("--devices", "nope"), "--devices: devices 'nope': unknown kind"),
        (("--repeats", "x"), "--repeats: 'x' is not a whole number"),
        (("--out", "file/x"), "file is a file, not a folder"),
    ),
    "apps_at_size": ((("--apps", "nope"), "--apps: invalid choice: 'nope'"),),
    "starpu/sweep": (
        (("--app", "kmeans", "--tiles", "100000000"), "kmeans: block: Input should be less than"),
        (("--devices", "nope"), "--devices: devices 'nope'"),
    ),
    "starpu/same": ((("--rounds", "0"), "--rounds: 0 is less than 1"),),
    "starpu/simulated": (
        (("missing",), "missing: there is no such file"),
        (("starpu/starpu-a.json",), "starpu/starpu-a.json: $.format"),
        (("--platform", "file", "--apps", "heat"), "file: the first key must be"),
        (("--noise", "-1"), "--noise: -1 must be 0 or more"),
    ),
}


@pytest.mark.parametrize(
    ("program", "given", "told"),
    [
        pytest.param(program, *case, id=f"{program} {' '.join(case[0])}")
        for program, cases in OTHERS.items()
        for case in cases
    ],
)
def test_other_programs(
    program: str,
    given: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HETEROTASK_INSTANCES", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for folder in ("empty", "starpu"):
        (tmp_path / folder).mkdir()
    (tmp_path / "starpu" / "starpu-a.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    assert told in refused(program, monkeypatch, capsys, *given)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InstanceError("a.json:\n  no tasks"), 2, "x.py: a.json: no tasks\n"),
        (ExecutionError("rank 1 is lost\nits last output"), 1, "x.py: rank 1 is lost\nits last output\n"),
        (OSError(28, "No space left on device"), 1, "x.py: [Errno 28] No space left on device\n"),
        (
            subprocess.CalledProcessError(3, ["cc", "a.c"], None, "in a.c\nno main\n"),
            1,
            "x.py: cc a.c failed: no main\n",
        ),
        (subprocess.CalledProcessError(3, ["cc", "a.c"]), 1, "x.py: cc a.c failed: exit code 3\n"),
        (LookupError("its own"), 1, "x.py: its own\n"),
    ],
)
def test_errors_end_a_program_without_a_traceback(
    error: Exception, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["folder/x.py"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module("arguments").run_program(main, LookupError)
    assert (end.value.code, capsys.readouterr().err) == (code, told)


def test_a_program_that_sets_the_environment() -> None:
    program = ROOT / "benchmarks" / "canny_variants.py"
    command = [sys.executable, str(program), "--tile", "16", "--kernels", "sobel,nope"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("canny_variants.py: argument --kernels: 'nope' is unknown; there are weights, load")


def test_every_program_refuses_by_the_same_rules() -> None:
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        text = path.read_text()
        if '__name__ == "__main__"' in text and path.name not in ("metg_mpi.py", "worker.py"):
            assert "run_program(main)" in text or "run_case_program(main)" in text, path
            assert "argparse.ArgumentParser(" not in text, path
