"""The store: whole records or none, failed ones marked, foreign folders refused by name."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from heterotask_core.errors import StoreError
from heterotask_core.store import MARKER, SCHEMA_VERSION, Store


def keep(store: Store, kind: str, key: str, text: str = "x") -> Path:
    with store.new_record(kind, key, plan="p") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file.txt").write_text(text)
    return store.folder(kind, key)


def test_a_record_appears_when_it_is_complete(tmp_path):
    store = Store(tmp_path / "s")
    assert not (tmp_path / "s").exists()
    with store.new_record("plans", "a", plan="p") as folder:
        (folder / "file.txt").write_text("x")
        assert store.find("plans", "a") is None
        assert store.list("plans") == []
    found = store.find("plans", "a")
    assert found == tmp_path / "s" / "plans" / "a"
    assert sorted(p.name for p in found.iterdir()) == ["file.txt", "manifest.json"]
    manifest = store.manifest("plans", "a")
    assert {k: manifest[k] for k in ("schema_version", "kind", "key", "status", "facts")} == {
        "schema_version": SCHEMA_VERSION,
        "kind": "plans",
        "key": "a",
        "status": "complete",
        "facts": {"plan": "p"},
    }
    assert manifest["started"] <= manifest["finished"]
    assert {"python", "numpy", "polars"} <= set(manifest["packages"])
    assert [p.name for p in found.parent.iterdir()] == ["a"]


def test_a_new_record_replaces_the_old_one(tmp_path):
    store = Store(tmp_path)
    keep(store, "plans", "a", "old")
    folder = keep(store, "plans", "a", "new")
    assert (folder / "deep" / "file.txt").read_text() == "new"
    assert store.list("plans") == ["a"]


def test_a_failed_record_is_kept_and_marked(tmp_path):
    store = Store(tmp_path)

    def fail():
        with store.new_record("runs", "r") as folder:
            (folder / "part.txt").write_text("half")
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        fail()
    assert store.find("runs", "r") is None
    assert store.manifest("runs", "r")["error"] == "RuntimeError: no luck"
    assert (store.folder("runs", "r") / "part.txt").read_text() == "half"
    assert store.list("runs") == ["r"]
    assert store.latest("runs") is None


def test_a_failure_leaves_a_complete_record_alone(tmp_path):
    store = Store(tmp_path)
    keep(store, "runs", "r", "good")
    with pytest.raises(RuntimeError), store.new_record("runs", "r"):
        raise RuntimeError
    assert (store.find("runs", "r") / "deep" / "file.txt").read_text() == "good"
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["r"]


def test_records_are_listed_oldest_first_and_latest_is_the_last(tmp_path):
    store = Store(tmp_path)
    for key in ("b", "a", "c"):
        keep(store, "runs", key)
    assert store.list("runs") == ["b", "a", "c"]
    assert store.latest("runs") == store.folder("runs", "c")
    assert Store(tmp_path).list("runs") == ["b", "a", "c"]


def test_unique_keys_differ(tmp_path):
    store = Store(tmp_path)
    keys = [store.unique_key("runs", "app") for _ in range(20)]
    assert len(set(keys)) == 20
    assert all(key.startswith("app-") for key in keys)


@pytest.mark.parametrize("key", ["", "..", "a/b", ".hidden"])
def test_keys_cannot_leave_the_store(tmp_path, key):
    with pytest.raises(StoreError, match="cannot name a record"):
        Store(tmp_path).folder("runs", key)


def test_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(StoreError, match="the kinds are platforms, profiles, plans, runs, calibrations"):
        Store(tmp_path).find("cakes", "a")


def test_foreign_folders_and_files_are_refused(tmp_path):
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(StoreError, match=r"holds files but no heterotask-store.json: not a store; choose an empty"):
        Store(tmp_path)
    with pytest.raises(StoreError, match=r"photo.jpg is a file, not a store; choose another folder"):
        Store(tmp_path / "photo.jpg")


def test_another_schema_version_is_refused(tmp_path):
    (tmp_path / MARKER).write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(StoreError, match=r"heterotask-store.json has schema version 99, this program writes 1"):
        Store(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_damaged_manifest_names_file_and_remedy(tmp_path, content):
    store = Store(tmp_path)
    path = keep(store, "plans", "a") / "manifest.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(StoreError, match=r"manifest.json .*delete .*plans/a and make it again"):
        store.find("plans", "a")


def test_processes_that_replace_one_record_do_not_disturb_each_other_or_readers(tmp_path):
    program = (
        "import sys\n"
        "from heterotask_core.store import Store\n"
        "for n in range(40):\n"
        "    with Store(sys.argv[1]).new_record('plans', 'a') as folder:\n"
        "        (folder / 'file.txt').write_text(sys.argv[2])\n"
    )
    root = tmp_path / "s"
    writers = [subprocess.Popen([sys.executable, "-c", program, root, name]) for name in "xy"]
    try:
        seen = set()
        while any(writer.poll() is None for writer in writers):
            folder = Store(root).find("plans", "a")
            if folder is not None:
                seen.add((folder / "file.txt").read_text())
    finally:
        codes = [writer.wait(60) for writer in writers]
    assert codes == [0, 0]
    assert seen <= {"x", "y"}
    assert sorted(p.name for p in (root / "plans").iterdir()) == ["a"]


def test_a_system_that_cannot_exchange_names_replaces_records_too(tmp_path, monkeypatch):
    monkeypatch.setattr("heterotask_core.store._exchange", lambda one, other: False)
    store = Store(tmp_path)
    keep(store, "plans", "a", "old")
    assert (keep(store, "plans", "a", "new") / "deep" / "file.txt").read_text() == "new"
    assert [p.name for p in (tmp_path / "plans").iterdir()] == ["a"]


def test_another_process_that_makes_the_store_is_no_foreign_file(tmp_path):
    (tmp_path / f".{MARKER}.0123.tmp").write_text("")
    assert Store(tmp_path).list("plans") == []


def test_a_place_that_cannot_be_written_is_one_error_before_anything_long(tmp_path):
    (tmp_path / "file").write_text("")
    for attempt in (Store.prepare, lambda s: s.new_record("plans", "a").__enter__()):
        with pytest.raises(StoreError, match=r"file/store cannot be used as a store .*choose another folder"):
            attempt(Store(tmp_path / "file" / "store"))


def test_a_full_disk_at_the_end_of_a_record_leaves_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.prepare()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    record = store.new_record("plans", "a")
    record.__enter__()
    monkeypatch.setattr("heterotask_core.store._publish", full)
    with pytest.raises(StoreError, match=r"plans/a cannot be kept .*No space left.*free space there"):
        record.__exit__(None, None, None)
    assert list((tmp_path / "plans").iterdir()) == []
