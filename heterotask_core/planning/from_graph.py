"""Task graph + platform + costs → :class:`Problem`; indices are the positions in graph and platform."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.kernel import Variant, usable_variants
from heterotask_core.planning.problem import F64, I32, I64, Problem
from heterotask_core.platform.model import Device, Platform
from heterotask_core.profiling.costs import CostModel, Overheads


def build_problem(
    graph: TaskGraph,
    platform: Platform,
    costs: CostModel,
    *,
    overheads: Overheads | None = None,
) -> Problem:
    """Return the problem of running ``graph`` on ``platform``.

    Tasks, versions, data items, memories, devices and links keep their order. Tasks with one class key and one
    ``on`` are one class. Lanes: one a device (called like it), then those of the links, with one of its own for each
    link of a device that has blocking variants.

    Raises :class:`InfeasiblePlanError` naming kernel and task when no device present can run it, or when ``on``
    names no device or node; :class:`~heterotask_core.errors.ProfileError` naming a missing timing.
    """
    overheads = overheads or Overheads()
    classes: dict[tuple[str, tuple[str, ...]], int] = {}
    members: list[Task] = []
    task_class = np.empty(len(graph), np.int32)
    for task in graph:
        key = (class_key(task), task.on)
        if key not in classes:
            classes[key] = len(members)
            members.append(task)
        task_class[task.index] = classes[key]

    n_devices = len(platform.devices)
    beside = _neighbours(graph, platform)
    cost_s = np.full((len(members), n_devices), math.inf)
    cost_variant = np.full((len(members), n_devices), -1, np.int32)
    scratch = np.zeros((len(members), n_devices), np.int64)
    blocking = np.zeros((len(members), n_devices), np.bool_)
    class_variants: list[tuple[str, ...]] = []
    variant_cost_s: list[F64] = []
    for c, task in enumerate(members):
        by_device = _by_device(task, platform, exact=graph.exact)
        names = [v.name for v in task.kernel.variants if any(v in usable for usable in by_device)]
        if not names:
            raise InfeasiblePlanError(_no_variant(task, platform))
        table = np.full((len(names), n_devices), math.inf)
        for d, (device, usable) in enumerate(zip(platform.devices, by_device, strict=True)):
            what = f"kernel {task.kernel.name!r}, task {task.name!r}"
            for v in usable:
                profiled = costs.task_s(
                    class_key(task), v.name, device, what=what, neighbours=beside(task.kernel.name, device)
                )
                table[names.index(v.name), d] = overheads.task_s(
                    task.kernel.name, device.variant_kind, profiled, device=device.name
                )
            if usable:
                best = int(np.argmin(table[:, d]))
                cost_variant[c, d] = best
                cost_s[c, d] = table[best, d]
                chosen = task.kernel.variant(names[best])
                blocking[c, d] = chosen.blocking and device.memory != device.node
                needs = chosen.scratch_bytes
                scratch[c, d] = 0 if needs is None else needs(task.params, task.shapes())
        class_variants.append(tuple(names))
        variant_cost_s.append(table)

    lane_names = [d.name for d in platform.devices]
    link_lanes: list[list[int]] = []
    stopped = {platform.devices[d].memory for d in np.flatnonzero(blocking.any(axis=0))}
    for link in platform.links:
        own = f"{link.source}→{link.target}"
        lanes = link.lanes or (own,)
        # What stops the copies of a device must not stop those of others on a bus.
        lanes += (own,) if stopped & {link.source, link.target} and own not in lanes else ()
        # Engines named like a device are its own lane: such copies and kernels take turns.
        lanes += costs.engines.get((link.source, link.target), ())
        lane_names += [name for name in lanes if name not in lane_names]
        link_lanes.append([lane_names.index(name) for name in lanes])
    link_times = [overheads.link(link.kind, *costs.link(link)) for link in platform.links]

    memory = platform.memory_index()
    inputs, outputs, takes_over = [], [], []
    for task in graph:
        inputs.append([v.index for v in task.inputs])
        made = [a for a in task.arguments if a.makes is not None]
        outputs.append([a.makes.index for a in made if a.makes is not None])
        takes_over.append([-1 if a.reads is None else a.reads.index for a in made])
    input_ptr, input_versions = _csr(inputs)
    output_ptr, output_versions = _csr(outputs)
    after_ptr, after_tasks = _csr([t.after for t in graph])
    link_lane_ptr, flat_link_lanes = _csr(link_lanes)
    return Problem(
        name=graph.name,
        contention=True,
        memory_names=tuple(m.name for m in platform.memories),
        memory_nodes=tuple(m.node for m in platform.memories),
        memory_capacity_bytes=np.array(
            [-1 if m.capacity_bytes is None else m.capacity_bytes - m.reserve_bytes for m in platform.memories],
            np.int64,
        ),
        memory_alignment_bytes=np.array([m.alignment_bytes for m in platform.memories], np.int64),
        device_names=tuple(d.name for d in platform.devices),
        device_kinds=tuple(d.kind for d in platform.devices),
        device_memory=np.array([memory[d.memory] for d in platform.devices], np.int32),
        device_lane_ptr=np.arange(n_devices + 1, dtype=np.int64),
        device_lanes=np.arange(n_devices, dtype=np.int32),
        link_source=np.array([memory[x.source] for x in platform.links], np.int32),
        link_target=np.array([memory[x.target] for x in platform.links], np.int32),
        link_latency_s=np.array([t[0] for t in link_times], np.float64),
        link_bandwidth_bytes_per_s=np.array([t[1] for t in link_times], np.float64),
        link_lane_ptr=link_lane_ptr,
        link_lanes=flat_link_lanes,
        lane_names=tuple(lane_names),
        data_names=tuple(item.name for item in graph.items),
        version_data=np.array([v.item.index for v in graph.versions], np.int32),
        version_number=np.array([v.number for v in graph.versions], np.int32),
        version_size_bytes=np.array([v.item.size_bytes for v in graph.versions], np.int64),
        version_producer=np.array([v.producer for v in graph.versions], np.int32),
        home_ptr=np.zeros(len(graph.versions) + 1, np.int64),
        home_memories=np.empty(0, np.int32),
        version_final_memory=np.full(len(graph.versions), -1, np.int32),
        task_names=tuple(t.name for t in graph),
        task_class=task_class,
        input_ptr=input_ptr,
        input_versions=input_versions,
        output_ptr=output_ptr,
        output_versions=output_versions,
        output_takes_over=_csr(takes_over)[1],
        after_ptr=after_ptr,
        after_tasks=after_tasks,
        class_names=tuple(f"{t.kernel.name}#{c}" for c, t in enumerate(members)),
        class_variants=tuple(class_variants),
        cost_s=cost_s,
        cost_variant=cost_variant,
        variant_cost_s=tuple(variant_cost_s),
        class_scratch_bytes=scratch if scratch.any() else None,
        class_blocking=blocking if blocking.any() else None,
    )


def check_runnable(graph: TaskGraph, platform: Platform) -> None:
    """Raise :class:`InfeasiblePlanError` as :func:`build_problem` does when no device present can run some task.

    Needs no costs: it is asked before anything is measured.
    """
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for task in graph:
        key = (class_key(task), task.on)
        if key in seen:
            continue
        seen.add(key)
        if not any(_by_device(task, platform, exact=graph.exact)):
            raise InfeasiblePlanError(_no_variant(task, platform))


def _neighbours(graph: TaskGraph, platform: Platform) -> Callable[[str, Device], float]:
    """Return (kernel, device) → the share of the host's other devices that compute while a task of it runs.

    Tasks of one kernel run beside each other as far as there are several; the only task of a kernel (a load, a
    store) is taken to run alone.
    """
    counts = Counter(task.kernel.name for task in graph)
    hosts = {node.name: node.host for node in platform.nodes}
    devices = Counter(hosts[device.node] for device in platform.devices)

    def share(kernel: str, device: Device) -> float:
        others = devices[hosts[device.node]] - 1
        return min(1.0, (counts[kernel] - 1) / others) if others else 0.0

    return share


def _by_device(task: Task, platform: Platform, *, exact: bool) -> list[Sequence[Variant]]:
    """Return the variants of a task that each device can run; equal devices are asked about once."""
    known = {d.name for d in platform.devices} | {n.name for n in platform.nodes}
    for name in task.on:
        if name not in known:
            raise InfeasiblePlanError(
                f"task {task.name!r} must run on {name!r}, which is no device or node here; "
                f"there are {', '.join(sorted(known))}"
            )
    shapes = task.shapes()
    found: dict[tuple[str, int, bool], Sequence[Variant]] = {}
    usable: list[Sequence[Variant]] = []
    for device in platform.devices:
        if task.on and device.name not in task.on and device.node not in task.on:
            usable.append([])
            continue
        alike = device.variant_kind, len(device.core_ids), device.kind != "emulated"
        if alike not in found:
            kind, cores, installed = alike
            found[alike] = usable_variants(
                task.kernel,
                params=task.params,
                shapes=shapes,
                device_kind=kind,
                cores=cores,
                exact=exact,
                installed=installed,
            )
        usable.append(found[alike])
    return usable


def _no_variant(task: Task, platform: Platform) -> str:
    kinds = sorted({d.variant_kind for d in platform.devices})
    declared = ", ".join(f"{v.name} ({v.device_kind})" for v in task.kernel.variants) or "none"
    where = f" on {', '.join(task.on)}" if task.on else ""
    return (
        f"kernel {task.kernel.name!r} (task {task.name!r}) has no usable variant{where} for the devices present "
        f"({', '.join(kinds)}); its variants: {declared}; add a device with --devices"
    )


def _csr(lists: Iterable[Sequence[int]]) -> tuple[I64, I32]:
    rows = list(lists)
    pointer = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointer[1:])
    return pointer, np.array([value for row in rows for value in row], np.int32)
