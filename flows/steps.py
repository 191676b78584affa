"""The steps of the flows as Prefect tasks: a stage each, so that the run page shows how far a run is.

Steps hand over names of records in the store and small dictionaries, never tables. None is cached: what a
stage may reuse is the store's business, which knows content hashes where Prefect sees only parameter texts.
"""

import json
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from calibration.journal import overheads_to_json
from flows.artifacts import publish_calibration, publish_run
from flows.params import CalibrateParams, PlanParams, ProfileParams, WorkflowParams
from heterotask_core.stages import execute_stage, load_plan, plan_stage, profile_stage


@task(name="profile", cache_policy=NO_CACHE)
def profile_step(config: ProfileParams) -> dict[str, Any]:
    """Measure what the store lacks; return how many timings were measured and reused."""
    profiled = profile_stage(config.workflow(), config.open_store(), budget_s=config.profile_budget_s)
    get_run_logger().info("%d timings measured, %d from the store", profiled.measured, profiled.reused)
    return {"measured": profiled.measured, "reused": profiled.reused, "fingerprint": profiled.fingerprint}


@task(name="plan", cache_policy=NO_CACHE)
def plan_step(config: PlanParams) -> dict[str, Any]:
    """Plan with the profile in the store; return the plan's name and how good it is (seconds)."""
    workflow, store = config.workflow(), config.open_store()
    profiled = profile_stage(workflow, store, budget_s=config.profile_budget_s)
    plan = plan_stage(workflow, profiled, store, planner=config.planner, budget=config.budget())
    origin = "from the store" if plan.reused else "new"
    get_run_logger().info("plan %s (%s): predicted %.3g s", plan.folder.name, origin, plan.predicted_s)
    return {
        "plan": plan.folder.name,
        "reused": plan.reused,
        "planner": plan.program.meta["planner"],
        "predicted_makespan_s": plan.predicted_s,
        "lower_bound_s": plan.lower_bound_s,
    }


@task(name="execute", cache_policy=NO_CACHE)
def execute_step(config: WorkflowParams, plan: str, repeats: int) -> dict[str, Any]:
    """Execute a plan of the store under MPI; return the run's name and makespans (seconds)."""
    workflow, store = config.workflow(), config.open_store()
    run = execute_stage(workflow, load_plan(store.folder("plans", plan), workflow), store, repeats=repeats)
    get_run_logger().info("run %s: makespans %s s", run.folder.name, run.result.makespan_s)
    return {"run": run.folder.name, "makespan_s": list(run.result.makespan_s)}


@task(name="report", cache_policy=NO_CACHE)
def report_step(config: WorkflowParams, run: str) -> None:
    """Publish the summary and the Gantt chart of a run of the store as artifacts."""
    folder = config.open_store().folder("runs", run)
    facts = json.loads((folder / "summary.json").read_text())
    publish_run(config.app, run, facts, (folder / "gantt.svg").read_bytes())


@task(name="calibrate", cache_policy=NO_CACHE)
def calibrate_step(config: CalibrateParams) -> dict[str, Any]:
    """Calibrate the workflow, publish the outcome, and return it with the overheads to plan with."""
    # Imported here: scikit-optimize takes seconds, and the other flows do without it.
    from calibration.application import calibrate_workflow

    result = calibrate_workflow(
        config.workflow(),
        config.open_store(),
        evaluations=config.evaluations,
        seed=config.seed,
        resume=config.resume,
    )
    get_run_logger().info("calibration: %s: %s", result.status, result.text)
    facts = {
        "status": result.status,
        "text": result.text,
        "distinct_programs": result.distinct_programs,
        "evaluations": result.evaluations,
        "predicted_s": result.predicted_s,
        "measured_s": result.measured_s,
    }
    publish_calibration(config.app, facts)
    return facts | {"overheads": overheads_to_json(result.overheads)}
