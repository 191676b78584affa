"""Whether something else computed on this process's cores meanwhile, from the scheduler's own account of delays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TOLERATED = 0.02
"""Share of a sample that its threads may have waited for a core."""
SLACK_S = 20e-6
"""Waking up takes this long on an idle core."""
_NANO = 1e-9

Account = Mapping[str, tuple[int, int]]
"""Thread → (nanoseconds computed, nanoseconds waited for a core)."""


def account() -> Account:
    """Return what the threads of this process have computed and waited; empty where the kernel does not count."""
    found = {}
    try:
        for thread in Path("/proc/self/task").iterdir():
            computed, waited, _ = (thread / "schedstat").read_text().split()
            found[thread.name] = (int(computed), int(waited))
    except (OSError, ValueError):
        return {}
    return found


def stolen_s(before: Account, after: Account, *, cores: int) -> float:
    """Return how long (seconds) a thread of this process waited while others computed on its cores.

    Where the process has more threads than cores (a driver's thread beside the one that polls it), what its other
    threads computed meanwhile is no theft.
    """
    computed = {t: c - before.get(t, (0, 0))[0] for t, (c, _) in after.items()}
    waited = {t: w - before.get(t, (0, 0))[1] for t, (_, w) in after.items()}
    active = sum(c > 0 for c in computed.values())
    total = sum(computed.values()) if active > cores else 0
    return max((waited[t] - (total - computed[t] if total else 0) for t in waited), default=0) * _NANO


def is_disturbed(stolen: float, duration_s: float) -> bool:
    """Return whether a sample of ``duration_s`` in which ``stolen`` seconds were taken says little of its kernel."""
    return stolen > TOLERATED * duration_s + SLACK_S
