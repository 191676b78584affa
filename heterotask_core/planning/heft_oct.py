"""HEFT's order with PEFT's devices.

Upward rank (Topcuoglu, Hariri & Wu, TPDS 2002) orders the tasks, since it knows how much work hangs on each;
the optimistic cost table (Arabnejad & Barbosa, TPDS 2014) chooses their devices, since it looks ahead.
"""

from __future__ import annotations

from heterotask_core.planning.listing import ListPlanner, Rule, heft_rule, peft_rule
from heterotask_core.planning.problem import Problem


def heft_oct_rule(problem: Problem) -> Rule:
    """Return the rule: priority from HEFT, bias from PEFT."""
    heft = heft_rule(problem)
    return Rule(heft.priority, peft_rule(problem).bias, heft.forced)


HEFT_OCT = ListPlanner.of_rule("heft-oct", heft_oct_rule)
