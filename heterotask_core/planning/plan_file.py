"""The exchange format ``heterotask-plan/1``: what a schedule is as JSON, gzipped or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import InstanceError
from heterotask_core.planning.json_file import load_json, write_json
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Buffers, Schedule

PLAN_FORMAT = "heterotask-plan/1"


def plan_to_json(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as a ``heterotask-plan/1`` document (scratch buffers, version −1, are left out)."""

    def version(v: int) -> dict[str, Any]:
        return {"data": problem.data_names[problem.version_data[v]], "version": int(problem.version_number[v])}

    def variant(t: int) -> str | None:
        x = int(schedule.task_variant[t])
        return None if x < 0 else problem.class_variants[problem.task_class[t]][x]

    b = schedule.buffers
    return {
        "format": PLAN_FORMAT,
        "instance": problem.name,
        "planner": schedule.planner,
        "seed": schedule.seed,
        "evaluations": schedule.evaluations,
        "makespan_s": schedule.makespan_s,
        "lower_bound_s": schedule.lower_bound_s,
        "tasks": [
            {
                "task": problem.task_names[t],
                "device": problem.device_names[schedule.task_device[t]],
                "variant": variant(t),
                "start_s": float(schedule.task_start_s[t]),
                "finish_s": float(schedule.task_finish_s[t]),
            }
            for t in range(problem.n_tasks)
        ],
        "transfers": [
            version(int(v))
            | {
                "from": problem.memory_names[problem.link_source[link]],
                "to": problem.memory_names[problem.link_target[link]],
                "start_s": float(start),
                "finish_s": float(finish),
            }
            for v, link, start, finish in zip(
                schedule.transfer_version,
                schedule.transfer_link,
                schedule.transfer_start_s,
                schedule.transfer_finish_s,
                strict=True,
            )
        ],
        "buffers": [
            {"memory": problem.memory_names[b.memory[i]]}
            | version(int(b.version[i]))
            | {
                "offset_bytes": int(b.offset_bytes[i]),
                "size_bytes": int(b.size_bytes[i]),
                "alloc_s": float(b.alloc_s[i]),
                "free_s": float(b.free_s[i]),
            }
            for i in range(len(b.version))
            if b.version[i] >= 0
        ],
    }


def write_plan(path: Path, problem: Problem, schedule: Schedule) -> None:
    """Write a plan file (gzipped if it ends in ``.gz``): completely or not at all."""
    write_json(Path(path), plan_to_json(problem, schedule))


def read_plan(path: Path, problem: Problem) -> Schedule:
    """Read a plan of ``problem``; it is not verified. Raises :class:`InstanceError` naming what is unknown."""
    document = load_json(Path(path))
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        raise InstanceError(f"{path}: $.format: must be {PLAN_FORMAT!r}")
    tasks = {n: i for i, n in enumerate(problem.task_names)}
    devices = {n: i for i, n in enumerate(problem.device_names)}
    memories = {n: i for i, n in enumerate(problem.memory_names)}
    links = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(problem.link_source, problem.link_target, strict=True))}
    versions = {
        (problem.data_names[d], int(n)): i
        for i, (d, n) in enumerate(zip(problem.version_data, problem.version_number, strict=True))
    }
    try:
        placed: dict[int, dict[str, Any]] = {tasks[p["task"]]: p for p in document["tasks"]}
        rows = [placed[t] for t in range(problem.n_tasks)]
        moves, buffers = document.get("transfers") or [], document.get("buffers") or []
        variants = [
            -1
            if p.get("variant") is None or not problem.class_variants[problem.task_class[t]]
            else problem.class_variants[problem.task_class[t]].index(p["variant"])
            for t, p in enumerate(rows)
        ]
        return Schedule(
            planner=str(document["planner"]),
            seed=int(document.get("seed", 0)),
            evaluations=int(document.get("evaluations", 0)),
            task_device=np.array([devices[p["device"]] for p in rows], np.int32),
            task_variant=np.array(variants, np.int32),
            task_start_s=np.array([p["start_s"] for p in rows], np.float64),
            task_finish_s=np.array([p["finish_s"] for p in rows], np.float64),
            transfer_version=np.array([versions[x["data"], x["version"]] for x in moves], np.int32),
            transfer_link=np.array([links[memories[x["from"]], memories[x["to"]]] for x in moves], np.int32),
            transfer_start_s=np.array([x["start_s"] for x in moves], np.float64),
            transfer_finish_s=np.array([x["finish_s"] for x in moves], np.float64),
            makespan_s=float(document["makespan_s"]),
            lower_bound_s=float(document.get("lower_bound_s", 0.0)),
            buffers=Buffers(
                memory=np.array([memories[b["memory"]] for b in buffers], np.int32),
                version=np.array([versions[b["data"], b["version"]] for b in buffers], np.int32),
                offset_bytes=np.array([b["offset_bytes"] for b in buffers], np.int64),
                size_bytes=np.array([b["size_bytes"] for b in buffers], np.int64),
                alloc_s=np.array([b["alloc_s"] for b in buffers], np.float64),
                free_s=np.array([b["free_s"] for b in buffers], np.float64),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InstanceError(f"{path}: does not fit the instance {problem.name!r}: {error!r} is unknown") from error
