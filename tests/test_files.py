"""Files that people name appear whole or not at all, and errors name them and not what they are made of."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from heterotask_core.errors import InstanceError, StoreError
from heterotask_core.files import obstacle, whole_file
from heterotask_core.planning.json_file import write_json
from heterotask_core.store import Store
from heterotask_core.tables import TRACE, write_table


@pytest.fixture
def full_disk(small_disk: Callable[[str], Path]) -> Path:
    """A folder on a disk of 64 KiB."""
    return small_disk("64k")


def _fill(disk: Path) -> None:
    with (disk / "fill").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_file_takes_the_place_of_the_older_one_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("older")

    def fail() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        fail()
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "older"}
    with whole_file(path) as file:
        file.write(b"new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "new"}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    with whole_file(tmp_path / "link") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nodir/x", "the folder {}/nodir does not exist; make it (mkdir -p), or name another"),
        ("file/x", "{}/file is not a folder; name another"),
        ("folder", "it is a folder, not a file; remove it, or name another"),
        ("fifo", "it is a FIFO, not a file; remove it, or name another"),
        ("null", "it is a device, not a file; remove it, or name another"),
        ("x" * 300, "File name too long; name another"),
    ],
)
def test_places_where_no_file_can_be_are_refused_in_words(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("of mine")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "null").symlink_to("/dev/null")
    before = sorted(tmp_path.iterdir())
    path = tmp_path / place
    assert obstacle(path) == reason.format(tmp_path)
    with pytest.raises(InstanceError) as caught:
        write_json(path, {})
    assert str(caught.value) == f"{path}: cannot be written: {reason.format(tmp_path)}"
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_on_a_full_disk_the_file_is_named_that_the_user_named(full_disk: Path) -> None:
    (full_disk / "plan.json").write_text("older")
    _fill(full_disk)
    with pytest.raises(InstanceError) as caught:
        write_json(full_disk / "plan.json", "x" * 10_000)
    assert str(caught.value) == f"{full_disk / 'plan.json'}: cannot be written: No space left on device"
    assert sorted(p.name for p in full_disk.iterdir()) == ["fill", "plan.json"]
    assert (full_disk / "plan.json").read_text() == "older"


def test_a_size_limit_names_the_file_too(tmp_path: Path) -> None:
    """As ``ulimit -f`` sets it; in a process of its own, which could write nothing else any more."""
    code = f"""
import resource, signal
from pathlib import Path
from heterotask_core.planning.json_file import write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
try:
    write_json(Path({str(tmp_path / "plan.json")!r}), "x" * 10_000)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{tmp_path / 'plan.json'}: cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


def _in_record(store: Store, what: str) -> None:
    with store.new_record("runs", "night") as folder:
        if what == "file":
            (folder / "gantt.svg").write_bytes(bytes(1 << 20))
        elif what == "table":
            _fill(folder)
            write_table(pl.DataFrame(schema=TRACE), folder / "trace.parquet")
        elif what == "error":
            # As ranks tell it, which know the folder by its whole path.
            raise RuntimeError(f"task 'a' failed: [Errno 28] No space left on device: '{folder.resolve()}/sum.npy'")
        else:
            (folder / "missing" / "x").write_text("x")


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("file", StoreError, "{}: the disk is full; free space there, or choose another --store"),
        ("table", StoreError, "{}/trace.parquet cannot be written"),
        ("error", RuntimeError, "task 'a' failed: [Errno 28] No space left on device: '{}/sum.npy'"),
        ("other", FileNotFoundError, "[Errno 2] No such file or directory: '{}/missing/x'"),
    ],
)
def test_an_error_names_the_record_as_it_is_found_later(
    full_disk: Path, what: str, kind: type[Exception], message: str
) -> None:
    store = Store(full_disk / "store")
    with pytest.raises(kind) as caught:
        _in_record(store, what)
    expected = message.format(full_disk / "store" / "runs" / "night")
    assert str(caught.value).startswith(expected)
    assert ".tmp" not in str(caught.value)
    assert [p.name for p in (full_disk / "store" / "runs").iterdir()] == ["night"]
    assert ".tmp" not in store.manifest("runs", "night")["error"]


def test_a_store_on_a_full_disk_is_named_by_its_own_files(full_disk: Path) -> None:
    store = Store(full_disk / "store")
    store.prepare()
    _fill(full_disk)
    with pytest.raises(StoreError) as caught, store.new_record("runs", "night"):
        """Not reached."""
    assert ".tmp" not in str(caught.value)
    assert "runs/night" in str(caught.value)
    (full_disk / "store" / "heterotask-store.json").unlink()
    _fill(full_disk)
    with pytest.raises(StoreError) as caught:
        store.prepare()
    assert ".tmp" not in str(caught.value)
    assert "No space left on device" in str(caught.value)
