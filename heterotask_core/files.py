"""Files that people name: written whole or not at all, and an error names them, not what they are made of."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def kind_of(mode: int) -> str:
    """Return in words what is no regular file, by its ``st_mode``; empty for one that is."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "")


def obstacle(path: Path) -> str:
    """Return in words why no file can be written at ``path``, as far as that shows before; empty if nothing does.

    Who opens a FIFO waits for a reader; who renames over a device as root loses it.
    """
    parent = path.parent
    try:
        if not parent.is_dir():
            if os.path.lexists(parent):
                return f"{parent} is not a folder; name another"
            return f"the folder {parent} does not exist; make it (mkdir -p), or name another"
        kind = kind_of(path.stat().st_mode)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.strerror}; name another"
    return f"it is {kind}, not a file; remove it, or name another" if kind else ""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` when the block ends well; else nothing of it is left.

    Behind a symbolic link, the file that it leads to is replaced. Raises :class:`OSError` whose ``filename`` is
    ``path`` and whose ``strerror`` says why, also for what :func:`obstacle` finds; other errors of the block pass.
    """
    path = Path(path)
    reason = obstacle(path)
    if reason:
        raise OSError(None, reason, str(path))
    target = path.resolve()
    part = target.with_name(f".heterotask-{uuid.uuid4().hex[:12]}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    except OSError as error:
        if error.filename not in (None, str(part), part):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)
