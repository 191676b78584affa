"""Read a WfFormat instance (WfCommons, schema 1.5 and 1.6): tasks with runtimes, files with sizes, parents.

Source of the format: Coleman et al., WfCommons, FGCS 2022, and its published JSON schema. Only what a replay needs is
read; everything else is ignored.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterotask_core.errors import ApplicationError

MAX_BYTES = 256 << 20
"""Largest JSON file that is read."""

VERSIONS = ("1.5", "1.6")


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _File(_Model):
    id: str = Field(min_length=1)
    sizeInBytes: int = Field(ge=0)  # noqa: N815 (the format's name)


class _Task(_Model):
    id: str = Field(min_length=1)
    name: str
    parents: list[str]
    inputFiles: list[str] = []  # noqa: N815
    outputFiles: list[str] = []  # noqa: N815


class _Specification(_Model):
    tasks: list[_Task] = Field(min_length=1)
    files: list[_File] = []


class _Run(_Model):
    id: str
    runtimeInSeconds: float = Field(ge=0, allow_inf_nan=False, strict=False)  # noqa: N815


class _Execution(_Model):
    tasks: list[_Run]
    makespanInSeconds: float | None = Field(None, strict=False)  # noqa: N815


class _Workflow(_Model):
    specification: _Specification
    execution: _Execution


class _Instance(_Model):
    name: str
    schemaVersion: str  # noqa: N815
    workflow: _Workflow


@dataclass(frozen=True, slots=True)
class WfTask:
    """A recorded task: runtime in seconds; files and parents by index."""

    name: str
    seconds: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A recorded workflow; tasks stand after their parents."""

    name: str
    tasks: tuple[WfTask, ...]
    file_names: tuple[str, ...]
    file_bytes: tuple[int, ...]
    makespan_s: float | None


@functools.lru_cache(maxsize=2)
def read_workflow(path: str) -> Workflow:
    """Return the workflow in ``path``.

    Raises:
        ApplicationError: a missing or too large file, no JSON, or a fault, with its JSON path.
    """
    file = Path(path)
    if not file.is_file():
        raise ApplicationError(f"workflow {path!r} is not a file; give a WfFormat JSON file with -p file=FILE")
    if file.stat().st_size > MAX_BYTES:
        raise ApplicationError(f"workflow {path!r} has {file.stat().st_size} bytes; at most {MAX_BYTES} are read")
    try:
        instance = _Instance.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ApplicationError(f"workflow {path!r}: {_json_path(first['loc'])}: {first['msg']}") from error
    if instance.schemaVersion not in VERSIONS:
        raise ApplicationError(
            f"workflow {path!r}: $.schemaVersion: {instance.schemaVersion!r} is none of {', '.join(VERSIONS)}"
        )
    try:
        return _resolve(instance)
    except ApplicationError as error:
        raise ApplicationError(f"workflow {path!r}: {error}") from error


def _json_path(location: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _index(names: list[str], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for k, name in enumerate(names):
        if name in found:
            raise ApplicationError(f"{where}[{k}].id: {name!r} stands twice")
        found[name] = k
    return found


def _resolve(instance: _Instance) -> Workflow:
    specification = instance.workflow.specification
    where = "$.workflow.specification.tasks"
    tasks = _index([t.id for t in specification.tasks], where)
    files = _index([f.id for f in specification.files], "$.workflow.specification.files")
    runs = _index([r.id for r in instance.workflow.execution.tasks], "$.workflow.execution.tasks")
    seconds = [r.runtimeInSeconds for r in instance.workflow.execution.tasks]

    def look_up(table: dict[str, int], name: str, place: str, what: str) -> int:
        if name not in table:
            raise ApplicationError(f"{place}: there is no {what} {name!r}")
        return table[name]

    writer: dict[int, int] = {}
    found: list[WfTask] = []
    for k, task in enumerate(specification.tasks):
        run = look_up(runs, task.id, f"{where}[{k}].id", "entry in $.workflow.execution.tasks for")
        inputs, outputs, parents = (
            tuple(dict.fromkeys(look_up(table, name, f"{where}[{k}].{key}[{m}]", what) for m, name in enumerate(names)))
            for names, table, key, what in (
                (task.inputFiles, files, "inputFiles", "file"),
                (task.outputFiles, files, "outputFiles", "file"),
                (task.parents, tasks, "parents", "task"),
            )
        )
        for m, file in enumerate(outputs):
            if file in inputs:
                raise ApplicationError(
                    f"{where}[{k}].outputFiles[{m}]: {specification.files[file].id!r} is an input too"
                )
            if file in writer:
                other = specification.tasks[writer[file]].id
                raise ApplicationError(
                    f"{where}[{k}].outputFiles[{m}]: {specification.files[file].id!r} is written by {other!r} too"
                )
            writer[file] = k
        found.append(WfTask(task.name, seconds[run], inputs, outputs, parents))
    order = _order(found, writer, [t.id for t in specification.tasks])
    place = {k: position for position, k in enumerate(order)}
    return Workflow(
        instance.name,
        tuple(
            WfTask(
                specification.tasks[k].id,
                found[k].seconds,
                found[k].inputs,
                found[k].outputs,
                tuple(sorted(place[p] for p in found[k].parents)),
            )
            for k in order
        ),
        tuple(f.id for f in specification.files),
        tuple(f.sizeInBytes for f in specification.files),
        instance.workflow.execution.makespanInSeconds,
    )


def _order(tasks: list[WfTask], writer: dict[int, int], names: list[str]) -> list[int]:
    """Return the tasks, each after its parents and the writers of its inputs (Kahn 1962), else in file order."""
    before = [set(t.parents) | {writer[f] for f in t.inputs if f in writer} for t in tasks]
    after: list[list[int]] = [[] for _ in tasks]
    for k, parents in enumerate(before):
        for parent in parents:
            after[parent].append(k)
    missing = [len(parents) for parents in before]
    ready = [k for k, count in enumerate(missing) if count == 0]
    order: list[int] = []
    for k in ready:
        order.append(k)
        for child in after[k]:
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    if len(order) < len(tasks):
        stuck = next(k for k, count in enumerate(missing) if count)
        raise ApplicationError(
            f"$.workflow.specification.tasks[{stuck}].parents: {names[stuck]!r} waits for itself (a cycle)"
        )
    return order


def describe(workflow: Workflow) -> dict[str, Any]:
    """Return what a workflow holds: counts, bytes, seconds, and its longest chain."""
    finish: list[float] = []
    level: list[int] = []
    writer = {file: k for k, task in enumerate(workflow.tasks) for file in task.outputs}
    for task in workflow.tasks:
        parents = [*task.parents, *(writer[f] for f in task.inputs if f in writer)]
        finish.append(max((finish[p] for p in parents), default=0.0) + task.seconds)
        level.append(max((level[p] + 1 for p in parents), default=0))
    return {
        "name": workflow.name,
        "tasks": len(workflow.tasks),
        "files": len(workflow.file_names),
        "bytes": sum(workflow.file_bytes),
        "work_s": sum(task.seconds for task in workflow.tasks),
        "longest_chain_s": max(finish),
        "levels": max(level) + 1,
        "recorded_makespan_s": workflow.makespan_s,
    }
