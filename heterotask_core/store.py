"""The store on disk: one folder a record, with a JSON manifest beside its files.

``platforms/ profiles/ plans/ runs/ calibrations/`` hold folders named by key. A record is written under a
temporary name, its files are synchronised, and it is renamed into place: readers see all of it or nothing. Several
processes may use one store at once; of records of one key the last one stays.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from heterotask_core.errors import StoreError

SCHEMA_VERSION = 1
KINDS = ("platforms", "profiles", "plans", "runs", "calibrations")
MARKER = "heterotask-store.json"
MANIFEST = "manifest.json"
PACKAGES = ("heterotask", "numpy", "numba", "polars", "mpi4py", "mpich")

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_CWD, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


class Store:
    """Records of one workplace under ``root``; the folder is made when the first record is.

    Raises :class:`StoreError` when ``root`` is a file, holds something else, or is of another schema version.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        marker = self.root / MARKER
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"{self.root} is a file, not a store; choose another folder with --store")
        if not self.root.is_dir():
            return
        if marker.exists():
            found = _read_json(marker, "choose another folder with --store").get("schema_version")
            if found != SCHEMA_VERSION:
                raise StoreError(
                    f"{marker} has schema version {found}, this program writes {SCHEMA_VERSION}; choose another --store"
                )
        elif self._is_foreign() and not marker.exists():
            raise StoreError(
                f"{self.root} holds files but no {MARKER}: not a store; choose an empty folder with --store"
            )

    def _is_foreign(self) -> bool:
        """Whether the folder holds anything; another process's marker in the making does not count."""
        try:
            return any(not path.name.startswith(f".{MARKER}.") for path in self.root.iterdir())
        except OSError as error:
            raise _unusable(self.root, error) from error

    def folder(self, kind: str, key: str) -> Path:
        """Return where the record is, or would be; raises :class:`StoreError` for a kind or key that cannot be one."""
        if kind not in KINDS:
            raise StoreError(f"no records of kind {kind!r} in a store; the kinds are {', '.join(KINDS)}")
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} cannot name a record: use letters, digits and . _ + -, not first")
        return self.root / kind / key

    def find(self, kind: str, key: str) -> Path | None:
        """Return the folder of a complete record, or None; raises :class:`StoreError` for a damaged manifest."""
        folder = self.folder(kind, key)
        if not folder.is_dir():
            return None
        return folder if self.manifest(kind, key)["status"] == "complete" else None

    def manifest(self, kind: str, key: str) -> dict[str, Any]:
        """Return the manifest of a record.

        Raises :class:`StoreError` naming the file when it is missing, damaged or of another version.
        """
        path = self.folder(kind, key) / MANIFEST
        remedy = f"delete {path.parent} and make it again"
        manifest = _read_json(path, remedy)
        if manifest.get("schema_version") != SCHEMA_VERSION or "status" not in manifest:
            raise StoreError(f"{path} has another schema (version {manifest.get('schema_version')}); {remedy}")
        return manifest

    def list(self, kind: str) -> list[str]:
        """Return the keys of all records of a kind, failed ones too, oldest first."""
        parent = self.folder(kind, "any").parent
        if not parent.is_dir():
            return []
        keys = [path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(keys, key=lambda key: (self.manifest(kind, key)["started"], key))

    def latest(self, kind: str) -> Path | None:
        """Return the folder of the complete record that was started last, or None."""
        for key in reversed(self.list(kind)):
            folder = self.find(kind, key)
            if folder is not None:
                return folder
        return None

    def unique_key(self, kind: str, base: str) -> str:
        """Return a key that starts with ``base`` and a sortable UTC time, and that no record has."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        self.folder(kind, base)
        return f"{base}-{stamp}-{uuid.uuid4().hex[:4]}"

    @contextmanager
    def new_record(self, kind: str, key: str, **facts: Any) -> Iterator[Path]:
        """Yield a temporary folder that becomes the record when the block ends; an older one is replaced.

        ``facts`` (JSON values: fingerprints, names) go into the manifest. When the block raises, the folder is
        kept as a record marked "failed" with the error, unless a complete record of that key exists. Records whose
        process was killed become failed ones here.
        """
        target = self.folder(kind, key)
        self.prepare()
        temporary = target.parent / f".{key}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            target.parent.mkdir(exist_ok=True)
            _recover(target.parent)
            temporary.mkdir()
        except OSError as error:
            raise _unusable(target.parent, error) from error
        manifest: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "key": key,
            "status": "complete",
            "started": _now(),
            "facts": facts,
            "packages": _packages(),
        }
        try:
            _write_json(temporary / MANIFEST, manifest | {"status": "running", "owner": _owner()})
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _name_record(error, temporary, target)
            raise StoreError(
                f"{target} cannot be begun ({error}); free space there, or choose another --store"
            ) from error
        try:
            yield temporary
        except BaseException as error:
            _name_record(error, temporary, target)
            manifest |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            if target.is_dir() and self.find(kind, key) is not None:
                shutil.rmtree(temporary)
            else:
                _keep_failed(temporary, target, manifest)
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if full and not isinstance(error, StoreError):
                raise StoreError(f"{target}: the disk is full; free space there, or choose another --store") from error
            raise
        try:
            _publish(temporary, target, manifest)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            _name_record(error, temporary, target)
            raise StoreError(
                f"{target} cannot be kept ({error}); free space there, or choose another --store"
            ) from error

    def prepare(self) -> None:
        """Make the folder if it is missing; called before anything long, whose result must find its place.

        Raises :class:`StoreError` when nothing can be written there.
        """
        marker = self.root / MARKER
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                _write_json(marker, {"schema_version": SCHEMA_VERSION})
        except OSError as error:
            raise _unusable(self.root, error) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise StoreError(f"{self.root} cannot be written; choose another folder with --store")


def _unusable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder} cannot be used as a store ({error}); choose another folder with --store")


def _name_record(error: BaseException, temporary: Path, target: Path) -> None:
    """Let an error name files as they are found later: its folder has another name then, or is gone."""

    def named(value: Any) -> Any:
        if isinstance(value, Path):
            return named(str(value))
        return value.replace(temporary.name, target.name) if isinstance(value, str) else value

    error.args = tuple(named(value) for value in error.args)
    if isinstance(error, OSError):
        if error.filename is not None:
            error.filename = named(error.filename)
        if error.filename2 is not None:
            error.filename2 = named(error.filename2)


def _publish(temporary: Path, target: Path, manifest: dict[str, Any]) -> None:
    manifest["finished"] = _now()
    _write_json(temporary / MANIFEST, manifest)
    for path in sorted(temporary.rglob("*"), reverse=True):
        _sync(path)
    _sync(temporary)
    while True:
        try:
            temporary.rename(target)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # A folder cannot be renamed over a filled one.
        if _exchange(temporary, target):
            shutil.rmtree(temporary)
            break
        old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
        try:
            target.rename(old)
        except FileNotFoundError:
            continue  # another process has just moved it
        shutil.rmtree(old, ignore_errors=True)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step, so that readers find either; return whether the system can do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_CWD, bytes(one), _CWD, bytes(other), _EXCHANGE) == 0


def _keep_failed(temporary: Path, target: Path, manifest: dict[str, Any]) -> None:
    """Publish a failed record where that can be written at all: the error that made it fail is what counts."""
    try:
        _publish_failed(temporary, target, manifest)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish_failed(temporary: Path, target: Path, manifest: dict[str, Any]) -> None:
    """Publish; on a full disk the record's largest files make room for its manifest."""
    while True:
        try:
            _publish(temporary, target, manifest)
            return
        except OSError as error:
            files = [path for path in temporary.rglob("*") if path.is_file() and path.name != MANIFEST]
            largest = max(files, key=lambda path: path.stat().st_size, default=None)
            if error.errno != errno.ENOSPC or largest is None:
                raise
            largest.unlink()


def _owner() -> dict[str, Any]:
    """Return what tells this process from all others."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _start_ticks(os.getpid())}


def _start_ticks(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _recover(parent: Path) -> None:
    """Turn what killed processes of this host have left into failed records."""
    for temporary in parent.glob(".*.tmp"):
        try:
            manifest = json.loads((temporary / MANIFEST).read_text())
            owner, key = manifest.pop("owner"), str(manifest["key"])
        except (OSError, ValueError, KeyError):
            continue
        if owner["host"] != platform.node() or _start_ticks(owner["pid"]) == owner["started"]:
            continue
        target = parent / key
        if target.exists():
            shutil.rmtree(temporary, ignore_errors=True)
            continue
        manifest |= {"status": "failed", "error": f"its process (pid {owner['pid']}) was killed"}
        _publish_failed(temporary, target, manifest)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1, default=str) + "\n")
        _sync(temporary)
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing; {remedy}") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is no JSON object; {remedy}")
    return value


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
