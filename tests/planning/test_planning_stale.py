"""Compiled code kept on disk is dropped when any file that it may be made of has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heterotask_core
from heterotask_core.planning.stale import STAMP_FILE, drop_stale_code


@pytest.fixture
def folders(tmp_path):
    """A package's folder and what Numba keeps of it."""
    sources, cache = tmp_path / "package", tmp_path / "cache"
    sources.mkdir()
    cache.mkdir()
    for name in ("a.py", "b.py"):
        (sources / name).write_text("import numba\n")
    assert drop_stale_code(cache, sources)
    for name in ("a.f-1.py311.nbi", "a.f-1.py311.1.nbc", "a.cpython-311.pyc"):
        (cache / name).write_bytes(b"code")
    return sources, cache


def test_code_of_unchanged_files_stays(folders):
    sources, cache = folders
    (sources / "c.py").write_text("nothing compiled\n")
    assert not drop_stale_code(cache, sources)
    assert len(list(cache.iterdir())) == 4


def _edit(sources: Path) -> None:
    (sources / "b.py").write_text("import numba\nx = 1\n")


def _add(sources: Path) -> None:
    (sources / "c.py").write_text("from typing import NamedTuple\n")


def _remove(sources: Path) -> None:
    (sources / "b.py").unlink()


@pytest.mark.parametrize("change", [_edit, _add, _remove])
def test_code_goes_when_any_file_has_changed(folders, change):
    sources, cache = folders
    change(sources)
    assert drop_stale_code(cache, sources)
    assert {path.name for path in cache.iterdir()} == {"a.cpython-311.pyc", STAMP_FILE}
    assert not drop_stale_code(cache, sources)


def test_a_folder_that_is_not_there_is_left_alone(tmp_path):
    assert not drop_stale_code(tmp_path / "none", tmp_path)


def test_importing_the_planner_does_it(tmp_path):
    """In a copy of the package: code kept from before a change of another file is gone once the planner is imported."""
    shutil.copytree(Path(heterotask_core.__file__).parent, tmp_path / "heterotask_core",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}

    def import_planner() -> None:
        command = [sys.executable, "-c", "import heterotask_core.planning.core"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)

    import_planner()
    (folder,) = {path.parent for path in (tmp_path / "kept").rglob(STAMP_FILE)}
    code = folder / "core._pass-1.py311.1.nbc"
    code.write_bytes(b"code")
    import_planner()
    assert code.exists()
    with (tmp_path / "heterotask_core" / "planning" / "view.py").open("a") as file:
        file.write("# changed\n")
    import_planner()
    assert not code.exists()
