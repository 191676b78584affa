"""``heterotask plan``: the plan of an application or an instance, its summary and Gantt chart, planners compared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterotask_core.cli import _plan_facts, _plan_line, _print_json
from heterotask_core.commands.options import (
    OF_A_FILE,
    AppOrInstanceArgument,
    InstanceOption,
    JsonOption,
    ProfileBudgetOption,
    Search,
    Target,
    grouped,
    only,
    refuse,
    to_write,
)
from heterotask_core.errors import InfeasiblePlanError, UsageError

if TYPE_CHECKING:
    from heterotask_core.planning.base import Progress
    from heterotask_core.planning.problem import Problem
    from heterotask_core.planning.schedule import Schedule


@grouped
def plan_command(
    context: typer.Context,
    target: Target,
    search: Search,
    application: AppOrInstanceArgument = None,
    instance: InstanceOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            callback=to_write,
            help="Where to write the heterotask-plan/1; with --compare the shortest of the plans.",
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", help="Planners to compare, e.g. peft,heft,portfolio.")
    ] = None,
    limit_memory: Annotated[
        list[str] | None,
        typer.Option("--limit-memory", help="What if: a capacity, e.g. cuda=2GiB (device kind or memory); repeat."),
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt/--no-gantt", help="Print a Gantt chart.")] = True,
    profile_budget: ProfileBudgetOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Plan an application, or an instance file, and say how good the plan is."""
    from heterotask_core.commands.problem import about, profiled
    from heterotask_core.planning.instance import read_instance
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.planning.whatif import limit_memory as limited
    from heterotask_core.planning.whatif import parse_limits

    if compare is not None:
        refuse(context, "--compare", "planner", why="it names the planners")
        refuse(context, "--compare", "gantt", why="it prints a table")
    if as_json:
        refuse(context, "--json", "gantt", why="the chart is text")
    if instance is not None:
        shared = ("instance", "out", "compare", "limit_memory", "gantt", "as_json")
        only(context, "--instance", *shared, groups=(Search,), why=OF_A_FILE)
        if out is not None and out.exists() and out.samefile(instance):
            raise UsageError(f"--out {out} would replace the instance; name another file")
    names = _names(compare)
    for name in names or [search.planner]:
        find_planner(name)
    limits = parse_limits(limit_memory or [])
    if instance is not None:
        with about(instance):
            problem = limited(read_instance(instance), limits)
        _plan_problem(problem, search, names, out, gantt, as_json, source=instance)
        return
    known = profiled(application, target, target.nodes, profile_budget, quiet=as_json)
    if names or limits or out is not None:
        _plan_problem(limited(known.problem(), limits), search, names, out, gantt, as_json)
        return
    from heterotask_core.report.plan_text import gantt_lines
    from heterotask_core.simulate import simulate
    from heterotask_core.stages import plan_stage
    from heterotask_core.trace import trace_table

    with _search_progress(quiet=as_json) as advance:
        plan = plan_stage(
            known.workflow,
            known.profile,
            known.store,
            planner=search.planner,
            budget=search.budget(),
            progress=advance,
        )
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


def _names(compare: str | None) -> list[str]:
    """Return the planners to compare; none without ``--compare``."""
    if compare is None:
        return []
    names = [name.strip() for name in compare.split(",")]
    twice = sorted({name for name in names if names.count(name) > 1})
    if "" in names or twice:
        what = f"names {', '.join(twice)} twice" if "" not in names else "leaves a name out"
        raise UsageError(f"--compare {compare!r} {what}; give names as in --compare peft,heft,portfolio")
    return names


def _bars(trace: Any) -> Iterator[tuple[str, str | None, float, float]]:
    yield from trace.sort("start_s").select("lane", "kernel", "start_s", "finish_s").iter_rows()


def _plan_problem(
    problem: Problem,
    search: Search,
    names: list[str],
    out: Path | None,
    gantt: bool,
    as_json: bool,
    source: Path | None = None,
) -> None:
    """Plan a problem (of the file ``source``), write the plan, print what it is like; or the table of several planners.

    Refusals of the problem name its file.
    """
    from heterotask_core.commands.problem import about
    from heterotask_core.planning.plan_file import write_plan
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.report.plan_text import gantt_lines, link_name, plan_lines, schedule_bars

    if names:
        best, refusal = _compare(problem, names, search, out, as_json)
        if best is None:
            with about(source):
                raise InfeasiblePlanError(f"no plan by {', '.join(names)}: {refusal}")
        return
    with about(source), _search_progress(quiet=as_json) as advance:
        schedule = find_planner(search.planner).plan(problem, budget=search.budget(), progress=advance)
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
    lines = [*plan_lines(problem, schedule)]
    if gantt:
        lines += gantt_lines(schedule_bars(problem, schedule))
    print("\n".join(lines))
    if out is not None:
        print(f"plan: {out}")


def _compare(
    problem: Problem, names: list[str], search: Search, out: Path | None, as_json: bool
) -> tuple[Schedule | None, str]:
    """Print a row a planner, write the shortest plan, of equal ones the first, and return it with the last refusal."""
    from heterotask_core.planning.plan_file import write_plan
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.report.plan_text import above_text

    rows: list[dict[str, Any]] = []
    best: Schedule | None = None
    refusal = ""
    for name in names:
        began = time.perf_counter()
        try:
            schedule = find_planner(name).plan(problem, budget=search.budget())
        except InfeasiblePlanError as error:
            refusal = str(error)
            rows.append({"planner": name, "makespan_s": None, "refused": refusal})
            continue
        if best is None or schedule.makespan_s < best.makespan_s:
            best = schedule
        rows.append(
            {
                "planner": name,
                "makespan_s": schedule.makespan_s,
                "above_optimal": schedule.above_optimal(),
                "evaluations": schedule.evaluations,
                "planning_s": time.perf_counter() - began,
                "moved_bytes": schedule.moved_bytes(problem),
                "out": None,
            }
        )
    if best is not None and out is not None:
        write_plan(out, problem, best)
        next(row for row in rows if row["makespan_s"] == best.makespan_s)["out"] = str(out)
    if as_json:
        _print_json(rows)
    else:
        print(f"{problem.name}: {problem.n_tasks} tasks, {problem.n_devices} devices")
        print(f"{'planner':20} {'makespan_s':>12} {'/ best':>7} {'planning_s':>10} {'moved_MB':>10}  quality")
        for r in rows:
            if r["makespan_s"] is None:
                print(f"{r['planner']:20} {'-':>12}  {r['refused']}")
                continue
            ratio = r["makespan_s"] / best.makespan_s if best and best.makespan_s > 0 else 1.0
            form = "3f" if ratio < 1000 else "3g"
            print(
                f"{r['planner']:20} {r['makespan_s']:12.6g} {ratio:7.{form}} {r['planning_s']:10.3f} "
                f"{r['moved_bytes'] / 1e6:10.4g}  {above_text(r['above_optimal'])}"
            )
        if best is not None and out is not None:
            print(f"plan of {best.planner}: {out}")
    return best, refusal


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
