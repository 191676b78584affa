"""Platform, profile and run as text for a terminal."""

from __future__ import annotations

from typing import Any

from heterotask_core.platform.model import Platform
from heterotask_core.profiling.measure import Profile


def platform_text(platform: Platform) -> str:
    """Return a line a device and a link."""
    lines = [f"platform: {len(platform.nodes)} node(s), {len(platform.devices)} device(s)"]
    for device in platform.devices:
        cores = f", cores {','.join(map(str, device.core_ids))}" if device.core_ids else ""
        lines.append(f"  {device.name:14} {device.kind:8} {device.model}{cores}")
    lines += [f"  {x.source} → {x.target} ({x.kind})" for x in platform.links]
    return "\n".join(lines)


def profile_text(profiled: Profile) -> str:
    """Return a line a timing and a link."""
    lines = [f"profile: {profiled.measured} timings measured, {profiled.reused} from the store"]
    for row in profiled.timings.sort("kernel", "variant", "device_model").iter_rows(named=True):
        lines.append(
            f"  {row['kernel']:18} {row['variant']:12} {row['device_kind']:8} "
            f"{row['median_s'] * 1e3:10.3f} ms ± {row['mad_s'] * 1e3:.3f} ({row['count']} samples)"
        )
    for row in profiled.links.iter_rows(named=True):
        lines.append(
            f"  {row['source']} → {row['target']}: {row['latency_s'] * 1e6:.1f} µs + size / "
            f"{row['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s (residual {100 * row['residual']:.0f} %)"
        )
    return "\n".join(lines)


def facts_text(facts: dict[str, Any]) -> str:
    """Return what a run's ``summary.json`` says, for people."""
    makespans = ", ".join(f"{s * 1e3:.1f}" for s in facts["makespan_s"])
    lines = [
        f"makespan: predicted {facts['predicted_makespan_s'] * 1e3:.1f} ms, measured {makespans} ms, "
        f"lower bound {facts['lower_bound_s'] * 1e3:.1f} ms",
        f"application completion time: {facts['completion_s']:.2f} s",
    ]
    for name, share in facts["utilisation"].items():
        lines.append(f"  {name:14} busy {100 * share:5.1f} %")
    for name, size in facts["link_bytes"].items():
        lines.append(f"  {name}: {size / 2**20:.1f} MiB moved")
    for name, planned in facts["arena_planned_bytes"].items():
        actual = facts["arena_peak_bytes"].get(name, 0)
        lines.append(f"  memory {name}: planned peak {planned / 2**20:.1f} MiB, actual {actual / 2**20:.1f} MiB")
    return "\n".join(lines)
