"""The compiled helper, where it was built; ``HETEROTASK_NATIVE=0`` leaves it out, for tests and for comparison."""

from __future__ import annotations

import os
from types import ModuleType


def native() -> ModuleType | None:
    """Return the compiled module, or None: then flags and lanes are Python's (correct, and slower)."""
    if os.environ.get("HETEROTASK_NATIVE", "1") == "0":
        return None
    try:
        from heterotask_core.runtime import _native
    except ImportError:
        return None
    return _native
