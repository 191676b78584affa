"""Compiled code that Numba has kept and that no longer fits its source.

Numba looks at the file of a function when it decides whether code on disk is still good. Functions here are compiled
into those of other files, together with the layout of what they share: after an update of one file the code kept for
another would read memory where it no longer is.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

STAMP_FILE = "heterotask-sources"
_CODE = (".nbi", ".nbc")
_MARKS = (b"import numba", b"planning.raw import", b"NamedTuple")


def drop_stale_code(cache: Path, sources: Path) -> bool:
    """Delete what Numba keeps in ``cache`` unless it was made of the present files ``sources``/*.py; return whether.

    Only files count that are compiled or lay out what compiled code shares. A folder that cannot be written is left
    alone: Numba keeps nothing there either.
    """
    content = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        text = path.read_bytes()
        if any(word in text for word in _MARKS):
            content.update(path.name.encode() + b"\0" + text)
    stamp = content.hexdigest()
    try:
        if (cache / STAMP_FILE).read_text() == stamp:
            return False
    except OSError:
        pass
    try:
        for path in cache.iterdir():
            if path.suffix in _CODE:
                path.unlink(missing_ok=True)
        part = cache / f"{STAMP_FILE}.{os.getpid()}"
        part.write_text(stamp)
        part.replace(cache / STAMP_FILE)
    except OSError:
        return False
    return True
