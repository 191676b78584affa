"""The flows that prefect.yaml deploys: each a few steps over one flat parameter model."""

from typing import Any

from prefect import flow

from flows.params import CalibrateParams, ExecuteParams, PipelineParams, PlanParams, ProfileParams
from flows.steps import calibrate_step, execute_step, plan_step, profile_step, report_step


@flow(name="profile")
def profile(config: ProfileParams) -> dict[str, Any]:
    """Time every variant on every kind of device, and every link; measure only what is missing or stale."""
    return profile_step(config)


@flow(name="plan")
def plan(config: PlanParams) -> dict[str, Any]:
    """Profile what is missing, and plan; the result names the plan for the flow ``execute``."""
    profile_step(config)
    return plan_step(config)


@flow(name="execute")
def execute(config: ExecuteParams) -> dict[str, Any]:
    """Execute a plan of the store unchanged, and publish what happened."""
    ran = execute_step(config, config.plan, config.repeats)
    report_step(config, ran["run"])
    return ran


@flow(name="pipeline")
def pipeline(config: PipelineParams) -> dict[str, Any]:
    """Profile what is missing, plan, execute, and publish what happened."""
    profiled = profile_step(config)
    planned = plan_step(config)
    ran = execute_step(config, planned["plan"], config.repeats)
    report_step(config, ran["run"])
    return {"profile": profiled, "plan": planned, "execute": ran}


@flow(name="calibrate")
def calibrate(config: CalibrateParams) -> dict[str, Any]:
    """Find the overheads that real runs show, and keep a plan only if it is measured faster."""
    return calibrate_step(config)
