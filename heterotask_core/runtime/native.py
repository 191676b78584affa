"""The compiled helper, where it was built; ``HETEROTASK_NATIVE=0`` leaves it out, for tests and for comparison."""

from __future__ import annotations

import os
from types import ModuleType

LAYOUT = 3
"""Of the structures and methods that are used here; ``_native.c`` says the same."""


def native() -> ModuleType | None:
    """Return the compiled module, or None: then flags and lanes are Python's (correct, and slower)."""
    if os.environ.get("HETEROTASK_NATIVE", "1") == "0":
        return None
    try:
        from heterotask_core.runtime import _native
    except ImportError:
        return None
    if getattr(_native, "LAYOUT", 0) != LAYOUT:
        # A source tree that was updated and not built again: its structures would be read wrongly.
        import logging

        logging.getLogger(__name__).warning(
            "the compiled helper is of another version and is not used; install again: pip install -e ."
        )
        return None
    return _native
