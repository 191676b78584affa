"""The steps of the flows as Prefect tasks: a stage each, so that the run page shows how far a run is.

Steps hand over names of records in the store and small dictionaries, never tables. None is cached: what a
stage may reuse is the store's business, which knows content hashes where Prefect sees only parameter texts.
"""

import json
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from calibration.journal import overheads_to_json
from flows.artifacts import artifact_key, publish_calibration, publish_drift, publish_run
from flows.orphan import end_with_worker
from flows.params import CalibrateParams, NightlyParams, PlanParams, ProfileParams, WorkflowParams
from flows.plain import tell_errors_in_one_line
from flows.progress import ProgressFeed, rank_lines_to
from flows.reconcile import host_tag
from heterotask_core.errors import ExecutionError, LaunchError
from heterotask_core.stages import execute_stage, load_plan, plan_stage, profile_stage
from heterotask_core.tables import TRACE, read_table

LAUNCH_RETRIES = 1
LAUNCH_RETRY_S = 10


def mark_host() -> None:
    """Tag the current flow run with this host, where `heterotask reconcile` can tell whether it lives.

    From here on the process ends with its worker, and tells errors of ours in one line.
    """
    end_with_worker()
    tell_errors_in_one_line()
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, tags={*run.tags, host_tag()})


def nothing_ran(task: Any, run: TaskRun, state: State[Any]) -> bool:
    """Whether an attempt failed before any rank started; only that is worth another."""
    return isinstance(state.result(raise_on_failure=False), LaunchError)


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


@task(
    name="execute",
    cache_policy=NO_CACHE,
    retries=LAUNCH_RETRIES,
    retry_delay_seconds=LAUNCH_RETRY_S,
    retry_condition_fn=nothing_ran,
)
def execute_step(config: WorkflowParams, plan: str, repeats: int) -> dict[str, Any]:
    """Execute a plan of the store under MPI; return the run's name and makespans (seconds).

    Every attempt has a record of its own in the store.
    """
    workflow, store = config.workflow(), config.open_store()
    planned = load_plan(store.folder("plans", plan), workflow)
    logger = get_run_logger()
    with rank_lines_to(logger), ProgressFeed(artifact_key(config.app, "progress"), "ops") as feed:
        run = execute_stage(workflow, planned, store, repeats=repeats, progress=feed.update)
    logger.info("run %s: makespans %s s", run.folder.name, run.result.makespan_s)
    return {"run": run.folder.name, "makespan_s": list(run.result.makespan_s)}


@task(name="report", cache_policy=NO_CACHE)
def report_step(config: WorkflowParams, run: str) -> None:
    """Publish what a run of the store says about itself as artifacts."""
    store = config.open_store()
    folder = store.folder("runs", run)
    facts = json.loads((folder / "summary.json").read_text())
    trace = read_table(folder / "trace.parquet", TRACE, remedy="run again")
    publish_run(config.app, store, run, facts, trace)


@task(name="check", cache_policy=NO_CACHE)
def check_step(config: WorkflowParams, run: str) -> None:
    """Compare the results of a run with the application's reference.

    Raises :class:`~heterotask_core.errors.ExecutionError` when they differ.
    """
    workflow = config.workflow()
    outcome = workflow.app.check(workflow.params, config.open_store().folder("runs", run))
    if not outcome.passed:
        raise ExecutionError(f"run {run}: the results differ from the reference: {outcome.summary}")
    get_run_logger().info("check passed: %s", outcome.summary)


@task(name="calibrate", cache_policy=NO_CACHE)
def calibrate_step(config: CalibrateParams) -> dict[str, Any]:
    """Calibrate the workflow, publish the outcome, and return it with the overheads to plan with.

    At night only if the plan in use is no longer as fast as it was accepted.
    """
    # Imported here: scikit-optimize takes seconds, and the other flows do without it.
    from calibration.application import calibrate_workflow
    from calibration.nightly import nightly

    workflow, store, logger = config.workflow(), config.open_store(), get_run_logger()
    result = (nightly if isinstance(config, NightlyParams) else calibrate_workflow)(
        workflow,
        store,
        evaluations=config.evaluations,
        seed=config.seed,
        resume=config.resume,
        progress=logger.info,
    )
    logger.info("calibration: %s: %s", result.status, result.text)
    facts = {
        "status": result.status,
        "text": result.text,
        "distinct_programs": result.distinct_programs,
        "evaluations": result.evaluations,
        "predicted_s": result.predicted_s,
        "measured_s": result.measured_s,
    }
    if isinstance(config, NightlyParams):
        publish_drift(config.app, result.text)
    publish_calibration(config.app, store.folder("calibrations", workflow.key), facts)
    return facts | {"overheads": overheads_to_json(result.overheads)}
