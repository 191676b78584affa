"""Costs of emulated devices: this host's measured CPU times, divided by the speed-ups that the platform file gives.

In the platform's ``meta``::

    emulation:
      noise: 0.02          # relative width of the log-normal noise of every op, default 0
      seed: 1
      models:              # by the devices' model
        emulated gpu: {speedup: 20.0, launch_s: 8.0e-6, kernels: {gaussian: 40.0}}
        emulated cpu: {speedup: 1.0}

``speedup`` is relative to the kernel's reference variant on one core of this host; ``kernels`` overrides it by kernel
name, ``launch_s`` is added to every task. Links take what the platform says of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterotask_core.emulation import OpTimes
from heterotask_core.errors import PlatformError, ProfileError
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import usable_variants
from heterotask_core.platform.discover import discover
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.costs import timing_cores
from heterotask_core.profiling.items import ANY_FOOTPRINT
from heterotask_core.profiling.measure import KERNEL_LIMIT_S, Profile, profile
from heterotask_core.program.model import OpKind, Program
from heterotask_core.store import Store
from heterotask_core.tables import LINKS, TIMINGS

Positive = Annotated[float, Field(gt=0, le=1e6)]


class EmulatedModel(BaseModel):
    """How fast devices of a model are."""

    model_config = ConfigDict(extra="forbid")
    speedup: Positive = 1.0
    launch_s: float = Field(0.0, ge=0, le=1)
    kernels: dict[str, Positive] = {}

    def task_s(self, kernel: str, reference_s: float) -> float:
        """Return what a task takes whose reference variant takes ``reference_s`` on this host."""
        return reference_s / self.kernels.get(kernel, self.speedup) + self.launch_s


class EmulationSpec(BaseModel):
    """``meta.emulation`` of a platform file."""

    model_config = ConfigDict(extra="forbid")
    models: dict[str, EmulatedModel] = {}
    noise: float = Field(0.0, ge=0, le=1)
    seed: int = Field(0, ge=0)

    @staticmethod
    def of(platform: Platform) -> EmulationSpec:
        """Read the specification; raises :class:`PlatformError` naming the key that is wrong."""
        try:
            return EmulationSpec.model_validate(platform.meta.get("emulation", {}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("emulation", *first["loc"])))
            raise PlatformError(f"platform meta {where}: {first['msg']}; see docs/emulation.md") from error

    def times(self, program: Program, *, runs: int) -> OpTimes:
        """Return what ops take in ``runs`` runs: as planned, with this noise."""
        return OpTimes.planned(program, runs=runs, noise=self.noise, seed=self.seed)

    def work_s(self, program: Program, platform: Platform) -> float:
        """Return the seconds of one core that all tasks take on this host: planned ones without the speed-ups."""
        models = [self.models[d.model] for d in platform.devices]
        total_s = 0.0
        for op in np.flatnonzero(program.op_kind == OpKind.KERNEL).tolist():
            task = program.op_task[op]
            model = models[program.task_device[task]]
            speedup = model.kernels.get(program.calls[program.task_call[task]].kernel, model.speedup)
            total_s += max(0.0, float(program.op_duration_s[op]) - model.launch_s) * speedup
        return total_s


def emulated_profile(
    graph: TaskGraph,
    platform: Platform,
    store: Store,
    *,
    budget_s: float = 20.0,
    kernel_limit_s: float = KERNEL_LIMIT_S,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Return the profile of a platform of emulated devices; reference variants are measured on this host.

    Raises :class:`PlatformError` for a model without speed-up, :class:`ProfileError` for a kernel that has no CPU
    variant to measure.
    """
    spec = EmulationSpec.of(platform)
    for device in platform.devices:
        if device.model not in spec.models:
            raise PlatformError(
                f"device {device.name!r}: meta.emulation.models has no {device.model!r} (there are "
                f"{', '.join(sorted(spec.models)) or 'none'}); add its speed-up, see docs/emulation.md"
            )
    # Where a task may run says nothing about how long it takes.
    anywhere = replace(graph, tasks=[replace(task, on=()) for task in graph.tasks])
    host = profile(
        anywhere,
        discover("cpu:1"),
        store,
        budget_s=budget_s,
        kernel_limit_s=kernel_limit_s,
        again=again,
        progress=progress,
    )
    reference_s = {
        (row["class_key"], row["variant"]): float(row["median_s"])
        for row in host.timings.filter(~pl.col("busy")).iter_rows(named=True)
    }
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[str] = set()
    for task in graph:
        key = class_key(task)
        if key in seen:
            continue
        seen.add(key)
        base_s = reference_s.get((key, task.kernel.reference.name))
        if base_s is None:
            raise ProfileError(
                f"kernel {task.kernel.name!r} (task {task.name!r}): its reference variant "
                f"{task.kernel.reference.name!r} cannot be measured on this host, so it cannot be emulated; install "
                f"{', '.join(task.kernel.reference.requires) or 'what it needs'}"
            )
        sizes = {
            "input_bytes": sum(v.item.size_bytes for v in task.inputs),
            "output_bytes": sum(v.item.size_bytes for v in task.outputs),
        }
        for device in platform.devices:
            for variant in usable_variants(
                task.kernel,
                params=task.params,
                shapes=task.shapes(),
                device_kind=device.variant_kind,
                cores=len(device.core_ids),
                exact=graph.exact,
                installed=False,
            ):
                identity = (key, variant.name, device.variant_kind, device.model, timing_cores(device))
                task_s = spec.models[device.model].task_s(task.kernel.name, base_s)
                rows.setdefault(identity, _row(identity, task.kernel.name, task_s) | sizes)
    timings = pl.DataFrame(list(rows.values()), TIMINGS)
    links = pl.DataFrame(
        [
            {
                "source": x.source,
                "target": x.target,
                "kind": x.kind,
                "latency_s": x.latency_s,
                "bandwidth_bytes_per_s": x.bandwidth_bytes_per_s,
                "residual": 0.0,
                "count": 0,
            }
            for x in platform.links
        ],
        LINKS,
    )
    text = json.dumps([timings.to_dicts(), links.to_dicts()], sort_keys=True)
    fingerprint = "emulated-" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Profile(timings, links, host.measured, host.reused, fingerprint)


def _row(identity: tuple[Any, ...], kernel: str, task_s: float) -> dict[str, Any]:
    key, variant, kind, model, cores = identity
    return {
        "class_key": key,
        "kernel": kernel,
        "variant": variant,
        "variant_fingerprint": "",
        "device_kind": kind,
        "device_model": model,
        "driver": "",
        "cores": cores,
        "footprint_bytes": ANY_FOOTPRINT,
        "busy": False,
        "median_s": task_s,
        "mad_s": 0.0,
        "p95_s": task_s,
        "cold_s": np.nan,
        "count": 0,
        "source": "given",
    }
