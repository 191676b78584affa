"""HEFT (Topcuoglu, Hariri & Wu, TPDS 2002): upward rank, earliest finish."""

from __future__ import annotations

from heterotask_core.planning.listing import ListPlanner, heft_rule

HEFT = ListPlanner.of_rule("heft", heft_rule)
