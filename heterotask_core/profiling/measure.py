"""Profile a graph on a platform: time what the store lacks or holds stale, and return all that planning needs.

Each (task class, variant, device model) is timed in a child process that is pinned like the rank that will run it,
on inputs that the graph itself made. Timings are shared by all platforms with devices of that model; links belong
to one platform.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import ProfileError
from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.kernel import Variant, usable_variants
from heterotask_core.platform.model import Device, Platform
from heterotask_core.profiling.capture import capture_inputs, encode_params
from heterotask_core.profiling.costs import timing_cores
from heterotask_core.profiling.links import Samples, child_environment, link_tables, measure_network
from heterotask_core.profiling.samples import outliers, summarise
from heterotask_core.store import Store
from heterotask_core.tables import LINK_SAMPLES, LINKS, TIMING_SAMPLES, TIMINGS, read_table

REMEDY = "delete its folder and run `heterotask profile` again"

Identity = tuple[str, str, str, str, str, str, int]
"""Class key, variant, its fingerprint, device kind, device model, driver, cores."""

IDENTITY = ("class_key", "variant", "variant_fingerprint", "device_kind", "device_model", "driver", "cores")


@dataclass(frozen=True)
class Profile:
    """Timings (schema TIMINGS) and links (LINKS) for one graph on one platform."""

    timings: pl.DataFrame
    links: pl.DataFrame
    measured: int
    """Timings taken now."""
    reused: int
    """Timings that the store had."""
    fingerprint: str
    """Hash of all numbers above: equal profiles give equal plans."""


@dataclass(frozen=True)
class _Item:
    """One timing to take: a representative of a class, a variant, the device to take it on."""

    task: Task
    variant: Variant
    device: Device
    identity: Identity


def profile(
    graph: TaskGraph,
    platform: Platform,
    store: Store,
    *,
    budget_s: float = 20.0,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Return the profile, measuring at most about ``budget_s`` seconds beside start-up and compilation.

    ``progress`` is called with (timings taken, timings to take). What was measured is kept even if a later
    timing fails. Raises :class:`ProfileError` naming kernel, variant and device of what failed.
    """
    wanted = _wanted(graph, platform)
    known = _stored(store)
    missing = [i for i in wanted.values() if i.identity not in known and i.device.kind != "emulated"]
    links, link_samples = _stored_links(store, platform)
    lacking = {(x.source, x.target) for x in platform.links} - set(links.select("source", "target").iter_rows())
    if missing or lacking:
        rows, samples, measured_links, errors = _measure(graph, platform, missing, lacking, budget_s, progress)
        fresh_links, fresh_link_samples = link_tables(platform.links, measured_links)
        links = pl.concat([links, fresh_links])
        link_samples = pl.concat([link_samples, fresh_link_samples])
        known |= {_identity(row): row for row in rows}
        _save(store, platform, rows, samples, links, link_samples)
        if errors:
            raise ProfileError("; ".join(errors[:3]) + (f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""))
    timings = pl.DataFrame([known[i] for i in wanted if i in known], TIMINGS, orient="row")
    return Profile(timings, links, len(missing), len(timings) - len(missing), _fingerprint(timings, links))


def _wanted(graph: TaskGraph, platform: Platform) -> dict[Identity, _Item]:
    wanted: dict[Identity, _Item] = {}
    fingerprints: dict[int, str] = {}
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
            ):
                if id(variant) not in fingerprints:
                    fingerprints[id(variant)] = variant.fingerprint()
                identity = (
                    key,
                    variant.name,
                    fingerprints[id(variant)],
                    device.variant_kind,
                    device.model,
                    device.driver,
                    timing_cores(device),
                )
                wanted.setdefault(identity, _Item(task, variant, device, identity))
    return wanted


def _measure(
    graph: TaskGraph,
    platform: Platform,
    missing: list[_Item],
    lacking: set[tuple[str, str]],
    budget_s: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[tuple[str, str], Samples], list[str]]:
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    links: dict[tuple[str, str], Samples] = {}
    errors: list[str] = []
    done = 0
    with tempfile.TemporaryDirectory(prefix="heterotask-", dir=_scratch_folder(missing)) as name:
        folder = Path(name)
        files = capture_inputs(graph, [i.task for i in missing], folder)
        if lacking & _network(platform):
            links |= {ends: s for ends, s in measure_network(platform, folder).items() if ends in lacking}
        for device in platform.devices:
            items = [i for i in missing if i.device is device]
            ends = {"in": (device.node, device.memory), "out": (device.memory, device.node)}
            wants_links = device.kind != "emulated" and bool(lacking & set(ends.values()))
            if not items and not wants_links:
                continue
            job = {
                "kind": device.kind,
                "selector": device.selector,
                "cores": max(1, len(device.core_ids)),
                "core_ids": device.core_ids,
                "slice_s": budget_s / max(1, len(missing)),
                "items": [_job_item(i, files) for i in items],
                "link": wants_links,
                "output_dir": str(folder),
            }
            with closing(_run_child(job, device, folder)) as answers:
                for answer in answers:
                    if "link" in answer:
                        links.setdefault(ends[answer["link"]], {})[answer["size_bytes"]] = answer["samples"]
                        continue
                    item = items[answer["item"]]
                    done += 1
                    if progress is not None:
                        progress(done, len(missing))
                    if "error" in answer:
                        errors.append(
                            f"kernel {item.task.kernel.name!r}, variant {item.variant.name!r} failed on {device.name} "
                            f"(task {item.task.name!r}): {answer['error']}"
                        )
                        continue
                    rows.append(_row(item, answer))
                    samples += _sample_rows(item, answer)
    return rows, samples, links, errors


