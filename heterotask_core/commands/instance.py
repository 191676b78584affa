"""``heterotask instance``: an application's scheduling problem as a file; files put in order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterotask_core.commands.options import AppArgument, ProfileBudgetOption, Target, grouped, to_write

instance_app = typer.Typer(help="Exchange scheduling problems as heterotask-instance/1 files.", no_args_is_help=True)
OutOption = Annotated[Path, typer.Option("--out", callback=to_write, help="File to write; gzipped if it ends in .gz.")]


@instance_app.command("export")
@grouped
def export_command(
    application: AppArgument, out: OutOption, target: Target, profile_budget: ProfileBudgetOption = 20.0
) -> None:
    """Write the scheduling problem of an application: graph, platform and profiled costs."""
    from heterotask_core.commands.problem import profiled
    from heterotask_core.planning.instance_export import problem_to_instance
    from heterotask_core.planning.json_file import write_json

    problem = profiled(application, target, target.nodes, profile_budget, quiet=False).problem()
    write_json(out, problem_to_instance(problem))
    print(f"{problem.name}: {problem.n_tasks} tasks, {problem.n_devices} devices in {out}")


@instance_app.command("sort")
def sort_command(
    file: Annotated[Path, typer.Argument(help="Instance whose tasks stand in no order.")], out: OutOption
) -> None:
    """Put the tasks of an instance into program order, where every item has one version."""
    from heterotask_core.commands.problem import about
    from heterotask_core.planning.instance import instance_to_problem
    from heterotask_core.planning.instance_export import sort_tasks
    from heterotask_core.planning.json_file import load_json, write_json

    with about(file):
        document = sort_tasks(load_json(file))
        problem = instance_to_problem(document)
    write_json(out, document)
    print(f"{problem.name}: {problem.n_tasks} tasks in program order in {out}")
