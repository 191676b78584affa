"""Temporary folders that do not outlive their process, however it ends.

A folder holds a file that its owner locks; the kernel unlocks it with the process. A guard, a shell that waits at a
pipe to the owner, removes the folder when the owner ends without having done so: by a signal that nobody handles, or
kill -9. Where the guard is killed too, as when a container is stopped, whoever makes the next such folder on the same
host finds the lock free, and removes the old one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = "owner.lock"
"""Holds the owner's host: not every network file system tells other hosts of a lock. Folders without such a file are
left alone: another version's, or one that is just being made."""
PREFIX = "heterotask-scratch-"
# Children of the owner may write for a moment longer.
_GUARD = """trap '' HUP INT TERM
read -r word && exit
n=0
until rm -rf -- "$1" || [ $n = 50 ]; do n=$((n + 1)); sleep 0.1; done"""


@dataclass
class _Hold:
    lock: int
    guard: subprocess.Popen[bytes] | None


_held: dict[Path, _Hold] = {}
"""What this process owns."""


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in ``parent`` (default: the usual temporary folder), and remove it at the end of the block.

    Raises :class:`OSError` when it cannot be made.
    """
    folder = make_folder(PREFIX, parent)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(prefix: str, parent: Path | None = None, remove: Callable[[Path], object] | None = None) -> Path:
    """Return a new folder, owned and guarded by this process; leave it with :func:`remove_folder`.

    First, those of ``prefix`` whose owner is dead are removed from ``parent``, by ``remove`` if that is given. Raises
    :class:`OSError` when the folder cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(prefix, parent, remove)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
        try:
            (folder / LOCK_FILE).write_text(_host())
            hold(folder)
        except FileNotFoundError:
            continue  # swept away before it was locked
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(error.errno, error.strerror, str(parent)) from error
        _held[folder].guard = _guard(folder)
        return folder


def hold(folder: Path) -> None:
    """Lock ``folder`` too, which another process has made, and may leave to this one.

    Raises :class:`FileNotFoundError` when it is gone.
    """
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Some network file systems cannot lock: then nobody can take the folder for abandoned.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        # Who had locked it alone may have removed it meanwhile.
        (folder / LOCK_FILE).stat()
    except BaseException:
        os.close(lock)
        raise
    _held[folder] = _Hold(lock, None)


def dismiss_guard(folder: Path) -> None:
    """End the guard: somebody else sees to it that the folder goes."""
    held = _held.get(folder)
    if held is not None and held.guard is not None:
        with suppress(BrokenPipeError):
            held.guard.communicate(b"done\n")
        held.guard = None


def remove_folder(folder: Path) -> None:
    """Remove a folder that this process owns, or that nobody does."""
    held = _held.get(folder)
    if held is not None:
        # On network file systems an open file would keep the folder from going.
        (folder / LOCK_FILE).unlink(missing_ok=True)
        os.close(held.lock)
    shutil.rmtree(folder, ignore_errors=True)
    dismiss_guard(folder)
    _held.pop(folder, None)


def sweep(prefix: str, parent: Path, remove: Callable[[Path], object] | None = None) -> list[Path]:
    """Remove from ``parent`` this user's folders of ``prefix`` whose owners are dead; return them."""
    gone: list[Path] = []
    try:
        with os.scandir(parent) as entries:
            mine = [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(prefix)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            ]
    except OSError:
        return []
    for folder in mine:
        try:
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(lock, 1 << 10).decode(errors="replace") != _host():
                continue
            (folder / LOCK_FILE).unlink()
        except OSError:
            continue
        finally:
            os.close(lock)
        if remove is not None:
            remove(folder)
        shutil.rmtree(folder, ignore_errors=True)
        gone.append(folder)
    return gone


def _host() -> str:
    return os.uname().nodename


def _guard(folder: Path) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "heterotask-guard", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # What is sent to the owner's process group does not reach it.
            start_new_session=True,
            cwd="/",
        )
    except OSError:
        # No shell, or no process to be had: the next owner finds what is left.
        return None
