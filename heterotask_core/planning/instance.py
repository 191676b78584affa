"""The exchange formats ``heterotask-instance/1`` and ``heterotask-plan/1``: JSON, gzipped or not."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from heterotask_core.errors import InstanceError
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.planning.schedule import Buffers, Schedule

INSTANCE_FORMAT = "heterotask-instance/1"
PLAN_FORMAT = "heterotask-plan/1"
MAX_BYTES = 1 << 30
"""Largest file, before and after decompression."""


def read_instance(path: Path) -> Problem:
    """Read an instance file. Raises :class:`InstanceError` that names the file and the JSON path."""
    document = _load(Path(path))
    try:
        return instance_to_problem(document)
    except InstanceError as error:
        raise InstanceError(f"{path}: {error}") from None


def _load(path: Path) -> Any:
    def constant(name: str) -> NoReturn:
        raise InstanceError(f"{path}: holds {name}; every number must be finite")

    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InstanceError(f"{path}: {size} bytes, more than the limit of {MAX_BYTES}; split the problem")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise InstanceError(f"{path}: more than {MAX_BYTES} bytes when decompressed; split the problem")
        return json.loads(raw, parse_constant=constant)
    except (OSError, EOFError, zlib.error) as error:
        raise InstanceError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InstanceError):
            raise
        raise InstanceError(f"{path}: not JSON ({error})") from error


def _number(value: Any, where: str, *, positive: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InstanceError(f"{where}: {value!r} is not a finite number")
    if value < 0 or (positive and value == 0):
        raise InstanceError(f"{where}: {value!r} must be {'above 0' if positive else '0 or more'}")
    return float(value)


def _bytes(value: Any, where: str) -> int:
    number = _number(value, where)
    if number != int(number) or number >= 2**62:
        raise InstanceError(f"{where}: {value!r} is not a whole number of bytes below 2^62")
    return int(value)


def _rows(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InstanceError(f"$.{key}: must be a list of objects")
    return rows


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise InstanceError(f"{where}.{key}: must be a string, is {value!r}")
    return value


def _names(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    index: dict[str, int] = {}
    for i, row in enumerate(rows):
        name = _text(row, "name", f"$.{key}[{i}]")
        if name in index:
            raise InstanceError(f"$.{key}[{i}].name: {name!r} is there already, at $.{key}[{index[name]}]")
        index[name] = i
    return index


def _find(index: dict[str, int], name: Any, where: str, what: str) -> int:
    if not isinstance(name, str) or name not in index:
        raise InstanceError(f"{where}: there is no {what} {name!r}")
    return index[name]


def _strings(row: dict[str, Any], key: str, where: str) -> list[str]:
    value = row.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise InstanceError(f"{where}.{key}: must be a list of strings")
    if len(set(value)) != len(value):
        raise InstanceError(f"{where}.{key}: names something twice: {value}")
    return value


def _csr(lists: Iterable[Sequence[int]]) -> tuple[I64, I32]:
    rows = list(lists)
    pointer = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointer[1:])
    return pointer, np.array([value for row in rows for value in row], np.int32)


def instance_to_problem(document: Any) -> Problem:
    """Return the problem in a parsed instance. Raises :class:`InstanceError` with the JSON path."""
    if not isinstance(document, dict) or document.get("format") != INSTANCE_FORMAT:
        raise InstanceError(f"$.format: must be {INSTANCE_FORMAT!r}")
    memories, devices = _rows(document, "memories"), _rows(document, "devices")
    links, data, tasks = _rows(document, "links"), _rows(document, "data"), _rows(document, "tasks")
    memory_index, device_index = _names(memories, "memories"), _names(devices, "devices")
    data_index, task_index = _names(data, "data"), _names(tasks, "tasks")
    if not devices:
        raise InstanceError("$.devices: there is no device")
    nodes = [_text(m, "node", f"$.memories[{i}]") for i, m in enumerate(memories)]
    kinds = [_text(d, "kind", f"$.devices[{i}]") for i, d in enumerate(devices)]
    device_memory = [
        _find(memory_index, d.get("memory"), f"$.devices[{i}].memory", "memory") for i, d in enumerate(devices)
    ]

    lanes: dict[str, int] = {}

    def lane_ids(row: dict[str, Any], where: str, own: str) -> list[int]:
        return [lanes.setdefault(name, len(lanes)) for name in _strings(row, "lanes", where) or [own]]

    device_lanes = [lane_ids(d, f"$.devices[{i}]", f"device {d['name']}") for i, d in enumerate(devices)]
    ends: dict[tuple[int, int], int] = {}
    link_lanes, latency, bandwidth = [], [], []
    for i, link in enumerate(links):
        where = f"$.links[{i}]"
        pair = tuple(_find(memory_index, link.get(k), f"{where}.{k}", "memory") for k in ("from", "to"))
        if pair in ends or pair[0] == pair[1]:
            raise InstanceError(f"{where}: {link['from']!r} to {link['to']!r} is there already or goes nowhere")
        ends[pair[0], pair[1]] = i
        latency.append(_number(link.get("latency_s", 0.0), f"{where}.latency_s"))
        bandwidth.append(_number(link.get("bandwidth_bytes_per_s"), f"{where}.bandwidth_bytes_per_s", positive=True))
        link_lanes.append(lane_ids(link, where, f"link {link['from']}>{link['to']}"))

    # Sizes of the literature's examples are seconds and may be fractions; planned buffers need whole bytes.
    whole = any(m.get("capacity_bytes") is not None for m in memories)
    read_size = _bytes if whole else _number
    size = [read_size(d.get("size_bytes"), f"$.data[{i}].size_bytes") for i, d in enumerate(data)]
    integral = all(x == int(x) and x < 2**62 for x in size)
    homes = [
        [_find(memory_index, h, f"$.data[{i}].home", "memory") for h in _strings(d, "home", f"$.data[{i}]")]
        for i, d in enumerate(data)
    ]
    version_data, version_number, producer = list(range(len(data))), [0] * len(data), [-1] * len(data)
    latest = list(range(len(data)))
    inputs, outputs, takes, afters = [], [], [], []
    classes: dict[str, int] = {}
    names_of_class: list[str] = []
    variants_of_class: list[tuple[str, ...]] = []
    tables: list[np.ndarray[Any, np.dtype[np.float64]]] = []
    task_class = []
    kernels = document.get("kernels", {})
    if not isinstance(kernels, dict):
        raise InstanceError("$.kernels: must be an object")
    named = set(device_index) | set(kinds)
    for t, task in enumerate(tasks):
        where = f"$.tasks[{t}]"
        seen: dict[int, str] = {}
        lists: dict[str, list[int]] = {}
        for key in ("reads", "updates", "writes"):
            lists[key] = [_find(data_index, n, f"{where}.{key}", "data item") for n in _strings(task, key, where)]
            for d in lists[key]:
                if d in seen:
                    raise InstanceError(f"{where}.{key}: {data[d]['name']!r} is also in {seen[d]}; one list only")
                seen[d] = key
        taken = [latest[d] for d in (*lists["reads"], *lists["updates"])]
        for v in taken:
            if producer[v] < 0 and not homes[version_data[v]]:
                item = data[version_data[v]]["name"]
                raise InstanceError(f"{where} ({task['name']}): reads {item!r} before it is written; give it a home")
        inputs.append(taken)
        made, replaced = [], []
        for key in ("writes", "updates"):
            for d in lists[key]:
                replaced.append(latest[d] if key == "updates" else -1)
                made.append(len(version_data))
                version_data.append(d)
                version_number.append(version_number[latest[d]] + 1)
                producer.append(t)
                latest[d] = made[-1]
        outputs.append(made)
        takes.append(replaced)
        before = [_find(task_index, n, f"{where}.after", "task") for n in _strings(task, "after", where)]
        if any(b >= t for b in before):
            raise InstanceError(f"{where}.after: {tasks[max(before)]['name']!r} stands later: a cycle or wrong order")
        afters.append(before)
        kernel = _text(task, "kernel", where) if "kernel" in task or not task.get("seconds") else ""
        pinned = _strings(task, "on", where)
        key_text = json.dumps([kernel, pinned, task.get("seconds")], sort_keys=True)
        if key_text not in classes:
            for name in pinned:
                if name not in device_index and name not in nodes:
                    raise InstanceError(f"{where}.on: there is no device or node {name!r}")
            place, entry = where, task
            if not task.get("seconds"):
                place, entry = f"$.kernels.{kernel}", kernels.get(kernel, {})
            if not isinstance(entry, dict):
                raise InstanceError(f"{place}: must be an object")
            variants = entry.get("variants") if entry is not task else None
            if variants is not None and not (
                isinstance(variants, dict) and all(isinstance(v, dict) for v in variants.values())
            ):
                raise InstanceError(f"{place}.variants: must be an object of objects")
            rows = (
                [(f"{place}.seconds", entry.get("seconds", {}))]
                if variants is None
                else [(f"{place}.variants.{n}.seconds", v.get("seconds", {})) for n, v in variants.items()]
            )
            table = np.full((max(1, len(rows)), len(devices)), np.inf)
            for x, (spot, seconds) in enumerate(rows):
                if not isinstance(seconds, dict):
                    raise InstanceError(f"{spot}: must be an object")
                for name, value in seconds.items():
                    if name not in named:
                        raise InstanceError(f"{spot}.{name}: there is no device or device kind {name!r}")
                    _number(value, f"{spot}.{name}")
                for d, device in enumerate(devices):
                    if pinned and device["name"] not in pinned and nodes[device_memory[d]] not in pinned:
                        continue
                    cost = seconds.get(device["name"], seconds.get(kinds[d]))
                    table[x, d] = np.inf if cost is None else cost
            classes[key_text] = len(names_of_class)
            names_of_class.append(kernel)
            variants_of_class.append(tuple(variants or ()))
            tables.append(table)
        task_class.append(classes[key_text])

    final = [-1] * len(version_data)
    for i, item in enumerate(data):
        if item.get("final"):
            final[latest[i]] = _find(memory_index, item["final"], f"$.data[{i}].final", "memory")
            if producer[latest[i]] < 0 and not homes[i]:
                raise InstanceError(f"$.data[{i}].final: {item['name']!r} is never written and has no home")
    sizes: F64 = np.array([size[d] for d in version_data], np.float64)
    n_classes = len(tables)
    best = np.array([t.argmin(axis=0) for t in tables], np.int32).reshape(n_classes, len(devices))
    cost = np.array([t.min(axis=0) for t in tables]).reshape(n_classes, len(devices))
    for c, variant_names in enumerate(variants_of_class):
        if not variant_names:
            best[c] = -1
    capacities = [
        -1 if m.get("capacity_bytes") is None else _bytes(m["capacity_bytes"], f"$.memories[{i}].capacity_bytes")
        for i, m in enumerate(memories)
    ]
    device_ptr, flat_device_lanes = _csr(device_lanes)
    link_ptr, flat_link_lanes = _csr(link_lanes)
    home_ptr, home_memories = _csr([homes[v] if v < len(data) else [] for v in range(len(version_data))])
    input_ptr, input_versions = _csr(inputs)
    output_ptr, output_versions = _csr(outputs)
    after_ptr, after_tasks = _csr(afters)
    return Problem(
        name=str(document.get("name", "")),
        contention=bool(document.get("contention", True)),
        memory_names=tuple(memory_index),
        memory_nodes=tuple(nodes),
        memory_capacity_bytes=np.array(capacities, np.int64),
        memory_alignment_bytes=np.ones(len(memories), np.int64),
        device_names=tuple(device_index),
        device_kinds=tuple(kinds),
        device_memory=np.array(device_memory, np.int32),
        device_lane_ptr=device_ptr,
        device_lanes=flat_device_lanes,
        link_source=np.array([a for a, _ in ends], np.int32),
        link_target=np.array([b for _, b in ends], np.int32),
        link_latency_s=np.array(latency, np.float64),
        link_bandwidth_bytes_per_s=np.array(bandwidth, np.float64),
        link_lane_ptr=link_ptr,
        link_lanes=flat_link_lanes,
        lane_names=tuple(lanes),
        data_names=tuple(data_index),
        version_data=np.array(version_data, np.int32),
        version_number=np.array(version_number, np.int32),
        version_size_bytes=sizes.astype(np.int64) if integral else sizes,
        version_producer=np.array(producer, np.int32),
        home_ptr=home_ptr,
        home_memories=home_memories,
        version_final_memory=np.array(final, np.int32),
        task_names=tuple(task_index),
        task_class=np.array(task_class, np.int32),
        input_ptr=input_ptr,
        input_versions=input_versions,
        output_ptr=output_ptr,
        output_versions=output_versions,
        output_takes_over=_csr(takes)[1],
        after_ptr=after_ptr,
        after_tasks=after_tasks,
        class_names=tuple(names_of_class),
        class_variants=tuple(variants_of_class),
        cost_s=cost,
        cost_variant=best,
        variant_cost_s=tuple(tables),
        meta=dict(document.get("meta") or {}),
    )


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
    path = Path(path)
    raw = json.dumps(plan_to_json(problem, schedule)).encode()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
        partial.replace(path)
    except OSError as error:
        raise InstanceError(f"{path}: cannot be written ({error})") from error
    finally:
        partial.unlink(missing_ok=True)


def read_plan(path: Path, problem: Problem) -> Schedule:
    """Read a plan of ``problem``; it is not verified. Raises :class:`InstanceError` naming what is unknown."""
    document = _load(Path(path))
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
