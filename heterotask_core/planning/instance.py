"""The exchange format ``heterotask-instance/1``: a problem as JSON, gzipped or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import InstanceError
from heterotask_core.planning.json_file import (
    find,
    load_json,
    names,
    number,
    object_of,
    rows_of,
    shown,
    strings,
    text,
    whole_bytes,
)
from heterotask_core.planning.problem import F64, I32, I64, Problem

INSTANCE_FORMAT = "heterotask-instance/1"
KEYS = ("format", "name", "contention", "memories", "devices", "links", "kernels", "data", "tasks", "meta")
ROW_KEYS = {
    "memories": ("name", "node", "capacity_bytes"),
    "devices": ("name", "kind", "memory", "lanes"),
    "links": ("from", "to", "latency_s", "bandwidth_bytes_per_s", "lanes"),
    "data": ("name", "size_bytes", "home", "final"),
    "tasks": ("name", "kernel", "seconds", "reads", "writes", "updates", "after", "on"),
}
_Table = F64
"""Seconds by (variant, device); infinite where it cannot run."""


def read_instance(path: Path) -> Problem:
    """Read an instance file. Raises :class:`InstanceError` that names the file and the JSON path."""
    document = load_json(Path(path))
    try:
        return instance_to_problem(document)
    except InstanceError as error:
        raise InstanceError(f"{path}: {error}") from None


def instance_to_problem(document: Any) -> Problem:
    """Return the problem in a parsed instance. Raises :class:`InstanceError` with the JSON path."""
    document = object_of(document, "$")
    if document.get("format") != INSTANCE_FORMAT:
        raise InstanceError(f"$.format: must be {INSTANCE_FORMAT!r}, is {shown(document.get('format'))}")
    object_of(document, "$", KEYS)
    contention = document.get("contention", True)
    if not isinstance(contention, bool):
        raise InstanceError(f"$.contention: must be true or false, is {shown(contention)}")
    rows = {key: rows_of(document, key, keys) for key, keys in ROW_KEYS.items()}
    platform = _Platform(rows["memories"], rows["devices"], rows["links"])
    flow = _Flow(rows["data"], rows["tasks"], platform)
    costs = _Costs(document.get("kernels", {}), platform)
    task_class = [costs.class_of(task, f"$.tasks[{t}]") for t, task in enumerate(rows["tasks"])]
    final = [-1] * len(flow.version_data)
    for i, item in enumerate(rows["data"]):
        if item.get("final") is not None:
            final[flow.latest[i]] = find(platform.memory_index, item["final"], f"$.data[{i}].final", "memory")
            if flow.producer[flow.latest[i]] < 0 and not flow.homes[i]:
                raise InstanceError(f"$.data[{i}].final: {shown(item['name'])} is never written and has no home")
    n_classes, n_devices = len(costs.tables), len(rows["devices"])
    best = np.array([t.argmin(axis=0) for t in costs.tables], np.int32).reshape(n_classes, n_devices)
    for c, variant_names in enumerate(costs.variants):
        if not variant_names:
            best[c] = -1
    sizes: F64 = np.array([flow.size[d] for d in flow.version_data], np.float64)
    device_ptr, device_lanes = csr(platform.device_lanes)
    link_ptr, link_lanes = csr(platform.link_lanes)
    home_ptr, home_memories = csr([*flow.homes, *([] for _ in range(len(flow.version_data) - len(flow.homes)))])
    input_ptr, input_versions = csr(flow.inputs)
    output_ptr, output_versions = csr(flow.outputs)
    after_ptr, after_tasks = csr(flow.after)
    meta = document.get("meta")
    return Problem(
        name=text(document, "name", "$") if "name" in document else "",
        contention=contention,
        memory_names=tuple(platform.memory_index),
        memory_nodes=tuple(platform.nodes),
        memory_capacity_bytes=np.array(platform.capacities, np.int64),
        memory_alignment_bytes=np.ones(len(platform.nodes), np.int64),
        device_names=tuple(platform.device_index),
        device_kinds=tuple(platform.kinds),
        device_memory=np.array(platform.device_memory, np.int32),
        device_lane_ptr=device_ptr,
        device_lanes=device_lanes,
        link_source=np.array([a for a, _ in platform.ends], np.int32),
        link_target=np.array([b for _, b in platform.ends], np.int32),
        link_latency_s=np.array(platform.latency_s, np.float64),
        link_bandwidth_bytes_per_s=np.array(platform.bandwidth_bytes_per_s, np.float64),
        link_lane_ptr=link_ptr,
        link_lanes=link_lanes,
        lane_names=tuple(platform.lanes),
        data_names=tuple(flow.data_index),
        version_data=np.array(flow.version_data, np.int32),
        version_number=np.array(flow.version_number, np.int32),
        version_size_bytes=sizes.astype(np.int64) if flow.integral else sizes,
        version_producer=np.array(flow.producer, np.int32),
        home_ptr=home_ptr,
        home_memories=home_memories,
        version_final_memory=np.array(final, np.int32),
        task_names=tuple(flow.task_index),
        task_class=np.array(task_class, np.int32),
        input_ptr=input_ptr,
        input_versions=input_versions,
        output_ptr=output_ptr,
        output_versions=output_versions,
        output_takes_over=csr(flow.takes_over)[1],
        after_ptr=after_ptr,
        after_tasks=after_tasks,
        class_names=tuple(costs.names),
        class_variants=tuple(costs.variants),
        cost_s=np.array([t.min(axis=0) for t in costs.tables]).reshape(n_classes, n_devices),
        cost_variant=best,
        variant_cost_s=tuple(costs.tables),
        meta=dict(meta) if isinstance(meta, dict) else {},
    )


def csr(lists: Iterable[Sequence[int]]) -> tuple[I64, I32]:
    """Return lists of indices as (pointer, flat)."""
    rows = list(lists)
    pointer = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointer[1:])
    return pointer, np.array([value for row in rows for value in row], np.int32)


class _Platform:
    """Memories, devices, links and the lanes that they hold."""

    def __init__(self, memories: list[Any], devices: list[Any], links: list[Any]) -> None:
        self.memory_index, self.device_index = names(memories, "memories"), names(devices, "devices")
        if not devices:
            raise InstanceError("$.devices: there is no device")
        self.nodes = [text(m, "node", f"$.memories[{i}]") for i, m in enumerate(memories)]
        self.capacities = [
            -1
            if m.get("capacity_bytes") is None
            else whole_bytes(m["capacity_bytes"], f"$.memories[{i}].capacity_bytes")
            for i, m in enumerate(memories)
        ]
        self.kinds = [text(d, "kind", f"$.devices[{i}]") for i, d in enumerate(devices)]
        self.device_memory = [
            find(self.memory_index, d.get("memory"), f"$.devices[{i}].memory", "memory") for i, d in enumerate(devices)
        ]
        self.lanes: dict[str, int] = {}
        self.device_lanes = [self._lanes(d, f"$.devices[{i}]", f"device {d['name']}") for i, d in enumerate(devices)]
        self.ends: dict[tuple[int, int], int] = {}
        self.link_lanes: list[list[int]] = []
        self.latency_s: list[float] = []
        self.bandwidth_bytes_per_s: list[float] = []
        for i, link in enumerate(links):
            where = f"$.links[{i}]"
            a, b = (find(self.memory_index, link.get(k), f"{where}.{k}", "memory") for k in ("from", "to"))
            if a == b:
                raise InstanceError(f"{where}: leads from {shown(link['from'])} to itself; leave it out")
            if (a, b) in self.ends:
                raise InstanceError(f"{where}: has the same ends as $.links[{self.ends[a, b]}]; keep one")
            self.ends[a, b] = i
            self.latency_s.append(number(link.get("latency_s", 0.0), f"{where}.latency_s"))
            bandwidth = number(link.get("bandwidth_bytes_per_s"), f"{where}.bandwidth_bytes_per_s", positive=True)
            self.bandwidth_bytes_per_s.append(bandwidth)
            self.link_lanes.append(self._lanes(link, where, f"link {link['from']}>{link['to']}"))

    def _lanes(self, row: dict[str, Any], where: str, own: str) -> list[int]:
        return [self.lanes.setdefault(name, len(self.lanes)) for name in strings(row, "lanes", where) or [own]]


class _Flow:
    """Data items, their versions, and what the tasks do with them in program order."""

    def __init__(self, data: list[Any], tasks: list[Any], platform: _Platform) -> None:
        self.data_index, self.task_index = names(data, "data"), names(tasks, "tasks")
        # Sizes of the literature's examples are seconds and may be fractions; planned buffers need whole bytes.
        size_of = whole_bytes if max(platform.capacities, default=-1) >= 0 else number
        self.size = [size_of(d.get("size_bytes"), f"$.data[{i}].size_bytes") for i, d in enumerate(data)]
        self.integral = all(x == int(x) and x <= 2**53 for x in self.size)
        self.homes = [
            [
                find(platform.memory_index, h, f"$.data[{i}].home", "memory")
                for h in strings(d, "home", f"$.data[{i}]", one=True)
            ]
            for i, d in enumerate(data)
        ]
        self.version_data = list(range(len(data)))
        self.version_number, self.producer = [0] * len(data), [-1] * len(data)
        self.latest = list(range(len(data)))
        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self.takes_over: list[list[int]] = []
        self.after: list[list[int]] = []
        for t, task in enumerate(tasks):
            self._add(t, task, tasks, data)

    def _add(self, t: int, task: dict[str, Any], tasks: list[Any], data: list[Any]) -> None:
        where = f"$.tasks[{t}]"
        seen: dict[int, str] = {}
        lists: dict[str, list[int]] = {}
        for key in ("reads", "updates", "writes"):
            lists[key] = [find(self.data_index, n, f"{where}.{key}", "data item") for n in strings(task, key, where)]
            for d in lists[key]:
                if d in seen:
                    name = shown(data[d]["name"])
                    raise InstanceError(f"{where}.{key} ({task['name']}): {name} is also in {seen[d]}; one list only")
                seen[d] = key
        for key in ("reads", "updates"):
            for d in lists[key]:
                if self.producer[self.latest[d]] < 0 and not self.homes[d]:
                    name, later = data[d]["name"], _writer(data[d]["name"], tasks, t + 1)
                    raise InstanceError(
                        f"{where}.{key} ({task['name']}): reads {shown(name)} before it is written"
                        + ("; give it a home" if later is None else f", which task {later} does: {_ORDER}")
                    )
        self.inputs.append([self.latest[d] for d in (*lists["reads"], *lists["updates"])])
        made, replaced = [], []
        for key in ("writes", "updates"):
            for d in lists[key]:
                replaced.append(self.latest[d] if key == "updates" else -1)
                made.append(len(self.version_data))
                self.version_data.append(d)
                self.version_number.append(self.version_number[self.latest[d]] + 1)
                self.producer.append(t)
                self.latest[d] = made[-1]
        self.outputs.append(made)
        self.takes_over.append(replaced)
        before = [find(self.task_index, n, f"{where}.after", "task") for n in strings(task, "after", where)]
        for b in before:
            if b >= t:
                raise InstanceError(
                    f"{where}.after ({task['name']}): {shown(tasks[b]['name'])} stands "
                    + ("here" if b == t else f"later, at $.tasks[{b}]")
                    + f": a cycle, or the wrong order; {_ORDER}"
                )
        self.after.append(before)


_ORDER = "tasks stand in program order (`heterotask instance sort` puts them so if there is no cycle)"


def _writer(item: str, tasks: list[Any], first: int) -> str | None:
    """Return the first task from ``first`` on that makes the item, as a message shows it."""
    for t in range(first, len(tasks)):
        task = tasks[t]
        for key in ("writes", "updates"):
            made = task.get(key)
            if isinstance(made, list) and item in made:
                return f"{shown(task['name'])} at $.tasks[{t}]"
    return None


class _Costs:
    """Task classes: what tasks of equal kernel, pin and costs share."""

    def __init__(self, kernels: Any, platform: _Platform) -> None:
        self.platform = platform
        self.known = set(platform.device_index) | set(platform.kinds)
        self.nodes = set(platform.nodes)
        self.names: list[str] = []
        self.variants: list[tuple[str, ...]] = []
        self.tables: list[_Table] = []
        self._classes: dict[str, int] = {}
        self._kernels: dict[str, tuple[tuple[str, ...], _Table]] = {}
        for name, entry in object_of(kernels, "$.kernels").items():
            where = f"$.kernels.{name if name.isprintable() and len(name) < 80 else shown(name)}"
            object_of(entry, where, ("seconds", "variants"))
            if "variants" not in entry:
                self._kernels[name] = (), self._row(entry.get("seconds", {}), f"{where}.seconds")[None]
                continue
            if "seconds" in entry:
                raise InstanceError(f"{where}: has seconds and variants; keep one")
            variants = object_of(entry["variants"], f"{where}.variants")
            if not variants:
                raise InstanceError(f"{where}.variants: there is no variant")
            rows = []
            for variant, costs in variants.items():
                spot = f"{where}.variants.{variant if variant.isprintable() else shown(variant)}"
                rows.append(self._row(object_of(costs, spot, ("seconds",)).get("seconds", {}), f"{spot}.seconds"))
            self._kernels[name] = tuple(variants), np.array(rows)

    def _row(self, seconds: Any, where: str) -> F64:
        costs = {}
        for name, value in object_of(seconds, where).items():
            if name not in self.known:
                raise InstanceError(f"{where}: there is no device or device kind {shown(name)}")
            costs[name] = number(value, f"{where}.{name}")
        kinds = zip(self.platform.device_index, self.platform.kinds, strict=True)
        return np.array([costs.get(device, costs.get(kind, np.inf)) for device, kind in kinds])

    def class_of(self, task: dict[str, Any], where: str) -> int:
        """Return the class of a task, a new one if none is equal."""
        own = task.get("seconds")
        if own is not None:
            object_of(own, f"{where}.seconds")
        kernel = text(task, "kernel", where) if "kernel" in task or not own else ""
        pinned = strings(task, "on", where)
        key = json.dumps([kernel, pinned, own])
        if key in self._classes:
            return self._classes[key]
        for name in pinned:
            if name not in self.platform.device_index and name not in self.nodes:
                raise InstanceError(f"{where}.on ({task['name']}): there is no device or node {shown(name)}")
        if own:
            variants: tuple[str, ...] = ()
            table = self._row(own, f"{where}.seconds")[None]
        elif kernel in self._kernels:
            variants, table = self._kernels[kernel]
        else:
            raise InstanceError(
                f"{where}.kernel ({task['name']}): there is no kernel {shown(kernel)}, and the task has no seconds"
            )
        if pinned:
            table = table.copy()
            for d, name in enumerate(self.platform.device_index):
                if name not in pinned and self.platform.nodes[self.platform.device_memory[d]] not in pinned:
                    table[:, d] = np.inf
        self._classes[key] = len(self.names)
        self.names.append(kernel)
        self.variants.append(variants)
        self.tables.append(table)
        return self._classes[key]
