"""The flows that prefect.yaml deploys: each a few steps over one flat parameter model."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.nightly import reason_to_skip
from flows.params import CalibrateParams, ExecuteParams, NightlyParams, PipelineParams, PlanParams, ProfileParams
from flows.steps import calibrate_step, check_step, execute_step, mark_host, plan_step, profile_step, report_step


@flow(name="profile")
def profile(config: ProfileParams) -> dict[str, Any]:
    """Time every variant on every kind of device, and every link; measure only what is missing or stale."""
    mark_host()
    return profile_step(config)


@flow(name="plan")
def plan(config: PlanParams) -> dict[str, Any]:
    """Profile what is missing, and plan; the result names the plan for the flow ``execute``."""
    mark_host()
    profile_step(config)
    return plan_step(config)


@flow(name="execute")
def execute(config: ExecuteParams) -> dict[str, Any]:
    """Execute a plan of the store unchanged, and publish what happened."""
    mark_host()
    ran = execute_step(config, config.plan, config.repeats)
    report_step(config, ran["run"])
    return ran


@flow(name="pipeline")
def pipeline(config: PipelineParams) -> dict[str, Any]:
    """Profile what is missing, plan, execute, and publish what happened."""
    return run_pipeline(config)


def run_pipeline(config: PipelineParams) -> dict[str, Any]:
    """Do what the flow ``pipeline`` does, in the flow that calls this."""
    mark_host()
    profiled = profile_step(config)
    planned = plan_step(config)
    ran = execute_step(config, planned["plan"], config.repeats)
    report_step(config, ran["run"])
    if config.check:
        check_step(config, ran["run"])
    return {"profile": profiled, "plan": planned, "execute": ran}


@flow(name="calibrate")
def calibrate(config: CalibrateParams) -> dict[str, Any]:
    """Find the overheads that real runs show, and keep a plan only if it is measured faster."""
    mark_host()
    return calibrate_step(config)


@flow(name="nightly")
def nightly(config: NightlyParams) -> dict[str, Any] | State[Any]:
    """Calibrate if the plan in use has drifted; skip where that was looked at lately, or the host is busy."""
    mark_host()
    reason = reason_to_skip(config)
    if reason is not None:
        return Completed(name="Skipped", message=reason)
    return calibrate_step(config)