def _scratch_folder(missing: list[_Item]) -> Path | None:
    """Return /dev/shm if the captured inputs leave half of it free, else None for the usual temporary folder."""
    tasks = {i.task.index: i.task for i in missing}
    size_bytes = sum(v.item.size_bytes for task in tasks.values() for v in task.inputs)
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and shutil.disk_usage(shared).free > 2 * size_bytes else None


def _network(platform: Platform) -> set[tuple[str, str]]:
    return {(x.source, x.target) for x in platform.links if x.kind == "network"}


def _job_item(item: _Item, files: dict[tuple[int, str, int], Path]) -> dict[str, Any]:
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
        "module": task.kernel.module,
        "kernel": task.kernel.name,
        "variant": item.variant.name,
        "sink": task.kernel.sink,
        "params": encode_params(task),
        "arguments": arguments,
    }


def _run_child(job: dict[str, Any], device: Device, folder: Path) -> Generator[dict[str, Any], None, None]:
    job_file, error_file = folder / f"{device.name}.json", folder / f"{device.name}.stderr"
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "heterotask_core.profiling.child", str(job_file)]
    with error_file.open("w") as stderr:
        child = subprocess.Popen(
            command, env=child_environment(job["cores"]), stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield json.loads(line)
            code = child.wait()
        finally:
            # The caller may stop early, or be interrupted: never leave a child that computes.
            child.kill()
            child.wait()
            child.stdout.close()
    if code:
        reason = (error_file.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ProfileError(f"timing on {device.name} ({device.model}) ended with exit code {code}: {reason}")


def _row(item: _Item, answer: dict[str, Any]) -> dict[str, Any]:
    summary = summarise(answer["samples"])
    return dict(zip(IDENTITY, item.identity, strict=True)) | {
        "kernel": item.task.kernel.name,
        "busy": False,
        "median_s": summary.median_s,
        "mad_s": summary.mad_s,
        "p95_s": summary.p95_s,
        "cold_s": answer["cold_s"],
        "count": summary.count,
        "input_bytes": sum(v.item.size_bytes for v in item.task.inputs),
        "output_bytes": sum(v.item.size_bytes for v in item.task.outputs),
        "source": "measured",
    }


def _sample_rows(item: _Item, answer: dict[str, Any]) -> list[dict[str, Any]]:
    common = dict(zip(IDENTITY, item.identity, strict=True)) | {
        "kernel": item.task.kernel.name,
        "device": item.device.name,
        "busy": False,
    }
    marks = outliers(answer["samples"])
    cold = common | {"sample": -1, "duration_s": answer["cold_s"], "outlier": False, "cold": True}
    return [cold] + [
        common | {"sample": n, "duration_s": s, "outlier": bool(mark), "cold": False}
        for n, (s, mark) in enumerate(zip(answer["samples"], marks, strict=True))
    ]


def _identity(row: dict[str, Any]) -> Identity:
    return tuple(row[name] for name in IDENTITY)


def _stored(store: Store) -> dict[Identity, dict[str, Any]]:
    known: dict[Identity, dict[str, Any]] = {}
    for key in store.list("profiles"):
        folder = store.find("profiles", key)
        if folder is not None:
            table = read_table(folder / "timings.parquet", TIMINGS, remedy=REMEDY)
            known |= {_identity(row): row for row in table.filter(~pl.col("busy")).iter_rows(named=True)}
    return known


def _stored_links(store: Store, platform: Platform) -> tuple[pl.DataFrame, pl.DataFrame]:
    folder = store.find("profiles", platform.fingerprint())
    if folder is None:
        return pl.DataFrame(schema=LINKS), pl.DataFrame(schema=LINK_SAMPLES)
    return (
        read_table(folder / "links.parquet", LINKS, remedy=REMEDY),
        read_table(folder / "link_samples.parquet", LINK_SAMPLES, remedy=REMEDY),
    )


def _save(
    store: Store,
    platform: Platform,
    rows: list[dict[str, Any]],
    samples: list[dict[str, Any]],
    links: pl.DataFrame,
    link_samples: pl.DataFrame,
) -> None:
    """Replace the platform's record: its older timings, those superseded left out, and the new ones."""
    timings = pl.DataFrame(rows, TIMINGS, orient="row")
    raw = pl.DataFrame(samples, TIMING_SAMPLES, orient="row")
    key = platform.fingerprint()
    folder = store.find("profiles", key)
    if folder is not None:
        same = [name for name in IDENTITY if name not in ("variant_fingerprint", "driver")]
        before = read_table(folder / "timings.parquet", TIMINGS, remedy=REMEDY)
        raw_before = read_table(folder / "samples.parquet", TIMING_SAMPLES, remedy=REMEDY)
        timings = pl.concat([before.join(timings, on=same, how="anti"), timings])
        raw = pl.concat([raw_before.join(raw, on=same, how="anti"), raw])
    with store.new_record("profiles", key, platform=key) as target:
        timings.write_parquet(target / "timings.parquet")
        raw.write_parquet(target / "samples.parquet")
        links.write_parquet(target / "links.parquet")
        link_samples.write_parquet(target / "link_samples.parquet")


def _fingerprint(timings: pl.DataFrame, links: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for table in (timings.sort(IDENTITY), links.sort("source", "target")):
        digest.update(json.dumps(table.to_dicts(), sort_keys=True).encode())
    return digest.hexdigest()[:16]
