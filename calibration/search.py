"""Bayesian search around the estimate: scikit-optimize's ask/tell over at most six log-multipliers.

The Gaussian process models the log makespan with the noise estimated from repeats; the best point is the one
with the smallest posterior *mean*, never the smallest value seen (of 40 equal plans at 3 % noise the best
looks 6.3 % shorter).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from skopt import Optimizer
from skopt.utils import cook_estimator
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from heterotask_core.profiling.costs import DISPATCH_BOUNDS_S, SCALE_BOUNDS, Overheads

MAX_DIMENSIONS = 6
LOG_RANGE = math.log(4.0)
"""A multiplier lies between 1/4 and 4."""
DISPATCH_FLOOR_S = 20e-6
"""A dispatch or set-up estimated below this moves in steps of it: a multiple of nothing is nothing."""


@dataclass(frozen=True)
class Space:
    """The log-multipliers that move: names like ``compute_scale:cuda``, ``dispatch_s:cpu``, ``link_scale``.

    The first device kind's compute scale stays fixed: a factor common to all devices changes no decision.
    A contention weight is left out: it multiplies the CPU's tasks, as ``compute_scale:cpu`` does already.
    """

    names: tuple[str, ...]
    device_kinds: tuple[str, ...]
    link_kinds: tuple[str, ...]

    @staticmethod
    def of(device_kinds: Sequence[str], link_kinds: Sequence[str]) -> Space:
        """Return the space of a platform's kinds, the most telling dimensions first, cut after six."""
        devices, links = tuple(sorted(set(device_kinds))), tuple(sorted(set(link_kinds)))
        names = [f"compute_scale:{kind}" for kind in devices[1:]]
        names += ["link_scale"] if links else []
        names += [f"dispatch_s:{kind}" for kind in devices]
        names += ["link_setup_s"] if links else []
        return Space(tuple(names[:MAX_DIMENSIONS]), devices, links)

    def apply(self, around: Overheads, point: Sequence[float]) -> Overheads:
        """Return ``around`` moved by the log-multipliers of ``point``, kept in bounds."""
        moves = {name: math.exp(value) for name, value in zip(self.names, point, strict=True)}
        scale = {kind: moves.get(f"compute_scale:{kind}", 1.0) for kind in self.device_kinds}
        dispatch = {kind: moves.get(f"dispatch_s:{kind}", 1.0) for kind in self.device_kinds}
        link_scale = dict.fromkeys(self.link_kinds, moves.get("link_scale", 1.0))
        link_setup = dict.fromkeys(self.link_kinds, moves.get("link_setup_s", 1.0))
        return replace(
            around,
            compute_scale=_scaled(around.compute_scale, scale),
            dispatch_s=_shifted(around.dispatch_s, dispatch),
            link_scale=_scaled(around.link_scale, link_scale),
            link_setup_s=_shifted(around.link_setup_s, link_setup),
        )


def _scaled(values: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    keys = sorted(set(values) | set(factors))
    return {k: float(np.clip(values.get(k, 1.0) * factors.get(k, 1.0), *SCALE_BOUNDS)) for k in keys}


def _shifted(values: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    result = {}
    for key in sorted(set(values) | set(factors)):
        value, factor = values.get(key, 0.0), factors.get(key, 1.0)
        moved = value + max(value, DISPATCH_FLOOR_S) * (factor - 1.0)
        result[key] = float(np.clip(moved, *DISPATCH_BOUNDS_S))
    return result


class Search:
    """Ask for points, tell log makespans; deterministic for a seed and the sequence of values told."""

    def __init__(self, space: Space, *, seed: int, initial: int | None = None) -> None:
        self.space = space
        self._initial = initial if initial is not None else 2 * len(space.names)
        self._points: list[list[float]] = []
        self._values: list[float] = []
        self._model = cook_estimator("GP", space=[(-LOG_RANGE, LOG_RANGE)] * len(space.names), random_state=seed)
        self._optimizer = Optimizer(
            [(-LOG_RANGE, LOG_RANGE)] * len(space.names),
            base_estimator=self._model,
            n_initial_points=self._initial,
            initial_point_generator="sobol" if _is_power_of_two(self._initial) else "lhs",
            acq_func="EI",
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"n_points": 2000},
            random_state=seed,
        )

    def ask(self) -> list[float]:
        """Return the next point to plan with."""
        with _quiet():
            return [float(v) for v in self._optimizer.ask()]

    def tell(self, point: Sequence[float], log_makespan: float, *, noise: float) -> None:
        """Record the log makespan at ``point``; ``noise`` is its standard deviation, as estimated from repeats."""
        self._points.append([float(v) for v in point])
        self._values.append(float(log_makespan))
        # The model sees values divided by their spread. Without any spread there is nothing to model.
        spread = float(np.std(self._values)) or 1.0
        self._model.set_params(noise=max((noise / spread) ** 2, 1e-6))
        with _quiet():
            self._optimizer.tell([float(v) for v in point], float(log_makespan))

    def expected_improvement(self, point: Sequence[float]) -> float:
        """Return the improvement expected at ``point``, a difference of log makespans; infinite before a model."""
        if not self._optimizer.models:
            return math.inf
        mean, deviation = self._predict([list(point)])
        best = self._predict(self._points)[0].min()
        gap, spread = best - mean[0], max(float(deviation[0]), 1e-12)
        return float(gap * stats.norm.cdf(gap / spread) + spread * stats.norm.pdf(gap / spread))

    def ranking(self) -> list[int]:
        """Return the indices of the points told, the smallest posterior mean first; empty before a model."""
        if not self._optimizer.models:
            return []
        return [int(i) for i in np.argsort(self._predict(self._points)[0], kind="stable")]

    def _predict(self, points: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
        with _quiet():
            mean, deviation = self._optimizer.models[-1].predict(
                self._optimizer.space.transform(points), return_std=True
            )
        return np.asarray(mean), np.asarray(deviation)


def _is_power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what scikit-optimize says about points asked twice and hyperparameters at bounds; one BLAS thread.

    Matrices of a few dozen rows gain nothing from threads, which take the cores from the program measured.
    """
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.filterwarnings("ignore", message="The objective has been evaluated at", module="skopt")
        warnings.filterwarnings("ignore", module="sklearn.gaussian_process")
        yield
