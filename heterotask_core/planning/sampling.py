"""Many list schedules: between PEFT's, HEFT's and CPOP's order, with more or less foresight and heed of prices.

A pass costs about as much as an evaluation of the local search, and changes everything at once: on large problems a
hundred of them find what the local search would need all of its time for. Drawn are how much HEFT's order weighs
against PEFT's, how much of the optimistic cost table (PEFT's, or the one that knows links) is added to a task's end,
how many times what a device is overpaid (:mod:`.peft_area`) and what transfers take (:mod:`.peft_data`); half of the
draws are close to the best so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from heterotask_core.planning.core import Arrays, Placed, decode
from heterotask_core.planning.listing import cpop_rule, heft_rule, peft_rule, wide
from heterotask_core.planning.peft_area import overpaid_s
from heterotask_core.planning.peft_link import link_oct
from heterotask_core.planning.problem import F64, Problem

KEPT = 4
"""Passes that are returned, the best of different makespans."""
LARGEST = 20_000_000
"""Most tasks × devices: each of the tables takes eight bytes for every pair."""


class _Draw(NamedTuple):
    heft: float
    """Weight of HEFT's order against PEFT's, from 0 to 1."""
    both: float
    """Weight of CPOP's order (longest path through the task) against the two, from 0 to 1."""
    ahead: float
    """Weight of the optimistic cost table."""
    price: float
    linked: bool
    beta: float
    """Weight of the seconds that a task's inputs spend on links."""
    path: bool
    """Whether CPOP's critical path is forced onto its device."""


def sampled_passes(
    problem: Problem,
    view: Arrays,
    *,
    most: int,
    seed: int,
    go_on: Callable[[], bool],
    best_s: float = np.inf,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[list[Placed], int, bool]:
    """Return the best passes found, best first, how many were made, and whether it went on to the end.

    It ends after ``most`` passes or as soon as ``go_on`` says no; an interrupt (Ctrl-C) ends it before its end. The
    same for the same ``seed`` and number. Passes that cannot be placed count too. ``progress`` hears of what is shorter
    than ``best_s`` and all before.
    """
    if most < 1 or not problem.n_tasks or problem.n_tasks * problem.n_devices > LARGEST or not go_on():
        return [], 0, True
    rng = np.random.default_rng([seed, 1])
    peft, heft, cpop = peft_rule(problem), heft_rule(problem), cpop_rule(problem)
    orders = [r.priority / max(float(r.priority.max(initial=0.0)), 1e-300) for r in (peft, heft, cpop)]
    tables = [np.ascontiguousarray(wide(problem, peft.bias)), link_oct(problem)[0]]
    if not np.isfinite(tables[1]).all():
        tables[1] = tables[0]
    over = overpaid_s(problem)
    extra: F64 | None = None if over is None else over[problem.task_class]
    found: list[tuple[float, _Draw, Placed]] = []
    count = 0
    try:
        while count < most and go_on():
            near = (
                found[int(rng.integers(len(found)))][1] if found and count > most // 4 and rng.random() < 0.6 else None
            )
            draw = _drawn(rng, near)
            bias = draw.ahead * tables[draw.linked]
            if extra is not None and draw.price > 0.0:
                bias += draw.price * extra
            priority = draw.heft * orders[1] + (1.0 - draw.heft) * orders[0]
            priority += draw.both * (orders[2] - priority)
            placed = Placed(*decode(view, priority, bias, cpop.forced if draw.path else peft.forced, draw.beta))
            count += 1
            if placed.failed >= 0 or any(placed.makespan_s == value for value, _, _ in found):
                continue
            found.append((float(placed.makespan_s), draw, placed))
            found = sorted(found, key=lambda row: row[0])[:KEPT]
            if placed.makespan_s < best_s:
                best_s = float(placed.makespan_s)
                if progress is not None:
                    progress(count, best_s)
    except KeyboardInterrupt:
        return [placed for _, _, placed in found], count, False
    return [placed for _, _, placed in found], count, True


def _drawn(rng: np.random.Generator, near: _Draw | None) -> _Draw:
    if near is None:
        price = float(np.exp(rng.uniform(np.log(0.3), np.log(20.0)))) if rng.random() < 0.8 else 0.0
        both = float(rng.random()) if rng.random() < 0.4 else 0.0
        ahead = float(rng.uniform(0.0, 1.5)) if rng.random() < 0.8 else 0.0
        beta = float(np.exp(rng.uniform(np.log(0.1), np.log(20.0)))) if rng.random() < 0.4 else 0.0
        return _Draw(float(rng.random()), both, ahead, price, bool(rng.random() < 0.3), beta, bool(rng.random() < 0.3))
    step = rng.normal(size=5)
    return near._replace(
        heft=float(np.clip(near.heft + 0.1 * step[0], 0.0, 1.0)),
        both=float(np.clip(near.both + 0.1 * step[3], 0.0, 1.0)) if near.both > 0.0 else 0.0,
        ahead=float(abs(near.ahead + 0.15 * step[1])),
        price=float(near.price * np.exp(0.4 * step[2])),
        beta=float(near.beta * np.exp(0.4 * step[4])),
    )
