"""The files whose change makes a variant another one."""

import json
import os
import sys
from pathlib import Path

import pytest

from heterotask_core.errors import KernelError
from heterotask_core.kernel import PRELUDE, Variant
from heterotask_core.sources import adopt_digests, known_digests, source_digest, source_files

FILES = {
    "__init__.py": "",
    "tool.py": "raise ImportError('never imported')",
    "sub/__init__.py": "from . import other",
    "sub/impl.py": "import json\nfrom pkg_of_sources.tool import x\nfrom ..deep import y\nfrom .near import value\n",
    "sub/near.py": "def f():\n    from pkg_of_sources.sub import lazy\n",
    "sub/lazy.py": "import pkg_of_sources.sub.impl as circle\nfrom numpy import linalg\n",
    "sub/other.py": "",
    "sub/unused.py": "",
    "sub/size.py": "def size(params, shapes):\n    return 4\n",
    "deep.py": "",
    "a.cl": "KERNEL k() {}",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the path; returns its folder."""
    folder = tmp_path / "pkg_of_sources"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "pkg_of_sources"]:
        del sys.modules[name]


def names(folder: Path, module: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in source_files(module))


def test_helpers_are_followed_through_every_form_of_import(package):
    assert names(package, "pkg_of_sources.sub.impl") == [
        "deep.py",
        "sub/__init__.py",
        "sub/impl.py",
        "sub/lazy.py",
        "sub/near.py",
        "sub/other.py",
        "tool.py",
    ]
    assert names(package, "pkg_of_sources.tool") == ["tool.py"]


def test_of_a_library_the_module_alone_counts():
    assert [path.parent.name for path in source_files("numpy")] == ["numpy"]
    assert len(source_files("kernels.canny.numba_variants")) > 2


def test_missing_module_and_broken_helper(package):
    with pytest.raises(KernelError, match=r"pkg_of_sources\.nothing"):
        source_files("pkg_of_sources.nothing")
    (package / "deep.py").write_text("def (:")
    with pytest.raises(KernelError, match=r"deep\.py is no Python"):
        source_files("pkg_of_sources.sub.impl")


def touch(path: Path, text: str) -> None:
    """Write; the time of change differs whatever the clock's resolution."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_variant_changes_with_its_helpers_source_and_predicates(package, monkeypatch, tmp_path):
    from importlib import import_module

    variant = Variant(
        "v",
        "opencl",
        "pkg_of_sources.sub.impl:f",
        source="pkg_of_sources:a.cl",
        scratch_bytes=import_module("pkg_of_sources.sub.size").size,
    )
    seen = {variant.fingerprint()}
    touch(package / "sub/unused.py", "x = 1")
    assert variant.fingerprint() in seen
    for name in ("sub/impl.py", "sub/lazy.py", "deep.py", "sub/size.py", "a.cl"):
        touch(package / name, FILES[name] + "\n")
        seen.add(variant.fingerprint())
    prelude = tmp_path / "prelude.h"
    prelude.write_text(PRELUDE.read_text() + "\n")
    monkeypatch.setattr("heterotask_core.kernel.PRELUDE", prelude)
    seen.add(variant.fingerprint())
    assert len(seen) == 7


def test_what_another_process_knew_counts_until_a_file_changes(package, monkeypatch):
    module = "pkg_of_sources.sub.impl"
    monkeypatch.setattr("heterotask_core.sources._known", {})
    before = source_digest(module)
    told = json.loads(json.dumps(known_digests()))
    assert told[module]["digest"] == before
    told[module]["digest"] = "of another process"
    monkeypatch.setattr("heterotask_core.sources._known", {})
    adopt_digests(told)
    assert source_digest(module) == "of another process"
    (package / "deep.py").write_text("changed = True")
    assert source_digest(module) not in (before, "of another process")
    assert source_digest(module) == known_digests()[module]["digest"]
