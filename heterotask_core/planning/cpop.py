"""CPOP (Topcuoglu, Hariri & Wu, TPDS 2002): the critical path on one device."""

from __future__ import annotations

from heterotask_core.planning.listing import ListPlanner, cpop_rule

CPOP = ListPlanner.of_rule("cpop", cpop_rule)
