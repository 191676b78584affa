"""What a comparison has measured, as lines of JSON in a file that grows while it runs, and as tables.

A line is one round of one side of a case (``case``, ``side``, ``round`` and seconds), or, with ``done``, says that a
case is complete, with our decomposition of the last run, or, with ``failed``, why it is not, or, with ``left_out``, the
makespans of a job of each configuration that took no part in the rounds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from cases import OURS
from checks import shared
from pydantic import model_validator

SAMPLES = 2000
"""Of the bootstrap."""
PAPER = 0.197
"""The smallest reduction of completion time that the paper reports."""
PLAIN = "dmdas"
BEGIN = '{"case": '
"""Of every line."""


class Line(shared.Row):  # type: ignore[misc, name-defined]
    """A line of the file: a round of a side, or one of the others."""

    case: str
    side: str | None = None
    makespan_s: float | None = None
    completion_s: float | None = None
    once_s: float | None = None
    native_s: float | None = None
    kernels: dict[str, float] | None = None
    done: bool = False
    report: str | None = None
    failed: str | None = None
    left_out: dict[str, float] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.side is not None:
            if self.makespan_s is None or self.completion_s is None or self.once_s is None:
                raise ValueError("a round has makespan_s, completion_s and once_s")
            if not all(
                isinstance(value, int | float) for name, value in self if name.endswith("_s") and value is not None
            ):
                raise ValueError("what ends with _s is seconds")
        elif not (self.failed is not None or self.left_out is not None or (self.done and self.report is not None)):
            raise ValueError("it is no round (side), and neither done with a report, nor failed, nor left_out")
        return self


@dataclass
class Rows:
    """Rows of all cases; with a file, each is in it before the next is measured."""

    file: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def read(file: Path) -> Rows:
        """Read a file; a last line that a killed run has not finished is left out, :meth:`forget` drops it.

        Raises ``RefusedError`` naming the line where something else is in the file, which stays as it is.
        """
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
        except (OSError, ValueError) as error:
            raise shared.RefusedError(f"{file} cannot be read ({error}); name a file that --out has written") from None
        whole, end, cut = text.rpartition("\n")
        rows = Rows(file, shared.read_rows(file, Line, whole + end))
        if cut[: len(BEGIN)] != BEGIN[: len(cut)]:
            raise shared.RefusedError(f"{file}: its last line is no round; name a file that --out has written")
        for case in rows.cases():
            if rows.done(case) is not None and not {OURS, PLAIN} <= rows.sides(case).keys():
                raise shared.RefusedError(f"{file}: {case} is done without rounds of {OURS} and {PLAIN}; take it out")
        return rows

    def add(self, **row: Any) -> None:
        """Keep a row."""
        self.rows.append(row)
        if self.file is not None:
            with self.file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")

    def cases(self) -> list[str]:
        """Return all cases in the order in which they were begun."""
        return list(dict.fromkeys(row["case"] for row in self.rows))

    def done(self, case: str) -> dict[str, Any] | None:
        """Return what was said at a case's end; None before."""
        return next((row for row in reversed(self.rows) if row["case"] == case and row.get("done")), None)

    def forget(self, case: str) -> None:
        """Drop a case that was not completed, which starts anew."""
        self.rows = [row for row in self.rows if row["case"] != case]
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def sides(self, case: str) -> dict[str, dict[str, list[float]]]:
        """Return side → name → seconds, a value a round."""
        found: dict[str, dict[str, list[float]]] = {}
        for row in self.rows:
            if row["case"] == case and "side" in row:
                side = found.setdefault(row["side"], {})
                for name, value in row.items():
                    if name.endswith("_s"):
                        side.setdefault(name, []).append(value)
        return found

    def kernels(self, case: str, side: str) -> dict[str, float]:
        """Return kernel → median over rounds of the seconds of all its tasks."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row["case"] == case and row.get("side") == side:
                for name, value in row.get("kernels", {}).items():
                    found.setdefault(name, []).append(value)
        return {name: statistics.median(values) for name, values in found.items()}


def ratio(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return ours / other of the medians, and the ends of its 95 % bootstrap interval over the rounds of both."""
    rng = np.random.default_rng(0)
    rounds = min(len(ours), len(other))
    a, b = np.asarray(ours[:rounds]), np.asarray(other[:rounds])
    picks = rng.integers(0, rounds, (SAMPLES, rounds))
    drawn = np.median(a[picks], axis=1) / np.median(b[picks], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def best(sides: dict[str, dict[str, list[float]]], name: str) -> str:
    """Return the StarPU configuration with the smallest median."""
    return min((label for label in sides if label != OURS), key=lambda label: statistics.median(sides[label][name]))


def lost(sides: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return which of ``makespan_s`` and ``completion_s`` is longer than that of the best StarPU configuration."""
    names = ("makespan_s", "completion_s")
    return [name for name in names if ratio(sides[OURS][name], sides[best(sides, name)][name])[0] > 1.0]


def table(rows: Rows, case: str) -> Iterable[str]:
    """Yield the lines of a case's table, milliseconds."""
    sides = rows.sides(case)
    yield case
    yield from (f"  failed: {row['failed']}" for row in rows.rows if row["case"] == case and "failed" in row)
    if any("makespan_s" not in sides.get(label, {}) for label in (OURS, PLAIN)):
        return
    yield (
        f"  {'':18} {'makespan':>9} {'ours/it':>8} {'95 % interval':>15} "
        f"{'completion':>11} {'ours/it':>8} {'95 % interval':>15} {'native':>8} {'rounds':>7}"
    )
    own = sides[OURS]
    for label, side in sides.items():
        makespan, low, high = ratio(own["makespan_s"], side["makespan_s"])
        completion, first, last = ratio(own["completion_s"], side["completion_s"])
        native = f"{statistics.median(side['native_s']) * 1e3:8.0f}" if "native_s" in side else " " * 8
        yield (
            f"  {label:18} {statistics.median(side['makespan_s']) * 1e3:9.1f} {makespan:8.3f} {low:7.3f}-{high:7.3f} "
            f"{statistics.median(side['completion_s']) * 1e3:11.0f} {completion:8.3f} {first:7.3f}-{last:7.3f} "
            f"{native} {len(side['makespan_s']):7}"
        )
    for row in rows.rows:
        if row["case"] == case and row.get("left_out"):
            yield "  left out: " + ", ".join(f"{label} {s * 1e3:.1f}" for label, s in row["left_out"].items())
    for name in ("makespan_s", "completion_s"):
        label = best(sides, name)
        value = ratio(own[name], sides[label][name])[0]
        yield (
            f"  best {name.removesuffix('_s')} of StarPU: {label}; ours takes {value - 1:+.1%} "
            f"({'at least' if 1 - value >= PAPER else 'not'} 19.7 % less)"
        )
    done = rows.done(case)
    if done is None:
        yield "  not complete"
        return
    if "makespan_s" in lost(sides):
        yield "  our makespan is longer; tasks of a kernel together, ours and StarPU's:"
        yield f"    {_kernels(rows, case, best(sides, 'makespan_s'))}"
        yield "  where our time went (heterotask report):"
        yield from (f"    {line}" for line in done["report"].splitlines())
    if "completion_s" in lost(sides):
        yield "  our completion is longer; where it goes:"
        yield from (f"    {line}" for line in _parts(sides))


def _kernels(rows: Rows, case: str, label: str) -> str:
    """Return what each kernel's tasks take on both sides, and all of them."""
    ours, other = rows.kernels(case, OURS), rows.kernels(case, label)
    pairs = {name: (ours.get(name, 0.0), other.get(name, 0.0)) for name in ours | other}
    pairs = dict(sorted(pairs.items(), key=lambda item: -abs(item[1][0] - item[1][1])))
    pairs["all"] = sum(ours.values()), sum(other.values())
    return ", ".join(f"{name} {a * 1e3:.1f} / {b * 1e3:.1f}" for name, (a, b) in pairs.items())


def _parts(sides: dict[str, dict[str, list[float]]]) -> Iterable[str]:
    """Yield what completion consists of on both sides, medians."""
    label = best(sides, "completion_s")
    for side in (OURS, label):
        median = {name: statistics.median(values) * 1e3 for name, values in sides[side].items()}
        if "python_s" in median:
            before = f"{median['python_s']:.0f} ms Python before StarPU, {median['start_s']:.0f} ms starpu_init, "
            spent = median["python_s"] + median["start_s"] + median["once_s"]
        else:
            before, spent = "", median["once_s"]
        other = "the rest" if before else "starting and ending ranks"
        yield f"{side}: {before}{median['once_s']:.1f} ms tasks, {median['completion_s'] - spent:.0f} ms {other}"


def overview(rows: Rows) -> Iterable[str]:
    """Yield a line a case as a table in Markdown: medians in milliseconds, ratios with their 95 % intervals."""
    yield "| case | rounds | makespan | best StarPU | `dmdas` | ours / best | completion | best StarPU | ours / best |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for case in rows.cases():
        if rows.done(case) is None:
            continue
        sides = rows.sides(case)
        own = sides[OURS]
        cells = [case, str(len(own["makespan_s"]))]
        for name in ("makespan_s", "completion_s"):
            digits = 1 if name == "makespan_s" else 0
            label = best(sides, name)
            value, low, high = ratio(own[name], sides[label][name])
            told = f"{value:.2f} ({low:.2f} to {high:.2f})"
            cells += [_ms(own[name], digits), f"{_ms(sides[label][name], digits)} `{label}`"]
            if name == "makespan_s":
                cells.append(_ms(sides[PLAIN][name], digits))
            cells.append(f"**{told}**" if value > 1.0 else told)
        yield "| " + " | ".join(cells) + " |"


def _ms(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values) * 1e3:,.{digits}f}"
