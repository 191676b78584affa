"""Concurrency: time kernels again while all devices of the host compute, as they do in a run.

In each time window every device runs one kernel at the same time, each with its own fastest variant; a device that
has no variant of it runs what it is slowest at. How much slower than alone a kernel is then tells what the devices
take from each other: memory bandwidth, shared caches, clocks, cores that two ranks share. The same windows show
whether devices that should be equally fast are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import ProfileError
from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.platform.model import Device, Platform
from heterotask_core.profiling.items import ANY_FOOTPRINT, IDENTITY, Identity, Item, device_job, job_item
from heterotask_core.profiling.process import Child
from heterotask_core.profiling.samples import Summary, deviants, summarise

WINDOW_S = 0.06
WINDOW_CALLS = 6
MAX_WINDOW_S = 2.0
ALIKE = 1.02
"""A ratio up to this counts as no slow-down."""
LEAD_S = 0.003
"""From the last order to the start of a window."""


@dataclass(frozen=True)
class Window:
    """A kernel, and what each device runs while it is timed; ``own`` devices run the kernel itself."""

    kernel: str
    runs: Mapping[str, Item]
    own: frozenset[str]


def representatives(graph: TaskGraph) -> dict[str, Task]:
    """Return kernel → a task of its most frequent class, for kernels that can run beside themselves."""
    classes = Counter((t.kernel.name, class_key(t)) for t in graph if not t.kernel.sink)
    kernels = Counter(t.kernel.name for t in graph)
    chosen: dict[str, str] = {}
    for (kernel, key), _ in classes.most_common():
        if kernels[kernel] > 1:
            chosen.setdefault(kernel, key)
    found: dict[str, Task] = {}
    for task in graph:
        if chosen.get(task.kernel.name) == class_key(task):
            found.setdefault(task.kernel.name, task)
    return found


def plan_windows(
    graph: TaskGraph, platform: Platform, wanted: Mapping[Identity, Item], known: Mapping[Identity, Mapping[str, Any]]
) -> list[Window]:
    """Return the windows that tell how the devices of the first node's host disturb each other; none for one device."""
    host = platform.nodes[0].host
    nodes = {n.name for n in platform.nodes if n.host == host}
    devices = [d for d in platform.devices if d.node in nodes and d.kind != "emulated"]
    if len(devices) < 2:
        return []
    fastest: dict[str, dict[str, Item]] = {}
    for kernel, task in representatives(graph).items():
        runs = {}
        for device in devices:
            item = _fastest(class_key(task), device, wanted, known)
            if item is not None:
                runs[device.name] = item
        if runs:
            fastest[kernel] = runs
    slowest = {}
    for device in devices:
        own = [runs[device.name] for runs in fastest.values() if device.name in runs]
        if own:
            slowest[device.name] = max(own, key=lambda i: float(known[i.identity]["median_s"]))
    return [Window(kernel, slowest | runs, frozenset(runs)) for kernel, runs in fastest.items()]


def _fastest(
    key: str, device: Device, wanted: Mapping[Identity, Item], known: Mapping[Identity, Mapping[str, Any]]
) -> Item | None:
    fits = [
        i
        for i in wanted.values()
        if i.identity in known and i.identity[0] == key and runs_on(i, device) and _allowed(i.task, device)
    ]
    return min(fits, key=lambda i: float(known[i.identity]["median_s"]), default=None)


def runs_on(item: Item, device: Device) -> bool:
    """Return whether ``device`` is like the one that the item is timed on."""
    like = item.device
    return (device.variant_kind, device.model, device.driver, len(device.core_ids)) == (
        like.variant_kind,
        like.model,
        like.driver,
        len(like.core_ids),
    )


def _allowed(task: Task, device: Device) -> bool:
    return not task.on or device.name in task.on or device.node in task.on


def lacking_windows(windows: Sequence[Window], measured: set[tuple[Any, ...]]) -> list[Window]:
    """Return the windows of which a row (identity, device) is not ``measured``, nor one for any footprint."""

    def lacks(identity: Identity, name: str) -> bool:
        return not measured & {(*identity, name), (*identity[:-1], ANY_FOOTPRINT, name)}

    return [w for w in windows if any(lacks(w.runs[name].identity, name) for name in w.own)]


