"""The source files that a module consists of: its own and those of the helpers it imports from its own package.

Imports are read from the syntax tree, wherever they stand, without importing the module. Only modules of the same
top-level package count. Of an installed library (NumPy) only the module itself does: its helpers are hundreds, and
versions of packages are recorded with what is measured. An installed package with an application is no library.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from heterotask_core.errors import KernelError

Stamp = tuple[int, ...]
"""Of a file: time of its last change in ns, size in bytes, inode."""
_known: dict[str, tuple[dict[Path, Stamp], str]] = {}


def module_file(module: str) -> Path:
    """Return the file of a module without importing it (its ``__init__`` for a package).

    Raises :class:`KernelError` when there is none.
    """
    path = _find(module)
    if path is None:
        raise KernelError(f"module {module!r} cannot be found; check the import path")
    return path


def source_files(module: str) -> list[Path]:
    """Return the files of ``module`` and, recursively, of what it imports of its own package; sorted by module name.

    Raises :class:`KernelError` when the module cannot be found, or one of the files is no Python.
    """
    files = {module: module_file(module)}
    waiting = [] if _is_library(module, files[module]) else [module]
    package = module.partition(".")[0]
    while waiting:
        name = waiting.pop()
        for imported in _imports(name, files[name]):
            if imported in files or imported.partition(".")[0] != package:
                continue
            path = _find(imported)
            # What is imported from a module need not be a module.
            if path is not None:
                files[imported] = path
                waiting.append(imported)
    return [files[name] for name in sorted(files)]


def source_digest(module: str) -> str:
    """Return a hash of the bytes of :func:`source_files`; read again only after a file has changed."""
    if module in _known:
        stamps, digest = _known[module]
        if all(_stamp(path) == stamp for path, stamp in stamps.items()):
            return digest
    files = source_files(module)
    stamps = {path: _stamp(path) for path in files}
    digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    _known[module] = stamps, digest
    return digest


def known_digests() -> dict[str, Any]:
    """Return what :func:`source_digest` has found here, for JSON: module → its files, stamped, and the hash."""
    return {
        module: {"files": {str(path): stamp for path, stamp in stamps.items()}, "digest": digest}
        for module, (stamps, digest) in _known.items()
    }


def adopt_digests(known: Mapping[str, Any]) -> None:
    """Take over what another process of the same code knew; it counts as long as the files here are the very same."""
    for module, found in known.items():
        stamps = {Path(path): tuple(stamp) for path, stamp in found["files"].items()}
        _known.setdefault(module, (stamps, found["digest"]))


def _is_library(module: str, path: Path) -> bool:
    roots = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    installed = not roots.isdisjoint(path.resolve().parents)
    return installed and module.partition(".")[0] not in _application_packages()


@functools.cache
def _application_packages() -> set[str]:
    # Imported here because ranks, which are told the digests, start 5 ms sooner without.
    import importlib.metadata

    return {point.module.partition(".")[0] for point in importlib.metadata.entry_points(group="heterotask.apps")}


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return (-1,)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _find(module: str) -> Path | None:
    """Find a module's file without importing its packages, which may need what this rank lacks."""
    top, *rest = module.split(".")
    name = top
    try:
        spec = importlib.util.find_spec(top)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin in (None, "built-in", "frozen") else Path(str(spec.origin))


def _imports(module: str, path: Path) -> Iterator[str]:
    """Yield the names of what a module's file imports, relative ones resolved; names that are no modules included."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise KernelError(f"module {module!r}: {path} is no Python: {error}") from error
    parts = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
