"""``heterotask plan``: the plan of an application or an instance, its summary and Gantt chart, planners compared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterotask_core.cli import (
    DEFAULT_STORE,
    DevicesOption,
    EvaluationsOption,
    HostsOption,
    JsonOption,
    LauncherOption,
    NodesOption,
    ParamOption,
    PlannerOption,
    ProfileBudgetOption,
    SeedOption,
    StoreOption,
    TimeBudgetOption,
    _budget,
    _plan_facts,
    _plan_line,
    _print_json,
)

if TYPE_CHECKING:
    from heterotask_core.planning.base import Budget, Progress
    from heterotask_core.planning.problem import Problem

InstanceOption = Annotated[Path | None, typer.Option("--instance", help="Plan a heterotask-instance/1 file instead.")]


def plan_command(
    application: Annotated[str | None, typer.Argument(help="Application; or give --instance.")] = None,
    param: ParamOption = None,
    devices: DevicesOption = "",
    nodes: NodesOption = 1,
    hosts: HostsOption = "",
    launcher: LauncherOption = "",
    store: StoreOption = DEFAULT_STORE,
    planner: PlannerOption = "portfolio",
    evaluations: EvaluationsOption = None,
    time_budget: TimeBudgetOption = None,
    seed: SeedOption = 0,
    instance: InstanceOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the heterotask-plan/1.")] = None,
    compare: Annotated[str, typer.Option("--compare", help="Planners to compare, e.g. peft,heft,portfolio.")] = "",
    limit_memory: Annotated[
        list[str] | None,
        typer.Option("--limit-memory", help="What if: a capacity, e.g. cuda=2GiB (device kind or memory); repeat."),
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt/--no-gantt", help="Print a Gantt chart.")] = True,
    profile_budget: ProfileBudgetOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Plan an application, or an instance file, and say how good the plan is."""
    from heterotask_core.commands.problem import profiled
    from heterotask_core.planning.instance import read_instance
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.planning.whatif import limit_memory as limited
    from heterotask_core.planning.whatif import parse_limits

    budget = _budget(evaluations, time_budget, seed)
    names = [n for n in compare.split(",") if n]
    for name in [planner, *names]:
        find_planner(name)
    limits = parse_limits(limit_memory or [])
    if instance is not None:
        _plan_problem(limited(read_instance(instance), limits), planner, names, budget, out, gantt, as_json)
        return
    known = profiled(application, param, devices, nodes, store, profile_budget, quiet=as_json)
    if names or limits or out is not None:
        _plan_problem(limited(known.problem(), limits), planner, names, budget, out, gantt, as_json)
        return
    from heterotask_core.report.plan_text import gantt_lines
    from heterotask_core.simulate import simulate
    from heterotask_core.stages import plan_stage
    from heterotask_core.trace import trace_table

    with _search_progress(quiet=as_json) as advance:
        plan = plan_stage(known.workflow, known.profile, known.store, planner=planner, budget=budget, progress=advance)
    facts = _plan_facts(plan)
    if as_json:
        _print_json(facts)
        return
    print(_plan_line(facts))
    if gantt:
        times = simulate(plan.program)
        trace = trace_table(plan.program, times.start_s, times.finish_s, origin="simulated")
        bars = [(lane, kernel or "copy", a, b) for lane, kernel, a, b in _bars(trace)]
        print("\n".join(gantt_lines(bars)))


def _bars(trace: Any) -> Iterator[tuple[str, str | None, float, float]]:
    yield from trace.sort("start_s").select("lane", "kernel", "start_s", "finish_s").iter_rows()


def _plan_problem(
    problem: Problem, planner: str, names: list[str], budget: Budget, out: Path | None, gantt: bool, as_json: bool
) -> None:
    """Plan a problem, write the plan, print what it is like; or the table of several planners."""
    from heterotask_core.planning.plan_file import write_plan
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.report.plan_text import gantt_lines, link_name, plan_lines, schedule_bars

    if names:
        _compare(problem, names, budget, as_json)
        return
    with _search_progress(quiet=as_json) as advance:
        schedule = find_planner(planner).plan(problem, budget=budget, progress=advance)
    if out is not None:
        write_plan(out, problem, schedule)
    if as_json:
        moved = schedule.link_bytes(problem)
        _print_json(
            {
                "instance": problem.name,
                "planner": schedule.planner,
                "makespan_s": schedule.makespan_s,
                "lower_bound_s": schedule.lower_bound_s,
                "above_optimal": schedule.above_optimal(),
                "evaluations": schedule.evaluations,
                "transfers": len(schedule.transfer_version),
                "moved_bytes": float(moved.sum()),
                "link_bytes": {link_name(problem, x): float(b) for x, b in enumerate(moved) if b > 0},
                "out": None if out is None else str(out),
            }
        )
        return
    print("\n".join(plan_lines(problem, schedule)))
    if gantt:
        print("\n".join(gantt_lines(schedule_bars(problem, schedule))))
    if out is not None:
        print(f"plan: {out}")


def _compare(problem: Problem, names: list[str], budget: Budget, as_json: bool) -> None:
    from heterotask_core.errors import InfeasiblePlanError
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.report.plan_text import above_text

    rows: list[dict[str, Any]] = []
    for name in names:
        began = time.perf_counter()
        try:
            schedule = find_planner(name).plan(problem, budget=budget)
        except InfeasiblePlanError as error:
            rows.append({"planner": name, "makespan_s": None, "refused": str(error)})
            continue
        rows.append(
            {
                "planner": name,
                "makespan_s": schedule.makespan_s,
                "above_optimal": schedule.above_optimal(),
                "evaluations": schedule.evaluations,
                "planning_s": time.perf_counter() - began,
                "moved_bytes": schedule.moved_bytes(problem),
            }
        )
    if as_json:
        _print_json(rows)
        return
    best = min((r["makespan_s"] for r in rows if r["makespan_s"] is not None), default=None)
    print(f"{problem.name}: {problem.n_tasks} tasks, {problem.n_devices} devices")
    print(f"{'planner':20} {'makespan_s':>12} {'/ best':>7} {'planning_s':>10} {'moved_MB':>10}  quality")
    for r in rows:
        if r["makespan_s"] is None:
            print(f"{r['planner']:20} {'-':>12}  {r['refused']}")
            continue
        ratio = r["makespan_s"] / best if best else 1.0
        print(
            f"{r['planner']:20} {r['makespan_s']:12.6g} {ratio:7.3f} {r['planning_s']:10.3f} "
            f"{r['moved_bytes'] / 1e6:10.4g}  {above_text(r['above_optimal'])}"
        )


@contextmanager
def _search_progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Show evaluations and the best makespan on stderr while a planner searches, if that is a terminal."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield None
        return
    shown = 0.0

    def advance(evaluations: int, makespan_s: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > 0.1:
            shown = time.monotonic()
            print(
                f"\rplanning: {evaluations} evaluations, best {makespan_s:.6g} s ", end="", file=sys.stderr, flush=True
            )

    try:
        yield advance
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
