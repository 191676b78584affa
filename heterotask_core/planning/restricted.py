"""The best list schedule over restricted sets of devices.

A slow or far device that looks good for one task may delay all that follow it; leaving it out is the plainest
remedy. Tried are: all devices, each kind alone, each node alone, and each kind on each node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.heft_oct import heft_oct_rule
from heterotask_core.planning.listing import ListPlanner, Rule, heft_rule, peft_rule, place, wide
from heterotask_core.planning.problem import Problem

Mask = npt.NDArray[np.bool_]

RULES: tuple[Callable[[Problem], Rule], ...] = (heft_rule, peft_rule, heft_oct_rule)
"""What is tried on every set."""


def restrict(problem: Problem, allowed: Mask) -> Problem:
    """Return the problem with only the ``allowed`` devices (D,); a task that none of them can run keeps all."""
    cost_s = np.where(allowed[None, :], problem.cost_s, np.inf)
    stuck = ~np.isfinite(cost_s).any(axis=1)
    cost_s[stuck] = problem.cost_s[stuck]
    return replace(problem, cost_s=cost_s)


def device_sets(problem: Problem) -> dict[str, Mask]:
    """Return the sets by name: "all", kinds, nodes, and kinds on nodes, each only once."""
    kinds = np.array(problem.device_kinds)
    nodes = np.array([problem.memory_nodes[m] for m in problem.device_memory])
    sets = {"all": np.ones(problem.n_devices, np.bool_)}
    sets |= {kind: kinds == kind for kind in dict.fromkeys(problem.device_kinds)}
    sets |= {node: nodes == node for node in dict.fromkeys(nodes.tolist())}
    sets |= {f"{kind} on {node}": (kinds == kind) & (nodes == node) for kind, node in zip(kinds, nodes, strict=True)}
    seen: set[bytes] = set()
    different: dict[str, Mask] = {}
    for name, mask in sets.items():
        if mask.tobytes() not in seen:
            seen.add(mask.tobytes())
            different[name] = mask
    return different


def restricted_passes(problem: Problem) -> list[tuple[Placed, Rule, str]]:
    """Return a pass for every set and rule that can be placed: (placement, rule, name of the set).

    The rules hold the restriction (an infinite bias), so they can be placed in the whole problem again.
    Raises :class:`InfeasiblePlanError` if not even all devices together will do.
    """
    passes: list[tuple[Placed, Rule, str]] = []
    failure: InfeasiblePlanError | None = None
    for name, mask in device_sets(problem).items():
        smaller = restrict(problem, mask)
        view = arrays(smaller)
        shut = np.where(np.isfinite(smaller.cost_s[problem.task_class]), 0.0, np.inf)
        for make in RULES:
            rule = make(smaller)
            try:
                passes.append((place(smaller, view, rule), rule._replace(bias=wide(smaller, rule.bias) + shut), name))
            except InfeasiblePlanError as error:
                failure = failure or error
    if not passes and failure is not None:
        raise failure
    return passes


RESTRICTED = ListPlanner("restricted", lambda problem: [placed for placed, _, _ in restricted_passes(problem)])
