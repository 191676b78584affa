"""Profiles as text for a terminal: timings, slow-downs, links, estimates, changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import polars as pl

from heterotask_core.profiling.compare import Change
from heterotask_core.profiling.measure import Profile
from heterotask_core.profiling.predict import Estimate


def profile_text(profiled: Profile) -> str:
    """Return a line a timing, slow-down, link and pair of lanes, and the notes."""
    lines = [f"profile: {profiled.measured} timings measured, {profiled.reused} from the store"]
    lines += timings_text(profiled.timings)
    for row in profiled.busy.sort("kernel", "device").iter_rows(named=True):
        if row["scale"] > 1.0:
            lines.append(
                f"  {row['kernel']:18} {row['variant']:12} {row['device']:12} {row['scale']:6.2f} times as long "
                "while all devices compute"
            )
    for row in profiled.links.iter_rows(named=True):
        lines.append(
            f"  {row['source']} → {row['target']}: {row['latency_s'] * 1e6:.1f} µs + size / "
            f"{row['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s (residual {100 * row['residual']:.0f} %)"
        )
    for row in profiled.pairs.iter_rows(named=True):
        lines.append(f"  {row['first']} and {row['second']}: {100 * row['overlap']:.0f} % side by side")
    return "\n".join([*lines, *(f"note: {note}" for note in profiled.notes)])


def timings_text(timings: pl.DataFrame) -> list[str]:
    """Return a line a timing."""
    return [
        f"  {row['kernel']:18} {row['variant']:12} {row['device_kind']:8} "
        f"{row['median_s'] * 1e3:10.3f} ms ± {row['mad_s'] * 1e3:.3f}, p95 {row['p95_s'] * 1e3:.3f}, "
        f"first call {row['cold_s'] * 1e3:.1f} ({row['count']} samples, {row['source']})"
        for row in timings.sort("kernel", "variant", "device_model", "class_key").iter_rows(named=True)
    ]


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """Return a line an estimate."""
    lines = []
    for e in sorted(estimates, key=lambda e: (e.kernel, e.variant, e.device_kind, e.size_bytes)):
        error = "error unknown" if math.isnan(e.error) else f"± {100 * e.error:.0f} %"
        lines.append(
            f"  {e.kernel:18} {e.variant:12} {e.device_kind:8} {e.tasks:6} × {e.size_bytes / 2**20:9.3f} MiB "
            f"{e.estimate_s * 1e3:10.3f} ms {error:14} confidence {e.confidence} ({e.source})"
        )
    return "\n".join(lines)


def changes_text(changes: Sequence[Change]) -> str:
    """Return a line a change of more than its spread, and how many of each verdict there are."""
    lines = []
    for c in changes:
        if c.verdict in ("slower", "faster"):
            why = f" ({c.why} changed)" if c.why else ""
            lines.append(
                f"  {c.kernel:18} {c.variant:12} {c.device_model}: {c.old_s * 1e3:.3f} → {c.new_s * 1e3:.3f} ms, "
                f"{c.ratio:.2f} times as long{why}"
            )
    counts = Counter(c.verdict for c in changes)
    total = ", ".join(f"{counts[v]} {v}" for v in ("slower", "faster", "same", "new", "gone") if counts[v])
    return "\n".join([*lines, f"timings: {total}"])
