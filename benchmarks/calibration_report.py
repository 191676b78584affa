"""The tables of ``benchmarks/calibration.py``: makespans, regret, prediction errors, and where large gains arise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

ORDER = (
    "uncalibrated",
    "list plans",
    "random overheads",
    "regression",
    "BO only",
    "regression + BO",
    "accepted",
    "oracle",
)
PAPER = {"same devices": 0.25, "GPU only": 0.589}
"""Reductions that the paper reports: against the same devices uncalibrated, and against GPUs only, uncalibrated."""


def interval(values: Sequence[float], statistic: Any = np.median) -> tuple[float, float, float]:
    """Return a statistic and the ends of its 95 % bootstrap interval (10,000 resamples of the draws, seeded)."""
    data = np.asarray(values, np.float64)
    samples = np.random.default_rng(0).integers(len(data), size=(10_000, len(data)))
    low, high = np.percentile(statistic(data[samples], axis=1), [2.5, 97.5])
    return float(statistic(data)), float(low), float(high)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return all tables of the rows."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for devices in dict.fromkeys(r["devices"] for r in rows):
        for family in dict.fromkeys(r["family"] for r in rows):
            chosen = [r for r in rows if (r["devices"], r["family"]) == (devices, family)]
            if chosen:
                yield from _table(f"{devices}, {family}, {len(chosen)} draws", chosen)
        hidden = [r for r in rows if r["devices"] == devices and r["family"] != "null"]
        if hidden:
            yield from _table(f"{devices}, all with something hidden, {len(hidden)} draws", hidden)
    yield from _reductions(rows)


def _regret(rows: Sequence[dict[str, Any]], arm: str) -> list[float]:
    return [r["makespan_s"][arm] / r["makespan_s"]["oracle"] - 1.0 for r in rows]


def _true_regret(rows: Sequence[dict[str, Any]], arm: str) -> list[float]:
    return [r["true_s"][arm] / r["true_s"]["oracle"] - 1.0 for r in rows]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield f"\n== {title}"
    yield (
        f"{'arm':18} {'makespan ms':>12} {'regret, median':>15} {'95 % interval':>18} {'p90':>8} "
        f"{'noiseless':>10} {'p90':>8} {'to half':>8} {'seconds':>8}"
    )
    for arm in (name for name in ORDER if name in rows[0]["makespan_s"]):
        regret = _regret(rows, arm)
        centre, low, high = interval(regret)
        half = [r["half"][arm] for r in rows if arm in r["half"]]
        seconds = [r["seconds"][arm] for r in rows if arm in r["seconds"]]
        yield (
            f"{arm:18} {1e3 * np.median([r['makespan_s'][arm] for r in rows]):12.4g} {centre:15.2%} "
            f"{f'{low:.2%} to {high:.2%}':>18} {np.percentile(regret, 90):8.2%} "
            f"{np.median(_true_regret(rows, arm)):10.2%} {np.percentile(_true_regret(rows, arm), 90):8.2%} "
            f"{f'{np.median(half):.3g}' if half else '-':>8} {f'{np.median(seconds):.1f}' if seconds else '-':>8}"
        )
    others = ("random overheads", "BO only", "regression", "list plans")
    for arm in (name for name in others if name in rows[0]["makespan_s"]):
        gains = [r["makespan_s"]["regression + BO"] / r["makespan_s"][arm] - 1.0 for r in rows]
        mean, low, high = interval(gains, np.mean)
        yield f"regression + BO against {arm}: {mean:+.2%} (95 % interval {low:+.2%} to {high:+.2%}, paired by draw)"
    promoted = [1.0 - r["true_s"]["accepted"] / r["true_s"]["uncalibrated"] for r in rows if r["status"] == "promoted"]
    yield (
        f"promoted: {len(promoted)} of {len(rows)}; the accepted plan's true makespan without noise is shorter by at "
        f"least 1 % in {sum(g >= 0.01 for g in promoted)} of them, shorter at all in {sum(g > 0 for g in promoted)}, "
        f"not shorter in {sum(g <= 0 for g in promoted)}"
        + (f" (by {', '.join(f'{g:.2%}' for g in sorted(promoted))})" if promoted else "")
    )
    for what in (w for w in ("makespan", "op") if f"{w}_after" in rows[0]):
        before, after = ([r[f"{what}_{when}"] for r in rows] for when in ("before", "after"))
        yield (
            f"prediction error, {what}: {np.median(before):.2%} before, {np.median(after):.2%} after "
            f"(medians; p90 {np.percentile(before, 90):.2%}, {np.percentile(after, 90):.2%})"
        )
    own = [1e3 * r["spent"]["own"] / max(1, r["runs"]) for r in rows if r["spent"]]
    if own:
        planning, optimising = (
            1e3 * np.median([r["spent"][k] / max(1, r["runs"]) for r in rows if r["spent"]])
            for k in ("planning", "optimising")
        )
        yield (
            f"a measurement (those of the acceptance too): {np.median(own):.1f} ms of the loop's own "
            f"(worst {max(own):.1f}), {planning:.0f} ms planning, {optimising:.0f} ms optimiser; "
            f"{np.median([r['evaluations'] for r in rows]):.3g} evaluations before it stopped"
        )


def _reductions(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    by_case = {(r["draw"], r["family"], r["devices"]): r["makespan_s"] for r in rows}
    pairs = [
        (by_case[d, f, "GPU"], made)
        for (d, f, k), made in by_case.items()
        if k == "CPU+GPU" and (d, f, "GPU") in by_case
    ]
    if not pairs:
        return
    yield "\n== reductions over all draws (median, p90)"
    for against, base in (
        ("the same devices, uncalibrated", [made["uncalibrated"] for _, made in pairs]),
        ("GPU only, uncalibrated", [gpu["uncalibrated"] for gpu, _ in pairs]),
    ):
        for arm in ("accepted", "oracle"):
            cut = [1.0 - made[arm] / b for (_, made), b in zip(pairs, base, strict=True)]
            yield f"{arm:9} against {against}: {np.median(cut):.1%}, {np.percentile(cut, 90):.1%}"


def region_text(cells: Sequence[dict[str, float]]) -> str:
    """Return tables over (launch overhead / median task time, CPU's time over GPU's): oracle's reduction / ours."""
    lines = []
    ratios = sorted({c["ratio"] for c in cells})
    slownesses = sorted({c["slowness"] for c in cells})
    at = {(c["ratio"], c["slowness"]): c for c in cells}
    for against, paper in PAPER.items():
        lines.append(
            f"\n== reduction by CPU+GPU against {against}, uncalibrated: oracle / ours; * where {paper:.1%} is reached"
        )
        lines.append("hidden launch / median task    " + "".join(f"CPU {s:>4g}x slower".rjust(18) for s in slownesses))
        for ratio in ratios:
            texts = []
            for slowness in slownesses:
                oracle, ours = (at[ratio, slowness][f"{who}, {against}"] for who in ("oracle", "ours"))
                marks = ("*" if oracle >= paper else "") + ("*" if ours >= paper else "")
                texts.append(f"{oracle:.1%} / {ours:.1%} {marks:2}".rjust(18))
            lines.append(f"{ratio:<31g}" + "".join(texts))
    return "\n".join(lines)
