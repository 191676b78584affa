"""PEFT and HEFT where a task also pays for its transfers, hidden or not.

A list schedule takes transfers that end in time for nothing, and so fills the links until later tasks wait for them.
Here the seconds that a task's inputs spend on links count β times in the choice of its device, beside what they delay
it. β is what StarPU calls so (Augonnet et al., 2011): the weight of transfers against time in its ``dmda`` schedulers.
β = 0, which is PEFT and HEFT as they are, is not tried: the best of what is tried may be longer than both.
"""

from __future__ import annotations

from heterotask_core.planning.core import Placed, arrays
from heterotask_core.planning.listing import ListPlanner, Rule, heft_rule, peft_rule, place
from heterotask_core.planning.problem import Problem

BETAS = (0.3, 3.0, 10.0)


def peft_data_rules(problem: Problem) -> list[Rule]:
    """Return the rules: each β with PEFT's and with HEFT's order and bias; none where nothing is linked."""
    if not len(problem.link_source):
        return []
    rules = peft_rule(problem), heft_rule(problem)
    return [rule._replace(beta=beta) for beta in BETAS for rule in rules]


def _passes(problem: Problem) -> list[Placed]:
    """Return a pass for each rule; without links, PEFT's."""
    view = arrays(problem)
    return [place(problem, view, rule) for rule in peft_data_rules(problem) or [peft_rule(problem)]]


PEFT_DATA = ListPlanner("peft-data", _passes)
