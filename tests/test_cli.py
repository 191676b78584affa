"""The command: one line for every kind of bad input, JSON for scripts, and the whole demo at a small size."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import typer

from heterotask_core import cli
from heterotask_core.errors import StoreError

SMALL = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:1", "--profile-budget", "1", "--evaluations", "5"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "nosuch"], "nosuch"),
        (["run", "canny", "-p", "nosuch=1"], "nosuch"),
        (["run", "canny", "-p", "sigma=-1"], "sigma"),
        (["run", "canny", "-p", "image=missing.png"], "missing.png"),
        (["run", "canny", "--devices", "cpu:0"], "device"),
        (["run", "canny", "--devices", "tpu:1"], "tpu"),
        (["plan", "--instance", "missing.json"], "missing.json"),
        (["report", "nosuch"], "nosuch"),
        (["run", "canny", "-p", "size"], "name=value"),
        (["run", "canny", "-p", "size=64", "-p", "size=65"], "twice"),
        (["run", "canny", "--store", "/dev/null/store"], "/dev/null/store"),
        (["run", "canny", "--store", "/dev/null"], "is a file"),
        (["plan", "canny", "--planner", "nosuch"], "nosuch"),
        (["run", "canny", *SMALL, "--planner", "nosuch"], "nosuch"),
        (["run", "canny", *SMALL, "--launcher", "nosuch"], "unknown launcher 'nosuch'"),
        (["execute", "canny", "--plan", "nosuch"], "nosuch"),
        (["calibrate", "nosuch"], "nosuch"),
        (["profile", "canny", "--import", "missing.csv"], "missing.csv"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(heterotask, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROTASK_LAUNCHER", "")  # --launcher sets it: to be undone
    code, _, err = heterotask(*argv)
    assert code == 1
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "manifest.json"] == []


def test_missing_mpiexec_is_said_before_anything_is_measured(heterotask, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = heterotask("run", "canny", *SMALL, "--store", tmp_path / "store")
    assert code == 1
    assert err == (
        f"error: mpiexec is neither beside {tmp_path}/python nor in PATH; "
        f"run `{tmp_path}/python -m pip install mpich`\n"
    )
    assert not (tmp_path / "store").exists()


def test_image_too_small_or_unreadable(heterotask, tmp_path):
    from PIL import Image

    Image.fromarray(np.zeros((2, 5), np.uint8)).save(tmp_path / "tiny.png")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    for name in ("tiny.png", "torn.png"):
        code, _, err = heterotask("run", "canny", "-p", f"image={tmp_path / name}", "--store", tmp_path / "store")
        assert code == 1
        assert len(err.strip().splitlines()) == 1
        assert name in err


def test_foreign_store_is_refused(heterotask, tmp_path):
    (tmp_path / "thesis.tex").write_text("not ours")
    code, _, err = heterotask("run", "canny", *SMALL, "--store", tmp_path)
    assert code == 1
    assert str(tmp_path) in err
    assert (tmp_path / "thesis.tex").read_text() == "not ours"


@pytest.mark.mpi
def test_run_reuses_profile_and_plan_and_refuses_what_is_stale(heterotask, tmp_path, monkeypatch):
    store = tmp_path / "store"
    code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--check", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["check"]["passed"]
    assert first["profile"]["measured"] > 0
    assert first["makespan_s"][0] >= first["lower_bound_s"] * 0
    run = store / "runs" / first["folder"].rsplit("/", 1)[1]
    names = {p.name for p in run.iterdir()}
    assert {"edges.png", "gantt.svg", "trace.parquet", "trace.perfetto.json", "summary.json"} <= names

    code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--json")
    assert code == 0, err
    second = json.loads(out)
    assert second["profile"] == {"measured": 0, "reused": first["profile"]["measured"]}
    assert second["plan"]["reused"]
    assert second["plan"]["folder"] == first["plan"]["folder"]

    code, out, err = heterotask("report", "--store", store)
    assert code == 0, err
    assert "makespan: predicted" in out

    summary = next((store / "runs").glob("*/summary.json"))
    content = summary.read_text()
    for damaged in ("", "[]", "{}"):
        summary.write_text(damaged)
        code, out, err = heterotask("report", summary.parent)
        assert (code, out) == (1, "")
        assert "summary.json is damaged or of another version" in err
        assert len(err.splitlines()) == 1
    summary.write_text(content)

    other = ["-p", "size=128", "-p", "tile=32", "--devices", "cpu:1", "--store", store]
    code, _, err = heterotask("execute", "canny", "--plan", first["plan"]["folder"], *other)
    assert code == 1
    assert "another graph" in err
    other = ["-p", "size=128", "-p", "tile=64", "--devices", "cpu:2", "--store", store]
    code, _, err = heterotask("execute", "canny", "--plan", first["plan"]["folder"], *other)
    assert code == 1
    assert "another platform" in err

    for table in (store / "profiles").rglob("*.parquet"):
        content = table.read_bytes()
        table.write_bytes(content[:100])
        code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--json")
        assert (code, out) == (1, "")
        assert str(table) in err
        assert "run `heterotask profile` again" in err
        assert len(err.splitlines()) == 1
        table.write_bytes(content)
    plan = Path(first["plan"]["folder"])
    for name in ("program.npz", "program.json"):
        content = (plan / name).read_bytes()
        (plan / name).write_bytes(content[:100])
        code, out, err = heterotask("run", "canny", *SMALL, "--store", store, "--json")
        assert (code, out) == (1, "")
        assert "delete this folder and plan again" in err
        assert len(err.splitlines()) == 1
        (plan / name).write_bytes(content)


def test_every_command_has_help_and_takes_json(heterotask):
    for command in ("apps", "platform", "profile", "plan", "execute", "calibrate", "run", "report", "doctor"):
        code, out, err = heterotask(command, "--help")
        assert (code, err) == (0, "")
        assert "--json" in out, command


def test_h_is_help_everywhere(heterotask, capsys):
    assert heterotask("-h")[0] == 0
    group = typer.main.get_command(cli.app)
    assert {"plan", "profile", "whatif", "calibrate", "deploy", "wf"} <= {*group.commands}
    for argv in (*([name] for name in group.commands), ["instance", "export"], ["instance", "sort"]):
        said = []
        for option in ("-h", "--help"):
            assert group.main([*argv, option], prog_name="heterotask", standalone_mode=False) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
        assert "Usage: heterotask" in said[0]


def test_json_is_one_document(heterotask, tmp_path):
    code, out, err = heterotask("apps", "--json")
    assert (code, err) == (0, "")
    assert "canny" in {found["name"] for found in json.loads(out)}
    code, out, err = heterotask("platform", "--devices", "cpu:1", "--json")
    assert (code, err) == (0, "")
    assert [d["kind"] for d in json.loads(out)["devices"]] == ["cpu"]
    code, out, err = heterotask("run", "nosuch", "--json")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_an_error_of_several_lines_or_of_the_system_is_one_line(heterotask, monkeypatch):
    for raised, said in (
        (StoreError("a\n  b\n"), "error: a; b\n"),
        (PermissionError(13, "Permission denied", "/x"), "error: [Errno 13] Permission denied: '/x'\n"),
    ):
        monkeypatch.setattr("heterotask_core.apps.list_applications", lambda raised=raised: throw(raised))
        assert heterotask("apps") == (1, "", said)


def throw(error):
    raise error


def test_a_command_of_another_package_that_cannot_be_loaded_harms_no_other(heterotask, monkeypatch):
    broken = EntryPoint("torn", "no_such_module:command", "heterotask.commands")
    monkeypatch.setattr(cli, "entry_points", lambda **_: [broken])
    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
    assert heterotask("platform", "--devices", "cpu:1")[0] == 0
    code, _, err = heterotask("torn")
    assert code == 1
    assert err == (
        "error: the command 'torn' cannot be loaded (ModuleNotFoundError: No module named 'no_such_module'); "
        "install the package that brings it again\n"
    )


def test_a_kernel_that_nothing_here_can_run_is_refused_before_anything_is_measured(heterotask, tmp_path, monkeypatch):
    (tmp_path / "gpu_only_app.py").write_text(SLOW_APP.replace('"cpu"', '"cuda"').replace("slow_app", "gpu_only_app"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *filter(None, sys.path)])
    code, _, err = heterotask("run", "gpu_only_app:APP", "--devices", "cpu:1", "--store", tmp_path / "store")
    assert code == 1
    assert err.strip() == (
        "error: kernel 'forever' (task 'forever-0') has no usable variant for the devices present (cpu); "
        "its variants: plain (cuda); add a device with --devices"
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_profile_ends_its_processes_and_leaves_nothing(tmp_path, number):
    (tmp_path / "slow_app.py").write_text(SLOW_APP)
    command = [sys.executable, "-m", "heterotask_core.cli", "profile", "slow_app:APP", "--devices", "cpu:1"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    started = tmp_path / "started"
    with subprocess.Popen(
        [*command, "--store", str(tmp_path / "store")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, as this test may be one, ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        try:
            while not started.exists() and process.poll() is None:
                os.sched_yield()
            child = int(started.read_text())
            job = Path(Path(f"/proc/{child}/cmdline").read_text().split("\0")[-2])
            process.send_signal(number)
            err = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + number
    said = [line for line in err.splitlines() if line.strip()]
    assert said == ["interrupted: everything that was started is ended, complete records are kept"]
    assert not job.parent.exists()
    assert not Path(f"/proc/{child}").exists()
    assert list((tmp_path / "store").rglob("timings.parquet")) == []


SLOW_APP = """
import os, time
from pathlib import Path
from pydantic import BaseModel
from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant

