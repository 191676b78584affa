"""PEFT (Arabnejad & Barbosa, TPDS 2014): rank and device choice by the optimistic cost table."""

from __future__ import annotations

from heterotask_core.planning.listing import ListPlanner, peft_rule

PEFT = ListPlanner.of_rule("peft", peft_rule)
