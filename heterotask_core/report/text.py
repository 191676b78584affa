"""Platform and run as text for a terminal."""

from __future__ import annotations

from typing import Any

from heterotask_core.platform.model import Platform
from heterotask_core.report.breakdown import PARTS


def platform_text(platform: Platform) -> str:
    """Return a line a device and a link."""
    lines = [f"platform: {len(platform.nodes)} node(s), {len(platform.devices)} device(s)"]
    for device in platform.devices:
        cores = f", cores {','.join(map(str, device.core_ids))}" if device.core_ids else ""
        lines.append(f"  {device.name:14} {device.kind:8} {device.model}{cores}")
    lines += [f"  {x.source} → {x.target} ({x.kind})" for x in platform.links]
    return "\n".join(lines)


def facts_text(facts: dict[str, Any]) -> str:
    """Return what a run's ``summary.json`` says, for people."""
    origin = facts.get("origin", "measured")
    makespans = ", ".join(f"{s * 1e3:.1f}" for s in facts["makespan_s"])
    logical = "" if origin == "measured" else " (logical time: nothing here is a measurement)"
    lines = [
        f"makespan: predicted {facts['predicted_makespan_s'] * 1e3:.1f} ms, {origin} {makespans} ms{logical}, "
        f"lower bound {facts['lower_bound_s'] * 1e3:.1f} ms",
        f"application completion time: {facts['completion_s']:.2f} s",
    ]
    if pace := facts.get("pace"):
        late = f"late by at most {100 * max(pace['lag']):.1f} % of the makespan"
        mark = "" if pace["in_time"] else ": TOO LATE to show the pace, dilate more"
        lines.append(f"paced at {pace['dilate']:.3g} s a logical second, {late}{mark}")
    lines += _decomposition_lines(facts)
    lines += _path_lines(facts.get("path"))
    lines += _deviation_lines(facts)
    for name, size in facts["link_bytes"].items():
        share = facts.get("link_busy_s", {}).get(name, 0.0) / facts["window_s"] if facts.get("window_s") else 0.0
        lines.append(f"  {name}: {size / 2**20:.1f} MiB moved, busy {100 * share:.1f} %")
    if not facts["link_bytes"]:
        lines.append("  links: no bytes moved")
    for name, planned in facts["arena_planned_bytes"].items():
        actual = facts["arena_peak_bytes"].get(name, 0)
        if planned or actual:
            lines.append(f"  memory {name}: planned peak {planned / 2**20:.1f} MiB, actual {actual / 2**20:.1f} MiB")
    for node, clock in facts.get("clocks", {}).items():
        if clock["error_s"]:
            lines.append(
                f"  clock of {node}: {clock['offset_s'] * 1e3:.3f} ms ahead of the first node's, drift "
                f"{clock['drift'] * 1e6:.2f} µs/s, its times are right within {clock['error_s'] * 1e6:.1f} µs"
            )
    return "\n".join(lines)


def _decomposition_lines(facts: dict[str, Any]) -> list[str]:
    """Shares of the makespan by device."""
    parts, window_s = facts.get("decomposition_s", {}), facts.get("window_s", 0.0)
    if not parts or not window_s:
        return [f"  {name:14} busy {100 * share:5.1f} %" for name, share in facts["utilisation"].items()]
    lines = [f"  {'device':14} {'busy':>8} {'transfer wait':>14} {'overhead':>9} {'idle':>8}   (% of the makespan)"]
    for name, seconds in parts.items():
        busy, wait, overhead, idle = (100 * seconds[key] / window_s for key in PARTS)
        lines.append(f"  {name:14} {busy:8.1f} {wait:14.1f} {overhead:9.1f} {idle:8.1f}")
    return lines


def _path_lines(path: dict[str, Any] | None) -> list[str]:
    """What the critical path consists of, and its longest steps."""
    if not path or not path["n_steps"]:
        return []
    sums = {name.removesuffix("_s"): seconds for name, seconds in path["sums_s"].items()}
    told = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in sums.items() if seconds > 0)
    lines = [f"critical path, {path['n_steps']} steps: {told}"]
    kernels = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in list(path["by_kernel_s"].items())[:5])
    if kernels:
        lines.append(f"  by kernel: {kernels}")
    for step in sorted(path["steps"], key=lambda s: -(s["own_s"] + s["gap_s"]))[:5]:
        why = f", waited for {step['why']}" if step["why"] else ""
        lines.append(
            f"  {step['start_s'] * 1e3:9.2f} ms  {step['what']} on {step['lane']}: {step['own_s'] * 1e3:.2f} ms"
            f" after {step['gap_s'] * 1e3:.2f} ms of overhead{why}"
        )
    return lines


def _deviation_lines(facts: dict[str, Any]) -> list[str]:
    """The classes of ops that took most more or less than planned."""
    lines = []
    for row in facts.get("deviating_classes", [])[:5]:
        if abs(row["beyond_s"]) < 1e-3 * facts["window_s"]:
            continue
        name = row["of"] + (f" ({row['variant']})" if row["variant"] else "")
        ratio = f"{row['median_ratio']:.2f} × the plan" if row["median_ratio"] is not None else "not in the plan"
        lines.append(f"  {name}: {row['count']} ops, {ratio} (median), {row['beyond_s'] * 1e3:+.1f} ms in all")
    return ["furthest from the plan:", *lines] if lines else []
