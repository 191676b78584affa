"""The commands ``heterotask calibrate`` and ``heterotask drift``, registered by entry point."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from heterotask_core.cli import open_workflow
from heterotask_core.commands.options import (
    AppArgument,
    JsonOption,
    PlannerOption,
    ProfileBudgetOption,
    SeedOption,
    Target,
    grouped,
)


@grouped
def calibrate(
    application: AppArgument,
    target: Target,
    planner: PlannerOption = "portfolio",
    evaluations: Annotated[int, typer.Option("--evaluations", min=2, help="Most programs to measure.")] = 12,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted calibration.")] = False,
    nightly: Annotated[
        bool,
        typer.Option("--nightly", help="Calibrate only if the plan in use is slower or faster than it was accepted."),
    ] = False,
    profile_budget: ProfileBudgetOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure plans, estimate overheads, search around them, and keep the plan measured fastest."""
    from calibration.application import calibrate_workflow
    from calibration.nightly import nightly as calibrate_nightly

    workflow, opened = open_workflow(application, target, target.nodes)
    result = (calibrate_nightly if nightly else calibrate_workflow)(
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


@grouped
def drift(application: AppArgument, target: Target) -> None:
    """Say whether the latest runs of the calibrated plan are as fast as accepted, and what changed if not."""
    from calibration.nightly import drift_of_runs

    workflow, opened = open_workflow(application, target, target.nodes)
    found = drift_of_runs(workflow, opened)
    print("not calibrated: there is no accepted plan to compare with" if found is None else found.text)
    if found is not None and found.drifted:
        raise typer.Exit(3)
