"""``heterotask whatif``: predicts scaling, and says what limits a plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heterotask_core.cli import _print_json
from heterotask_core.commands.options import (
    OF_A_FILE,
    AppOrInstanceArgument,
    InstanceOption,
    JsonOption,
    ProfileBudgetOption,
    Search,
    Setting,
    grouped,
    only,
)


@grouped
def whatif_command(
    context: typer.Context,
    setting: Setting,
    search: Search,
    application: AppOrInstanceArgument = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Predict for these numbers of nodes like this one, e.g. 1..6.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=0, help="Accelerators a node, copies of the first in --devices.")
    ] = None,
    instance: InstanceOption = None,
    profile_budget: ProfileBudgetOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Predict the makespan on other platforms, and what limits the plan on this one."""
    from heterotask_core.commands.problem import about, profiled
    from heterotask_core.planning.instance import read_instance
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.planning.whatif import gains, no_latency, parse_counts, scaled_platform
    from heterotask_core.profiling.costs import Overheads

    budget, chosen = search.budget(), find_planner(search.planner)
    if instance is not None:
        only(context, "--instance", "instance", "as_json", groups=(Search,), why=OF_A_FILE)
        problem, replaced = read_instance(instance), {}
    counts = [] if nodes is None else parse_counts(nodes)
    scaling: list[dict[str, Any]] = []
    if instance is None:
        known = profiled(application, setting, 1, profile_budget, quiet=as_json)
        platform = known.workflow.platform
        if gpus is not None:
            platform = scaled_platform(platform, nodes=1, gpus=gpus)
        problem = known.problem(platform)
        replaced = {"zero overhead": no_latency(known.problem(platform, Overheads()))}
        for n in counts:
            scaled = known.problem(scaled_platform(known.workflow.platform, nodes=n, gpus=gpus))
            plan = chosen.plan(scaled, budget=budget)
            scaling.append(
                {
                    "nodes": n,
                    "devices": scaled.n_devices,
                    "makespan_s": plan.makespan_s,
                    "speedup": scaling[0]["makespan_s"] / plan.makespan_s if scaling else 1.0,
                    "lower_bound_s": plan.lower_bound_s,
                    "moved_bytes": plan.moved_bytes(scaled),
                }
            )
    with about(instance):
        schedule = chosen.plan(problem, budget=budget)
        found = gains(problem, schedule, chosen, budget, replaced=replaced)
    if as_json:
        rows = [{"what": g.what, "makespan_s": g.makespan_s, "gain": g.gain} for g in found]
        _print_json({"makespan_s": schedule.makespan_s, "gains": rows, "scaling": scaling})
        return
    if scaling:
        print(f"{'nodes':>5} {'devices':>7} {'makespan_s':>12} {'speedup':>8} {'bound_s':>12} {'moved_MB':>10}")
        for r in scaling:
            print(
                f"{r['nodes']:5} {r['devices']:7} {r['makespan_s']:12.6g} {r['speedup']:8.2f} "
                f"{r['lower_bound_s']:12.6g} {r['moved_bytes'] / 1e6:10.4g}"
            )
    print(f"{problem.name}: {schedule.planner} makespan {schedule.makespan_s:.6g} s; it would be shorter by")
    for g in found:
        print(f"  {100 * g.gain:6.1f} % with {g.what} ({g.makespan_s:.6g} s)")
    print(f"what limits it: {_verdict(found[0].what, found[0].gain) if found else 'nothing that can be changed'}")


def _verdict(what: str, gain: float) -> str:
    if gain < 0.02:
        return "the tasks themselves (no change gains 2 %): faster variants or a wider graph"
    return {
        "free transfers": "data movement",
        "infinite memory": "memory capacity",
        "twice the devices": "compute",
        "zero overhead": "overheads of dispatch and links",
    }.get(what, what)