def forever(*, y):
    Path(__file__).with_name("part").write_text(str(os.getpid()))
    Path(__file__).with_name("part").rename(Path(__file__).with_name("started"))
    while True:
        time.sleep(60)

FOREVER = Kernel("forever", __name__, writes=("y",), variants=(Variant("plain", "cpu", "slow_app:forever"),))

class App:
    name, summary = "slow", "never ends"
    class Params(BaseModel):
        pass
    def build(self, params):
        graph = TaskGraph("slow")
        graph.add(FOREVER, writes={"y": graph.data("y", shape=(1,), dtype="uint8")})
        return graph
    def check(self, params, output_dir):
        raise NotImplementedError

APP = App()
"""


CALLBACK_APP = """
import ctypes, signal, sys, time
from pydantic import BaseModel

class App:
    name, summary = "callback", "is told to end while it is in a callback from C"
    class Params(BaseModel):
        number: int
        times: int
        fails: bool
    def build(self, params):
        left = [params.times]
        def called():
            left[0] -= 1
            signal.raise_signal(params.number)
        for _ in range(params.times):
            ctypes.CFUNCTYPE(None)(called)()
        print("goes on" if left == [0] else left, flush=True)
        if params.fails:
            raise RuntimeError("the callback has done nothing")
        while True:
            time.sleep(60)
    def check(self, params, output_dir):
        raise NotImplementedError

