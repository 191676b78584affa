"""What there is to time: one item for each task class, variant and kind of device, and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.kernel import Variant, usable_variants
from heterotask_core.platform.model import Device, Platform
from heterotask_core.profiling.capture import encode_params
from heterotask_core.profiling.costs import timing_cores
from heterotask_core.profiling.footprint import class_footprints

Identity = tuple[str, str, str, str, str, str, int, int]
"""Class key, variant, its fingerprint, device kind, device model, driver, cores, footprint in bytes."""

IDENTITY = (
    "class_key",
    "variant",
    "variant_fingerprint",
    "device_kind",
    "device_model",
    "driver",
    "cores",
    "footprint_bytes",
)
ANY_FOOTPRINT = 0
"""Of a timing that was given, or made by a version that knew no footprints: it counts for all."""


@dataclass(frozen=True)
class Item:
    """One timing to take: a representative of a class, a variant, the device to take it on."""

    task: Task
    variant: Variant
    device: Device
    identity: Identity

    @property
    def footprint_bytes(self) -> int:
        """How much the arrays rotate through (see :mod:`~heterotask_core.profiling.footprint`)."""
        return self.identity[-1]

    @property
    def size_bytes(self) -> int:
        """What a task of the class reads and writes."""
        return sum(v.item.size_bytes for v in [*self.task.inputs, *self.task.outputs])

    def describe(self, device: Device | None = None) -> str:
        """Return kernel, variant, device and task in words."""
        where = device or self.device
        return (
            f"kernel {self.task.kernel.name!r}, variant {self.variant.name!r} failed on {where.name} "
            f"(task {self.task.name!r})"
        )


def timing_fingerprint(variant: Variant) -> str:
    """Return a hash of what a timing depends on beside its class and device: the sources and the packages' versions.

    The packages are those that the variant requires; a new NumPy or Numba may compute at another speed.
    """
    versions = [f"{name}={_version(name)}" for name in sorted({*variant.requires, "numpy"})]
    return hashlib.sha256("|".join([variant.fingerprint(), *versions]).encode()).hexdigest()[:16]


@cache
def _version(module: str) -> str:
    try:
        return version(module)
    except PackageNotFoundError:
        names = packages_distributions().get(module.partition(".")[0], [])
        return ",".join(f"{name} {version(name)}" for name in sorted(set(names)))


def identify(task: Task, variant: Variant, device: Device, fingerprint: str, footprint_bytes: int) -> Identity:
    """Return the identity of a timing."""
    return (
        class_key(task),
        variant.name,
        fingerprint,
        device.variant_kind,
        device.model,
        device.driver,
        timing_cores(device),
        footprint_bytes,
    )


def wanted_items(graph: TaskGraph, platform: Platform) -> dict[Identity, Item]:
    """Return everything that planning ``graph`` on ``platform`` needs timed, in graph and platform order."""
    wanted: dict[Identity, Item] = {}
    fingerprints: dict[int, str] = {}
    footprints = class_footprints(graph, len(platform.devices))
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for task in graph:
        key = class_key(task)
        if (key, task.on) in seen:
            continue
        seen.add((key, task.on))
        for device in platform.devices:
            if task.on and device.name not in task.on and device.node not in task.on:
                continue
            for variant in usable_variants(
                task.kernel,
                params=task.params,
                shapes=task.shapes(),
                device_kind=device.variant_kind,
                cores=len(device.core_ids),
                exact=graph.exact,
                installed=device.kind != "emulated",
            ):
                if id(variant) not in fingerprints:
                    fingerprints[id(variant)] = timing_fingerprint(variant)
                identity = identify(task, variant, device, fingerprints[id(variant)], footprints[key])
                wanted.setdefault(identity, Item(task, variant, device, identity))
    return wanted


def job_item(item: Item, files: Mapping[tuple[int, str, int], Path], *, companion: bool = False) -> dict[str, Any]:
    """Return an item as the child reads it; a ``companion`` is not timed but run beside copies."""
    task = item.task
    arguments = []
    for a in task.arguments:
        file = files.get((task.index, a.role, a.position))
        arguments.append(
            {
                "role": a.role,
                "index": a.position,
                "shape": a.item.shape,
                "dtype": a.item.dtype,
                "is_list": a.is_list,
                "updated": a.reads is not None and a.makes is not None,
                "file": None if file is None else str(file),
            }
        )
    return {
        "class": item.identity[0],
        "module": task.kernel.module,
        "kernel": task.kernel.name,
        "variant": item.variant.name,
        "sink": task.kernel.sink,
        "companion": companion,
        "params": encode_params(task),
        "rotate_bytes": item.footprint_bytes,
        "arguments": arguments,
    }


def device_job(device: Device, items: Iterable[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return what every job on a device has; the caller fills in what is to be done."""
    return {
        "kind": device.kind,
        "selector": device.selector,
        "cores": max(1, len(device.core_ids)),
        "core_ids": device.core_ids,
        "slice_s": 0.0,
        "end_s": 0.0,
        "items_after": 0,
        "items": list(items),
        "link_sizes_bytes": [],
        "windows": False,
        "shares_cores": False,
        "output_dir": str(folder),
    }
