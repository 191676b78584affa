"""Times of sizes never measured: a model a kernel and variant over bytes, chosen by leaving sizes out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heterotask_core.errors import ProfileError
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.items import Item, wanted_items
from heterotask_core.profiling.records import known_timings
from heterotask_core.store import Store

SURE = 0.10
FAIR = 0.25
"""Relative errors up to which an estimate inside the measured sizes has high, and medium confidence."""
REACH = 4.0
"""How many times the largest (or below the smallest) measured size an estimate of medium confidence may be."""


@dataclass(frozen=True)
class SizeModel:
    """Seconds by bytes, fitted to medians at distinct sizes.

    ``form`` is "linear" (a + b n), "power" (a n^b), "n log n" (a + b n log2 n) or "proportional" (one size only).
    ``error`` is the relative error (RMS) at sizes left out of the fit in turn, NaN with fewer than three.
    """

    form: str
    a: float
    b: float
    error: float
    sizes: tuple[float, ...]

    def time_s(self, size_bytes: float) -> float:
        """Return the estimate in seconds."""
        return FORMS[self.form].time_s(self.a, self.b, size_bytes)


@dataclass(frozen=True)
class _Form:
    fit: Callable[[np.ndarray, np.ndarray], tuple[float, float]]
    time_s: Callable[[float, float, float], float]


def _straight(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return a, b ≥ 0 of y = a + b x with the smallest relative errors."""
    design = np.stack([1.0 / y, x / y], axis=1)
    a, b = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)[0]
    if b < 0.0:
        return float(1.0 / np.mean(1.0 / y)), 0.0
    if a < 0.0:
        return 0.0, float(design[:, 1].sum() / (design[:, 1] ** 2).sum())
    return float(a), float(b)


def _log_size(n: np.ndarray | float) -> Any:
    return n * np.log2(np.maximum(n, 2.0))


def _power(n: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    b, log_a = np.polyfit(np.log(np.maximum(n, 1.0)), np.log(y), 1)
    return float(np.exp(log_a)), float(b)


FORMS: Mapping[str, _Form] = {
    "linear": _Form(_straight, lambda a, b, n: a + b * n),
    "power": _Form(_power, lambda a, b, n: a * max(n, 1.0) ** b),
    "n log n": _Form(lambda n, y: _straight(_log_size(n), y), lambda a, b, n: a + b * float(_log_size(n))),
    "proportional": _Form(lambda n, y: (0.0, float(np.mean(y / np.maximum(n, 1.0)))), lambda a, b, n: a + b * n),
}


def fit_sizes(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> SizeModel:
    """Fit the form that predicts left-out sizes best; two sizes give a line, one a proportion.

    Times of equal sizes count as their median. Raises :class:`ProfileError` without any time above 0.
    """
    by_size: dict[float, list[float]] = {}
    for size_bytes, time_s in zip(sizes_bytes, times_s, strict=True):
        if time_s > 0.0:
            by_size.setdefault(float(size_bytes), []).append(time_s)
    if not by_size:
        raise ProfileError("no measured time to predict from; profile at least one size")
    n = np.array(sorted(by_size))
    y = np.array([np.median(by_size[size]) for size in n.tolist()])
    if len(n) < 3:
        form = "linear" if len(n) == 2 else "proportional"
        return SizeModel(form, *FORMS[form].fit(n, y), math.nan, tuple(n.tolist()))
    errors = {form: _left_out(form, n, y) for form in ("linear", "power", "n log n")}
    best = min(errors, key=lambda form: errors[form])
    return SizeModel(best, *FORMS[best].fit(n, y), errors[best], tuple(n.tolist()))


def _left_out(form: str, n: np.ndarray, y: np.ndarray) -> float:
    errors = []
    for i in range(len(n)):
        rest = np.arange(len(n)) != i
        a, b = FORMS[form].fit(n[rest], y[rest])
        errors.append(FORMS[form].time_s(a, b, float(n[i])) / y[i] - 1.0)
    return float(np.sqrt(np.mean(np.square(errors))))


@dataclass(frozen=True)
class Estimate:
    """What one task of a kernel will take on devices of a model, and how well that is known."""

    kernel: str
    variant: str
    device_kind: str
    device_model: str
    size_bytes: int
    """Read and written by one task."""
    tasks: int
    """How many tasks of that kernel and size there are."""
    estimate_s: float
    error: float
    """Relative; NaN where nothing tells."""
    source: str
    confidence: str
    """"measured", "high", "medium" or "low"."""


def predict(graph: TaskGraph, platform: Platform, store: Store) -> list[Estimate]:
    """Return an estimate for every kernel, variant, device model and size of ``graph``; measures nothing.

    Timings of the store count where source, packages, driver and device are the same. Raises :class:`ProfileError`
    naming a kernel of which nothing was ever measured.
    """
    wanted = wanted_items(graph, platform)
    known = known_timings(store, wanted)
    tasks = Counter(class_key(task) for task in graph)
    found: dict[tuple[str, str, str, str, int], Estimate] = {}
    for item in wanted.values():
        place = (item.task.kernel.name, item.variant.name, item.device.variant_kind, item.device.model, item.size_bytes)
        count = tasks[item.identity[0]]
        if place in found:
            before = found[place]
            found[place] = Estimate(**{**vars(before), "tasks": before.tasks + count})
            continue
        found[place] = Estimate(*place, count, *_estimate(item, known))
    return list(found.values())


def _estimate(item: Item, known: Mapping[Any, Mapping[str, Any]]) -> tuple[float, float, str, str]:
    row = known.get(item.identity)
    if row is not None:
        spread = row["mad_s"] / row["median_s"] if row["median_s"] > 0.0 else math.nan
        return row["median_s"], spread, row["source"], "measured" if row["source"] == "measured" else "high"
    alike = [
        (r["input_bytes"] + r["output_bytes"], r["median_s"])
        for identity, r in known.items()
        if identity[1:-1] == item.identity[1:-1] and r["kernel"] == item.task.kernel.name
    ]
    if not alike:
        raise ProfileError(
            f"kernel {item.task.kernel.name!r}, variant {item.variant.name!r} was never measured on "
            f"{item.device.model}; run `heterotask profile` with one or more sizes first"
        )
    model = fit_sizes([n for n, _ in alike], [t for _, t in alike])
    count = len(model.sizes)
    source = f"model: {model.form} over {count} size{'s' if count > 1 else ''}"
    return model.time_s(item.size_bytes), model.error, source, _confidence(model, item.size_bytes)


def _confidence(model: SizeModel, size_bytes: int) -> str:
    inside = model.sizes[0] <= size_bytes <= model.sizes[-1]
    near = model.sizes[0] / REACH <= size_bytes <= model.sizes[-1] * REACH
    if math.isnan(model.error):
        return "low"
    if inside and model.error <= SURE:
        return "high"
    return "medium" if near and model.error <= FAIR else "low"
