"""The options of the commands: each one written once, in groups that commands take whole; what does not go together.

A command declares a group by a parameter of its class, and :func:`grouped` replaces that by the group's options. What
a way of using a command has no use for is refused by :func:`only`, which names what it does take: an option that is
added later is refused until somebody says that it has a meaning there.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from heterotask_core.errors import UsageError
from heterotask_core.files import obstacle

if TYPE_CHECKING:
    from heterotask_core.planning.base import Budget

DEFAULT_STORE = Path(".heterotask")
PLATFORM_FILES = (".yaml", ".yml")
OF_A_FILE = "the file holds tasks, devices and times"
"""Why an instance file leaves no use for what says which application runs where."""


def only(context: typer.Context, what: str, *taken: str, groups: tuple[type, ...] = (), why: str = "") -> None:
    """Raise :class:`UsageError` naming the options on the command line that are not among ``taken`` and ``groups``.

    ``taken`` are names of the command's parameters, ``what`` and ``why`` words for the message. A flag that is given
    as ``--no-…`` asks for nothing, and what an environment variable says holds for other commands too: neither counts.
    """
    known = {*taken, *(field.name for group in groups for field in fields(group))}
    refused = [shown(context, name) for name in given(context) if name not in known]
    if refused:
        verb, pronoun = ("means", "it") if len(refused) == 1 else ("mean", "them")
        reason = f" ({why})" if why else ""
        raise UsageError(f"{', '.join(refused)} {verb} nothing with {what}{reason}; leave {pronoun} out")


def refuse(context: typer.Context, what: str, *names: str, why: str = "") -> None:
    """Raise :class:`UsageError` for those of ``names`` that stand on the command line; the reverse of :func:`only`."""
    only(context, what, *(p.name or "" for p in context.command.params if p.name not in names), why=why)


def to_write(path: Path | None) -> Path | None:
    """Return what ``--out`` names, an option's callback: what cannot be written is refused before any work is done."""
    reason = "" if path is None else obstacle(path)
    if reason:
        raise UsageError(f"--out {path}: {reason}")
    return path


def given(context: typer.Context) -> list[str]:
    """Return the names of the parameters that stand on the command line, switched off flags apart."""
    return [name for name, value in context.params.items() if value is not False and _stands(context, name)]


def _stands(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def shown(context: typer.Context, name: str) -> str:
    """Return a parameter as it is written: ``--nodes``, or what was given for an argument."""
    parameter = next(p for p in context.command.params if p.name == name)
    return parameter.opts[0] if parameter.param_type_name == "option" else repr(str(context.params[name]))


def _export(variable: str) -> Callable[[str], str]:
    """Return an option's callback that hands its value to everything that starts ranks."""

    def callback(value: str) -> str:
        if value:
            os.environ[variable] = value
        return value

    return callback


def _hosts(context: typer.Context, value: str) -> str:
    _hosts_of_a_file(context, value, str(context.params.get("devices") or ""))
    return _export("HETEROTASK_HOSTS")(value)


def _devices(context: typer.Context, value: str) -> str:
    _hosts_of_a_file(context, str(context.params.get("hosts") or ""), value)
    return value


def _hosts_of_a_file(context: typer.Context, hosts: str, devices: str) -> None:
    """Refuse hosts beside a platform file; called for both options, as either may be read first."""
    if hosts and devices.endswith(PLATFORM_FILES) and _stands(context, "hosts"):
        raise UsageError(
            f"--hosts means nothing with {devices}, which says which hosts there are; leave one of them out"
        )


AppArgument = Annotated[
    str, typer.Argument(help="Application: a name from `heterotask apps`, or package.module:attribute.")
]
AppOrInstanceArgument = Annotated[str | None, typer.Argument(help="Application; or give --instance.")]
InstanceOption = Annotated[Path | None, typer.Option("--instance", help="Plan a heterotask-instance/1 file instead.")]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", "-p", help="Application parameter as name=value; repeat for several.")
]
DevicesOption = Annotated[
    str,
    typer.Option(
        "--devices",
        "--platform",
        callback=_devices,
        help="Devices of each node, e.g. cpu:2, cpu:1,opencl:1, cpu:2x4 (2 groups of 4 cores), or a platform file.",
    ),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="Virtual nodes on each host.")]
HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts",
        envvar="HETEROTASK_HOSTS",
        callback=_hosts,
        help="Hosts, separated by commas; default: the Slurm allocation's, else this one.",
    ),
]
LauncherOption = Annotated[
    str,
    typer.Option(
        "--launcher",
        envvar="HETEROTASK_LAUNCHER",
        callback=_export("HETEROTASK_LAUNCHER"),
        help="What starts ranks: local, slurm, mpiexec, or a template with {command}; default: what fits the hosts.",
    ),
]
StoreOption = Annotated[
    Path, typer.Option("--store", envvar="HETEROTASK_STORE", help="Folder for profiles, plans and runs.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
PlannerOption = Annotated[str, typer.Option("--planner", help="Planner: portfolio, peft, heft, cpop, …")]
EvaluationsOption = Annotated[
    int | None,
    typer.Option("--evaluations", min=0, help="At most so many evaluations of the search (reproducible)."),
]
TimeBudgetOption = Annotated[
    float | None,
    typer.Option("--time-budget", min=0, help="At most so many seconds of search (valid, not reproducible)."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")]
RepeatsOption = Annotated[int, typer.Option("--repeats", min=1, help="How often to run the program in one job.")]
PaceOption = Annotated[
    bool, typer.Option("--pace", help="Let emulated devices wait for the clock, for a demonstration.")
]
DilateOption = Annotated[
    float | None, typer.Option("--dilate", min=1e-9, help="Seconds a logical second with --pace; default: what fits.")
]
ProfileBudgetOption = Annotated[float, typer.Option("--profile-budget", min=0.1, help="Seconds to spend on timing.")]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Which devices of which hosts, and what starts ranks there."""

    devices: DevicesOption = ""
    hosts: HostsOption = ""
    launcher: LauncherOption = ""


@dataclass(frozen=True, kw_only=True)
class Setting(Devices):
    """What of an application is planned, and where its records are kept; the nodes are those that there are."""

    param: ParamOption = None
    store: StoreOption = DEFAULT_STORE


@dataclass(frozen=True, kw_only=True)
class Target(Setting):
    """A setting on so many virtual nodes of each host: what most commands take beside the application."""

    nodes: NodesOption = 1


@dataclass(frozen=True, kw_only=True)
class Search:
    """Who plans, and how long it may search."""

    planner: PlannerOption = "portfolio"
    evaluations: EvaluationsOption = None
    time_budget: TimeBudgetOption = None
    seed: SeedOption = 0

    def budget(self) -> Budget:
        """Return the budget; where none is given, that of all commands."""
        from heterotask_core.planning.base import Budget
        from heterotask_core.stages import DEFAULT_EVALUATIONS

        evaluations = self.evaluations
        if evaluations is None and self.time_budget is None:
            evaluations = DEFAULT_EVALUATIONS
        return Budget(evaluations=evaluations, time_s=self.time_budget, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Whether emulated devices keep to the clock."""

    pace: PaceOption = False
    dilate: DilateOption = None

    def __post_init__(self) -> None:
        if self.dilate is not None and not self.pace:
            raise UsageError("--dilate says how fast --pace goes; give --pace too, or leave --dilate out")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups of options (parameters of a dataclass) are options of its own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not is_dataclass(hint):
            parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = hint
        options = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            assert field.default is not MISSING
            parameters.append(
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=options[field.name]
                )
            )

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
