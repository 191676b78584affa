"""The command ``heterotask calibrate``, registered by entry point."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from heterotask_core.cli import (
    DEFAULT_STORE,
    AppArgument,
    DevicesOption,
    JsonOption,
    NodesOption,
    ParamOption,
    PlannerOption,
    ProfileBudgetOption,
    SeedOption,
    StoreOption,
    open_workflow,
)


def calibrate(
    application: AppArgument,
    param: ParamOption = None,
    devices: DevicesOption = "",
    nodes: NodesOption = 1,
    store: StoreOption = DEFAULT_STORE,
    planner: PlannerOption = "portfolio",
    evaluations: Annotated[int, typer.Option("--evaluations", min=2, help="Most programs to measure.")] = 12,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted calibration.")] = False,
    profile_budget: ProfileBudgetOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure plans, estimate overheads, search around them, and keep the plan measured fastest."""
    from calibration.application import calibrate_workflow

    workflow, opened = open_workflow(application, param, devices, nodes, store)
    result = calibrate_workflow(
        workflow,
        opened,
        evaluations=evaluations,
        seed=seed,
        resume=resume,
        planner=planner,
        profile_budget_s=profile_budget,
        progress=(lambda _: None) if as_json else print,
    )
    if as_json:
        print(json.dumps(asdict(result), default=str, indent=1))
    else:
        print(result.text if result.text.startswith(result.status) else f"{result.status}: {result.text}")