def measure_busy(
    windows: Sequence[Window],
    known: Mapping[Identity, Mapping[str, Any]],
    platform: Platform,
    files: Mapping[tuple[int, str, int], Path],
    folder: Path,
    *,
    limit_s: float,
    end_s: float,
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return rows (schema BUSY), and a note for each device that is not as fast as its equals.

    Windows share the time until ``end_s`` (CLOCK_MONOTONIC), but each has ``WINDOW_S``.
    Raises :class:`ProfileError` naming kernel, variant and device of what fails or hangs.
    """
    rows: list[dict[str, Any]] = []
    notes: dict[str, str] = {}
    names = sorted({name for w in windows for name in w.runs})
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        numbers: dict[str, dict[Identity, int]] = {}
        for name in names:
            device = platform.device(name)
            items = {w.runs[name].identity: w.runs[name] for w in windows if name in w.runs}
            numbers[name] = {identity: i for i, identity in enumerate(items)}
            job = device_job(device, [job_item(i, files) for i in items.values()], folder) | {
                "windows": True,
                "shares_cores": any(
                    set(device.core_ids) & set(platform.device(n).core_ids) for n in names if n != name
                ),
            }
            children[name] = stack.enter_context(closing(Child(job, device, folder)))
        for done, window in enumerate(windows):
            share_s = (end_s - time.monotonic()) / (len(windows) - done)
            samples = _run_window(window, known, platform, children, numbers, limit_s, share_s)
            rows += [_row(window.runs[n], n, known, samples[n]) for n in sorted(window.own)]
            notes |= _compare(window, samples)
    return rows, tuple(notes.values())


def _run_window(
    window: Window,
    known: Mapping[Identity, Mapping[str, Any]],
    platform: Platform,
    children: Mapping[str, Child],
    numbers: Mapping[str, Mapping[Identity, int]],
    limit_s: float,
    share_s: float,
) -> dict[str, list[float]]:
    used = {name: (children[name], numbers[name][item.identity]) for name, item in window.runs.items()}
    for child, number in used.values():
        child.send(prepare=number)
    for name, (child, _) in used.items():
        _answer(child, window.runs[name], platform.device(name), limit_s)
    longest_s = max(float(known[i.identity]["median_s"]) for i in window.runs.values())
    start_s = time.monotonic() + LEAD_S
    end_s = start_s + max(WINDOW_S, min(MAX_WINDOW_S, WINDOW_CALLS * longest_s, share_s))
    for child, number in used.values():
        child.send(item=number, start_s=start_s, end_s=end_s)
    return {
        name: _answer(child, window.runs[name], platform.device(name), limit_s)["samples"]
        for name, (child, _) in used.items()
    }


def _answer(child: Child, item: Item, device: Device, limit_s: float) -> dict[str, Any]:
    try:
        answer = child.answer(limit_s)
    except ProfileError as error:
        raise ProfileError(f"{item.describe(device)} while all devices computed: {error}") from error
    if answer is None or "error" in answer:
        reason = "its process ended" if answer is None else answer["error"]
        raise ProfileError(f"{item.describe(device)} while all devices computed: {reason}")
    return answer


def _row(
    item: Item, device: str, known: Mapping[Identity, Mapping[str, Any]], samples: Sequence[float]
) -> dict[str, Any]:
    alone_s = float(known[item.identity]["median_s"])
    # Without a sample that says anything no slow-down is known.
    summary = summarise(samples) if samples else Summary(alone_s, 0.0, alone_s, 0)
    ratio = summary.median_s / alone_s
    return dict(zip(IDENTITY, item.identity, strict=True)) | {
        "kernel": item.task.kernel.name,
        "device": device,
        "alone_s": alone_s,
        "busy_s": summary.median_s,
        "mad_s": summary.mad_s,
        "scale": ratio if ratio > ALIKE else 1.0,
        "count": summary.count,
        "bytes": item.size_bytes,
    }


def _compare(window: Window, samples: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return device → a note, for devices that differ from others that ran the very same variant."""
    notes = {}
    groups: dict[Identity, dict[str, Sequence[float]]] = {}
    for name in sorted(window.own):
        if len(samples[name]) >= WINDOW_CALLS // 2:
            groups.setdefault(window.runs[name].identity, {})[name] = samples[name]
    for identity, group in groups.items():
        for name, factor in deviants(group).items():
            others = float(np.median([np.median(s) for n, s in group.items() if n != name]))
            notes[name] = (
                f"device {name} takes {factor:.2f} times as long as its equals for kernel {window.kernel!r} "
                f"({identity[1]}: {1e3 * float(np.median(group[name])):.3f} ms, others {1e3 * others:.3f} ms); "
                "see whether something else runs there, or list it as another model"
            )
    return notes
