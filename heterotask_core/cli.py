"""The command ``heterotask``: thin over :mod:`heterotask_core.stages`; the only part that prints.

Heavy imports happen inside the commands, so that ``--help`` answers at once. Other packages add commands by
entry points of the group ``heterotask.commands`` (the calibration does).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heterotask_core.commands.options import (
    DEFAULT_STORE,
    AppArgument,
    Devices,
    JsonOption,
    NodesOption,
    Pace,
    ProfileBudgetOption,
    RepeatsOption,
    Search,
    Setting,
    StoreOption,
    Target,
    grouped,
    refuse,
)
from heterotask_core.errors import HeteroTaskError, MissingExtraError, StoreError, UsageError
from heterotask_core.interrupts import leave, resend_lost

if TYPE_CHECKING:
    from heterotask_core.stages import Plan, Workflow
    from heterotask_core.store import Store

app = typer.Typer(
    name="heterotask",
    help="Plan task graphs offline for CPU+GPU nodes, execute them under MPI, calibrate the plan.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Hold options that stand before the command; :func:`main` reads ``--debug`` itself."""


@app.command("apps")
def apps_command(as_json: JsonOption = False) -> None:
    """List the applications that are installed, a line each."""
    from heterotask_core.apps import list_applications

    found = list_applications()
    if as_json:
        _print_json([{"name": a.name, "summary": a.summary, "params": a.Params.model_json_schema()} for a in found])
        return
    for application in found:
        print(f"{application.name:12} {application.summary}")
        for name, info in application.Params.model_fields.items():
            print(f"{'':12}   -p {name}={info.default!r}: {info.description or ''}")


@app.command("platform")
@grouped
def platform_command(devices: Devices, nodes: NodesOption = 1, as_json: JsonOption = False) -> None:
    """Show nodes, devices, memories and links as they are discovered here."""
    from heterotask_core.platform.cluster import find_platform
    from heterotask_core.report.text import platform_text

    platform = find_platform(devices.devices, nodes=nodes)
    if as_json:
        _print_json(asdict(platform) | {"fingerprint": platform.fingerprint()})
    else:
        print(platform_text(platform))


