"""What is left of a failed run: whole, in the run's own files only, and gone when the next run starts."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import failure_kernels as k
import numpy as np
import pytest
from failure_cases import chain
from hand_program import Builder
from runtime_kernels import FAIL, FILL, STORE, TWICE
from special_files import make_socket

from heterotask_core.errors import ExecutionError, LaunchError
from heterotask_core.program.model import Program
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.outputs import Outputs
from heterotask_core.runtime.partial import PARTIAL_FILE, drop_partial, keep_times, with_room
from heterotask_core.runtime.session import Session

START_S, FINISH_S = np.array([[1.0, 2.0]]), np.array([[1.5, -np.inf]])
KEPT = ["finish_s", "printed", "start_s"]


def _program(*names: str, kernel=TWICE) -> tuple[Program, Builder]:
    """fill → ``kernel`` → a store of every name."""
    b = Builder([("c0", "cpu", "n0")])
    x, y = b.slot("n0"), b.slot("n0")
    last = b.task("c0", FILL, {"output": x}, params={"value": 3})
    last = b.task("c0", kernel, {"input": x, "output": y}, [last])
    for name in names:
        last = b.task("c0", STORE, {"input": y}, [last], params={"path": {"output": name}})
    return b.build(), b


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


@pytest.mark.mpi
def test_on_a_full_disk_only_what_the_failed_run_wrote_makes_room(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("16m")
    mine = {
        "photographs.tar": os.urandom(8 << 20),
        "below/notes.txt": b"of mine",
        "sum.npy": b"an older result, which the run did not come to replace",
        "output-9.txt": b"of mine, too",
    }
    (disk / "below").mkdir()
    for name, content in mine.items():
        (disk / name).write_bytes(content)
    b = chain(k.FILLS_DISK)
    with pytest.raises(ExecutionError, match="No space left on device"):
        execute(b.build(), b.platform, output_dir=disk)
    assert {name: (disk / name).read_bytes() for name in mine} == mine
    assert "result.bin" not in _files(disk)
    with np.load(disk / PARTIAL_FILE) as stored:
        assert np.isfinite(stored["finish_s"]).any()
        printed = stored["printed"].tolist()
    assert "output-3.txt" in printed
    assert (disk / "output-3.txt").read_text().startswith("about to fail\n")
    assert _files(disk) == sorted([*mine, *printed, PARTIAL_FILE, "started"])


def test_results_that_the_run_wrote_go_the_largest_first_and_nothing_else_does(tmp_path: Path) -> None:
    program, _ = _program("large", "small", "older", "replaced", "link", "twin", "../outside", "below/deep")
    out = tmp_path / "out"
    (out / "below").mkdir(parents=True)
    for name in ("older", "replaced", "target", "first"):
        (out / name).write_bytes(bytes(3000))
    (out / "link").symlink_to(out / "target")
    (out / "twin").hardlink_to(out / "first")
    outputs = Outputs.of(program, out)
    for name, count in (("large", 1000), ("small", 10), ("replaced", 2000), ("../outside", 9000), ("below/deep", 500)):
        (out / name).write_bytes(bytes(count))
    (out / "unrelated").write_bytes(bytes(9000))
    tried = []

    def write() -> None:
        tried.append(_files(tmp_path))
        raise OSError(errno.ENOSPC, "No space left on device")

    with_room(outputs, write)
    gone = [sorted(set(a) - set(b)) for a, b in itertools.pairwise(tried)]
    assert gone == [["out/replaced"], ["out/large"], ["out/below/deep"], ["out/small"]]
    kept = ["out/first", "out/link", "out/older", "out/target", "out/twin", "out/unrelated", "outside"]
    assert _files(tmp_path) == kept


def test_other_errors_than_a_full_disk_cost_no_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program, _ = _program("result")
    outputs = Outputs.of(program, tmp_path)
    (tmp_path / "result").write_bytes(b"written")

    def write() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with_room(outputs, write)
    assert _files(tmp_path) == ["result"]
    assert "cannot be kept: Input/output error" in caplog.text


def test_what_a_run_wrote_is_known_in_another_process(tmp_path: Path) -> None:
    program, _ = _program("a", "b")
    (tmp_path / "a").write_bytes(b"older")
    before = Outputs.of(program, tmp_path)
    (tmp_path / "job").mkdir()
    before.save(tmp_path / "job")
    (tmp_path / "b").write_bytes(b"new")
    assert Outputs.load(tmp_path / "job") == before
    assert Outputs.load(tmp_path / "job").written() == [tmp_path / "b"]


def test_times_are_whole_and_replace_those_of_the_failed_run_before(tmp_path: Path) -> None:
    program, _ = _program()
    outputs = Outputs.of(program, tmp_path / "out")
    printed = [tmp_path / name for name in ("output-0.txt", "output-7.txt")]
    for path in printed:
        path.write_text(f"rank of {path.name}")
    keep_times(outputs, START_S, FINISH_S, printed)
    assert _files(tmp_path / "out") == ["output-0.txt", "output-7.txt", PARTIAL_FILE]
    keep_times(outputs, START_S, FINISH_S, printed[:1])
    assert _files(tmp_path / "out") == ["output-0.txt", PARTIAL_FILE]
    with np.load(tmp_path / "out" / PARTIAL_FILE) as stored:
        assert sorted(stored.files) == KEPT
        assert stored["start_s"].tolist() == [[1.0, np.inf]]
        assert stored["finish_s"].tolist() == [[1.5, np.inf]]
        assert stored["printed"].tolist() == ["output-0.txt"]


def test_what_is_not_left_of_a_run_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("output-0.txt", "output.txt", "notes.txt"):
        (tmp_path / name).write_text("of mine")
    drop_partial(tmp_path)
    np.savez(tmp_path / PARTIAL_FILE, mine=np.ones(3))
    drop_partial(tmp_path)
    (tmp_path / PARTIAL_FILE).write_bytes(b"PK\x03\x04 no archive")
    drop_partial(tmp_path)
    assert f"{tmp_path / PARTIAL_FILE} is left of another run, or of something else, and stays" in caplog.text
    assert len(_files(tmp_path)) == 4
    np.savez(tmp_path / PARTIAL_FILE, start_s=START_S, finish_s=FINISH_S, printed=np.array(["notes.txt", "output.txt"]))
    drop_partial(tmp_path)
    assert _files(tmp_path) == ["notes.txt", "output-0.txt"]


@pytest.mark.mpi
@pytest.mark.parametrize("in_session", [False, True])
def test_the_next_run_into_the_folder_removes_what_a_failed_one_left(tmp_path: Path, in_session: bool) -> None:
    bad, b = _program(kernel=FAIL)
    good, _ = _program("sum.npy")
    (tmp_path / "output-9.txt").write_text("of mine")
    with Session(b.platform) as session:
        run = session.run if in_session else lambda program, **options: execute(program, b.platform, **options)
        with pytest.raises(ExecutionError, match="no such luck"):
            run(bad, output_dir=tmp_path)
        assert PARTIAL_FILE in _files(tmp_path)
        run(good, output_dir=tmp_path)
    assert _files(tmp_path) == ["output-9.txt", "sum.npy"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "it is a FIFO, not a file; remove it, or name another"),
        (make_socket, "it is a socket, not a file; remove it, or name another"),
        (Path.mkdir, "it is a folder, not a file; remove it, or name another"),
        (lambda path: path.symlink_to("/dev/null"), "it is a device, not a file; remove it, or name another"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links; name another"),
    ],
)
def test_something_else_in_the_place_of_a_result_is_refused_before_the_start(tmp_path: Path, make, kind: str) -> None:
    program, b = _program("a.npy", "b.npy")
    make(tmp_path / "b.npy")
    with Session(b.platform) as session:
        for run in (session.run, lambda program, **options: execute(program, b.platform, **options)):
            with pytest.raises(LaunchError) as caught:
                run(program, output_dir=tmp_path)
            assert str(caught.value) == f"{tmp_path / 'b.npy'}: task 'store3' cannot write its result there: {kind}"
        assert session.restarts == []
    assert [p.name for p in tmp_path.iterdir()] == ["b.npy"]


def test_a_file_in_the_place_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    program, b = _program("a.npy")
    (tmp_path / "out").write_text("of mine")
    with pytest.raises(LaunchError, match=r"out is a file, results need a folder; remove it, or name another"):
        execute(program, b.platform, output_dir=tmp_path / "out")
    with pytest.raises(LaunchError, match=r"below: the folder for results cannot be made: Not a directory"):
        execute(program, b.platform, output_dir=tmp_path / "out" / "below")
    assert (tmp_path / "out").read_text() == "of mine"
