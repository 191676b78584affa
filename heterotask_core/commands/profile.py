"""``heterotask profile``: measure what is missing, show what is known, predict, import, compare."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from heterotask_core.cli import _print_json, _progress, open_workflow
from heterotask_core.commands.options import JsonOption, ProfileBudgetOption, Target, given, grouped, only
from heterotask_core.errors import UsageError

ShowOption = Annotated[
    bool, typer.Option("--show", help="Show what the store knows (of APP, or all of it); measure nothing.")
]
PredictOption = Annotated[
    list[str] | None,
    typer.Option("--predict", help="Estimate the times for a parameter never measured, e.g. size=16384; repeat."),
]
ImportOption = Annotated[
    Path | None,
    typer.Option("--import", help="Take known times from a CSV or Parquet file instead of measuring them."),
]
DiffOption = Annotated[
    tuple[Path, Path] | None, typer.Option("--diff", metavar="OLD NEW", help="Compare two stores, or profile folders.")
]
AgainOption = Annotated[bool, typer.Option("--again", help="Measure all of APP's, what the store has too.")]
LimitOption = Annotated[
    float, typer.Option("--kernel-limit", min=0.1, help="Seconds after which a kernel without an answer is ended.")
]


@grouped
def profile_command(
    context: typer.Context,
    target: Target,
    application: Annotated[
        str | None, typer.Argument(metavar="APP", help="Application: a name, or package.module:attribute.")
    ] = None,
    show: ShowOption = False,
    predict: PredictOption = None,
    import_file: ImportOption = None,
    diff: DiffOption = None,
    again: AgainOption = False,
    profile_budget: ProfileBudgetOption = 20.0,
    kernel_limit: LimitOption = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Time every variant on every kind of device, and every link; measure only what is missing or stale."""
    from heterotask_core.stages import profile_stage

    if diff is not None:
        only(context, "--diff", "diff", "as_json", why="it compares two stores")
        _diff(*diff, as_json=as_json)
        return
    if application is None:
        if not show:
            raise UsageError("there is nothing to profile; name an application, or use --show or --diff OLD NEW")
        only(context, "--show of the whole store", "show", "store", "as_json")
        _show_store(target.store, as_json=as_json)
        return
    for name, option in {"predict": "--predict", "show": "--show", "import_file": "--import"}.items():
        if name in given(context):
            only(context, option, "application", name, "as_json", groups=(Target,), why="it measures nothing")
    workflow, opened = open_workflow(
        application, replace(target, param=[*(target.param or []), *(predict or [])]), target.nodes
    )
    if predict:
        from heterotask_core.profiling.predict import predict as estimate
        from heterotask_core.report.profile_text import estimates_text

        estimates = estimate(workflow.graph, workflow.platform, opened)
        _print_json([asdict(e) for e in estimates]) if as_json else print(estimates_text(estimates))
        return
    if show:
        _show(workflow, opened, as_json=as_json)
        return
    if import_file is not None:
        from heterotask_core.profiling.given import import_timings

        count = import_timings(import_file, workflow.graph, workflow.platform, opened)
        _print_json({"imported": count}) if as_json else print(f"{count} timings taken from {import_file}")
        return
    with _progress("profiling", quiet=as_json) as advance:
        profiled = profile_stage(
            workflow, opened, budget_s=profile_budget, kernel_limit_s=kernel_limit, again=again, progress=advance
        )
    _print_profile(profiled, as_json=as_json)


def _print_profile(profiled: object, *, as_json: bool) -> None:
    from heterotask_core.profiling.measure import Profile
    from heterotask_core.report.profile_text import profile_text

    assert isinstance(profiled, Profile)
    if not as_json:
        print(profile_text(profiled))
        return
    tables = ("timings", "links", "busy", "pairs")
    _print_json(
        {"measured": profiled.measured, "reused": profiled.reused, "notes": profiled.notes}
        | {name: getattr(profiled, name).to_dicts() for name in tables}
    )


def _show(workflow: object, opened: object, *, as_json: bool) -> None:
    from heterotask_core.profiling.measure import stored_profile
    from heterotask_core.stages import Workflow
    from heterotask_core.store import Store

    assert isinstance(workflow, Workflow)
    assert isinstance(opened, Store)
    profiled, missing = stored_profile(workflow.graph, workflow.platform, opened)
    _print_profile(profiled, as_json=as_json)
    if missing and not as_json:
        print(f"not measured yet ({len(missing)}): {', '.join(missing[:8])}{', …' if len(missing) > 8 else ''}")


def _show_store(folder: Path, *, as_json: bool) -> None:
    from heterotask_core.profiling.compare import load_profile
    from heterotask_core.report.profile_text import timings_text

    timings = load_profile(folder)
    _print_json(timings.to_dicts()) if as_json else print("\n".join(timings_text(timings)))


def _diff(old: Path, new: Path, *, as_json: bool) -> None:
    from heterotask_core.profiling.compare import compare, load_profile
    from heterotask_core.report.profile_text import changes_text

    changes = compare(load_profile(old), load_profile(new))
    _print_json([asdict(c) for c in changes]) if as_json else print(changes_text(changes))