APP = App()
"""


@pytest.mark.parametrize(
    ("number", "times", "fails"),
    [(signal.SIGINT, 20, False), (signal.SIGTERM, 1, False), (signal.SIGHUP, 1, False), (signal.SIGINT, 1, True)],
)
def test_a_signal_in_a_callback_from_c_ends_the_command_too(tmp_path, number, times, fails):
    (tmp_path / "callback_app.py").write_text(CALLBACK_APP)
    command = [sys.executable, "-m", "heterotask_core.cli", "plan", "callback_app:APP", "--devices", "cpu:1"]
    given = [f"number={int(number)}", f"times={times}", f"fails={fails}"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, *(word for value in given for word in ("-p", value)), "--store", str(tmp_path / "store")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert (done.returncode, done.stdout) == (128 + number, "goes on\n")
    assert said == ["interrupted: everything that was started is ended, complete records are kept"]


def test_under_nohup_the_end_of_the_terminal_ends_nothing():
    probe = (
        "import os, signal, sys\n"
        "from heterotask_core import cli\n"
        "@cli.app.command('hang-up')\n"
        "def hang_up():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    print('goes on')\n"
        "sys.argv = ['heterotask', 'hang-up']\n"
        "cli.main()\n"
    )
    ends = {signal.SIG_IGN: (0, "goes on\n"), signal.SIG_DFL: (129, "")}
    for handler, expected in ends.items():
        done = subprocess.run(
            [sys.executable, "-c", probe],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda handler=handler: signal.signal(signal.SIGHUP, handler),
        )
        assert (done.returncode, done.stdout) == expected


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; sys.argv=['heterotask','--help']\n"
        "from heterotask_core import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'prefect', 'polars', 'numba', 'skopt', 'mpi4py', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, timeout=60)