@app.command("execute")
@grouped
def execute_command(
    application: AppArgument,
    plan: Annotated[Path, typer.Option("--plan", help="Folder of a plan, as `heterotask plan` prints it.")],
    target: Target,
    pace: Pace,
    repeats: RepeatsOption = 1,
    verify: Annotated[
        float,
        typer.Option(
            "--verify", min=0, max=1, help="Share of the tasks to compute again with the reference variant and compare."
        ),
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Execute a plan unchanged under MPI."""
    from heterotask_core.stages import load_plan

    workflow, opened = open_workflow(application, target, target.nodes)
    options = {"verify": verify} | asdict(pace)
    _execute(workflow, load_plan(plan, workflow), opened, repeats, options, as_json=as_json, extra={})


@app.command("run")
@grouped
def run_command(
    context: typer.Context,
    application: AppArgument,
    target: Target,
    search: Search,
    pace: Pace,
    repeats: RepeatsOption = 1,
    profile_budget: ProfileBudgetOption = 20.0,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the results with the application's reference.")
    ] = False,
    via_prefect: Annotated[
        str | None,
        typer.Option(
            "--via-prefect", metavar="DEPLOYMENT", help="Let this Prefect deployment do it, e.g. pipeline/pipeline."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Profile what is missing, plan, execute, and say what happened."""
    if via_prefect is not None:
        if not via_prefect:
            raise UsageError("--via-prefect names no deployment; give one, e.g. pipeline/pipeline, or leave it out")
        refuse(context, "--via-prefect", "pace", "dilate", why="a deployed flow does not pace")
        refuse(context, "--via-prefect", "time_budget", why="it counts evaluations: give --evaluations")
        refuse(context, "--via-prefect", "hosts", "launcher", why="the worker's environment says where ranks start")
        options = {"devices": target.devices, "nodes": target.nodes, "planner": search.planner}
        options |= {"evaluations": search.evaluations, "seed": search.seed}
        options |= {"repeats": repeats, "profile_budget_s": profile_budget, "check": check}
        options |= {"store": "" if target.store == DEFAULT_STORE else str(target.store.resolve())}
        raise typer.Exit(_trigger(via_prefect, application, target.param or [], options, as_json=as_json))
    from heterotask_core.planning.registry import planner as find_planner
    from heterotask_core.report.text import platform_text
    from heterotask_core.stages import plan_stage, profile_stage

    workflow, opened = open_workflow(application, target, target.nodes)
    # What is wrong with the last steps is said before the first one.
    find_planner(search.planner)
    _require_launcher([node.host for node in workflow.platform.nodes])
    if not as_json:
        print(platform_text(workflow.platform))
    with _progress("profiling", quiet=as_json) as advance:
        profiled = profile_stage(workflow, opened, budget_s=profile_budget, progress=advance)
    plan = plan_stage(workflow, profiled, opened, planner=search.planner, budget=search.budget())
    if not as_json:
        print(f"profile: {profiled.measured} timings measured, {profiled.reused} from the store")
        print(_plan_line(_plan_facts(plan)))
    extra = {"profile": {"measured": profiled.measured, "reused": profiled.reused}, "plan": _plan_facts(plan)}
    _execute(workflow, plan, opened, repeats, asdict(pace), as_json=as_json, extra=extra, check=check)


@app.command("report")
def report_command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run folder or its name in the store; the latest by default.")] = "",
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show the summary of a run."""
    from heterotask_core.report.text import facts_text
    from heterotask_core.store import Store

    if run and Path(run).is_dir():
        refuse(context, f"the folder {run}", "store")
    opened = Store(store)
    finished = [key for key in opened.list("runs") if opened.find("runs", key) is not None]
    name = run or (finished[-1] if finished else "")
    folder = Path(run) if run and Path(run).is_dir() else opened.find("runs", name) if name else None
    if folder is None or not (folder / "summary.json").exists():
        raise StoreError(f"no finished run {run or 'in ' + str(store)}; start one with `heterotask run APP`")
    try:
        facts = json.loads((folder / "summary.json").read_text())
        text = facts_text(facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise StoreError(
            f"{folder / 'summary.json'} is damaged or of another version ({reason}); run the application again"
        ) from error
    _print_json(facts | {"folder": str(folder)}) if as_json else print(text)


@app.command("doctor")
def doctor_command(as_json: JsonOption = False) -> None:
    """Check what goes wrong on day one: MPI, shared memory, devices; each finding with the fix."""
    from heterotask_core.doctor import diagnose

    findings = diagnose()
    if as_json:
        _print_json([asdict(f) for f in findings])
    else:
        for finding in findings:
            print(
                f"{'ok  ' if finding.ok else 'FAIL' if finding.required else 'note'} {finding.what}: {finding.detail}"
            )
            if not finding.ok:
                print(f"     {finding.fix}")
    if any(f.required and not f.ok for f in findings):
        raise typer.Exit(1)


def open_workflow(application: str, setting: Setting, nodes: int = 1) -> tuple[Workflow, Store]:
    """Find application and platform, build the graph and open the store; what every command starts with."""
    from heterotask_core.apps import find_application, parse_params
    from heterotask_core.platform.cluster import find_platform
    from heterotask_core.stages import Workflow
    from heterotask_core.store import Store

    found = find_application(application)
    params = parse_params(found, setting.param or [])
    return Workflow.of(found, params, find_platform(setting.devices, nodes=nodes)), Store(setting.store)


def _require_launcher(hosts: list[str]) -> None:
    """Raise :class:`~heterotask_core.errors.LaunchError` if ranks cannot be started on ``hosts``."""
    from heterotask_core.runtime.launch.base import is_here
    from heterotask_core.runtime.launch.choose import choose_launcher

    elsewhere = () if all(is_here(host) for host in hosts) else hosts
    choose_launcher(hosts=hosts).command(n_ranks=len(hosts), argv=["true"], hosts=elsewhere)


def _trigger(deployment: str, application: str, param: list[str], options: dict[str, Any], *, as_json: bool) -> int:
    """Hand a run over to the package that knows Prefect, found by entry point; return the exit code."""
    (entry,) = entry_points(group="heterotask.triggers", name="prefect") or (None,)
    if entry is None:
        raise MissingExtraError("--via-prefect needs the package flows, which comes with heterotask; install it again")
    code: int = entry.load()(deployment, application, param, options, as_json=as_json)
    return code


def _plan_facts(plan: Plan) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "reused": plan.reused,
        "planner": plan.program.meta["planner"],
        "predicted_makespan_s": plan.predicted_s,
        "lower_bound_s": plan.lower_bound_s,
        "ops": plan.program.n_ops,
    }


def _plan_line(facts: dict[str, Any]) -> str:
    from heterotask_core.report.plan_text import above_text

    origin = "from the store" if facts["reused"] else "new"
    span, bound = facts["predicted_makespan_s"], facts["lower_bound_s"]
    above = above_text(span / bound - 1.0 if bound > 0 else None)
    return (
        f"plan ({origin}, {facts['planner']}): {facts['ops']} ops, "
        f"predicted makespan {span * 1e3:.1f} ms, {above}\n"
        f"  {facts['folder']}"
    )


def _execute(
    workflow: Workflow,
    plan: Plan,
    store: Store,
    repeats: int,
    options: dict[str, Any],
    *,
    as_json: bool,
    extra: dict[str, Any],
    check: bool = False,
) -> None:
    from heterotask_core.report.text import facts_text
    from heterotask_core.stages import check_stage, execute_stage

    with _progress("executing", quiet=as_json) as advance:
        run = execute_stage(workflow, plan, store, repeats=repeats, progress=advance, **options)
    facts = json.loads((run.folder / "summary.json").read_text())
    outcome = check_stage(workflow, run) if check else None
    if as_json:
        checked = None if outcome is None else {"passed": outcome.passed, "summary": outcome.summary}
        _print_json(extra | facts | {"folder": str(run.folder), "check": checked})
    else:
        print(facts_text(facts))
        print("files:")
        for path in sorted(p for p in run.folder.iterdir() if p.suffix in {".png", ".svg", ".json", ".parquet"}):
            print(f"  {path}")
        if outcome is not None:
            print(f"check: {'passed' if outcome.passed else 'FAILED'}: {outcome.summary}")
    if outcome is not None and not outcome.passed:
        raise typer.Exit(1)


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr, where people look and pipes do not; nothing when ``quiet``."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))


def _load_command(entry: EntryPoint) -> Callable[..., None]:
    """Return a command of another package; one that cannot be loaded says so when it is used, and harms no other."""
    try:
        found: Callable[..., None] = entry.load()
    except Exception as error:
        reason = f"the command {entry.name!r} cannot be loaded ({type(error).__name__}: {error})"

        def found() -> None:
            raise MissingExtraError(f"{reason}; install the package that brings it again")

        found.__doc__ = f"Not usable here: {reason}."
    return found


INTERRUPTED = "interrupted: everything that was started is ended, complete records are kept"


class Terminated(SystemExit):
    """SIGTERM arrived."""


class HungUp(Terminated):
    """SIGHUP arrived: the terminal is gone."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise (HungUp if number == signal.SIGHUP else Terminated)(128 + number)


def _is_interrupted(end: BaseException | None) -> bool:
    """Whether a signal ends the command; one that follows a run elsewhere handles it itself."""
    while end is not None and not isinstance(end, (KeyboardInterrupt, Terminated)):
        end = end.__context__
    return end is not None


def _end_now(code: str | int | None) -> NoReturn:
    """Say that the command is interrupted, and end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A terminal that is gone takes nothing.
    with suppress(OSError):
        print(INTERRUPTED, file=sys.stderr, flush=True)
    leave(code if isinstance(code, int) else 1)


def main() -> None:
    """Run the command line; an error of ours, or of the file system, is one line on stderr and exit code 1.

    Options that mean nothing together are exit code 2, as all wrong use of the command line is.
    """
    from heterotask_core.commands.register import register

    register(app)
    for entry in entry_points(group="heterotask.commands"):
        app.command(entry.name)(_load_command(entry))
    # Like Ctrl-C: what was started is ended and temporary files go, which the default would leave.
    signal.signal(signal.SIGTERM, _terminate)
    # Unless nohup has it ignored.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    lost = resend_lost({KeyboardInterrupt: signal.SIGINT, HungUp: signal.SIGHUP, Terminated: signal.SIGTERM})
    try:
        app()
    except SystemExit as end:
        if _is_interrupted(end):
            _end_now(end.code)
        raise
    except Exception as error:
        if lost():
            _end_now(128 + lost())
        if "--debug" in sys.argv or not isinstance(error, (HeteroTaskError, OSError)):
            raise
        lines = (line.strip() for line in str(error).splitlines())
        print(f"error: {'; '.join(line for line in lines if line)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
