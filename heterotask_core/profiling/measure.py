"""Profile a graph on a platform: time what the store lacks or holds stale, and return all that planning needs.

Each (task class, variant, device model) is timed in a child process that is pinned like the rank that will run it,
on inputs that the graph itself made. Timings are shared by all platforms with devices of that model; links, and what
devices do to each other when all are busy, belong to one platform.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import ProfileError, StoreError
from heterotask_core.graph import TaskGraph
from heterotask_core.platform.model import Device, Platform
from heterotask_core.profiling.busy import Window, lacking_windows, measure_busy, plan_windows, representatives
from heterotask_core.profiling.capture import capture_inputs
from heterotask_core.profiling.items import (
    ANY_FOOTPRINT,
    IDENTITY,
    Identity,
    Item,
    device_job,
    job_item,
    wanted_items,
)
from heterotask_core.profiling.links import Samples, link_sizes, link_tables, measure_network, pair_row
from heterotask_core.profiling.process import Child, EndedError, HangingError
from heterotask_core.profiling.records import (
    SUPERSEDED_BY,
    Record,
    fingerprint,
    known_timings,
    platform_record,
    row_identity,
    save_record,
)
from heterotask_core.profiling.samples import outliers, summarise
from heterotask_core.scratch import scratch_folder
from heterotask_core.store import Store
from heterotask_core.tables import BUSY, PAIRS, TIMING_SAMPLES, TIMINGS

KERNEL_LIMIT_S = 120.0
"""A kernel that gives no sample within this time is taken for hanging."""
NOTABLE = 0.1
"""Share of disturbed samples from which a profile comes with a note."""
EXTENSION = 2.0
"""By how much other load may stretch the time budget."""
WINDOWS_SHARE = 0.2
"""Of the stretched budget, what is kept for the windows in which all devices compute."""
START_LIMIT_S = 120.0
"""Start of a child, opening of its device, and each copy."""

Progress = Callable[[int, int], None]


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
    """Hash of all numbers: equal profiles give equal plans."""
    busy: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BUSY))
    """What devices that compute at the same time do to each other (schema BUSY)."""
    pairs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PAIRS))
    """Lanes of a device used two at once (schema PAIRS)."""
    notes: tuple[str, ...] = ()
    """What a user should know: equal devices that are not equally fast."""


def profile(
    graph: TaskGraph,
    platform: Platform,
    store: Store,
    *,
    budget_s: float = 20.0,
    kernel_limit_s: float = KERNEL_LIMIT_S,
    again: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Return the profile, measuring about ``budget_s`` seconds at most, twice that where other load disturbs.

    ``again``: measure what the store has too, but for times that were given to it.

    What starts and compiles counts: when time runs out, what is left gets a quarter of its share, or four calls.
    ``progress`` is called with (timings taken, timings to take). What was measured is kept even if a later
    timing fails. Raises :class:`ProfileError` naming kernel, variant and device of what failed, or gave no sample
    within ``kernel_limit_s``.
    """
    wanted = wanted_items(graph, platform)
    known = known_timings(store, wanted)
    record = platform_record(store, platform)
    if again:
        known = {i: row for i, row in known.items() if i not in wanted or row["source"] == "given"}
        record.links = record.links.clear()
        # Rows on other footprints belong to other graphs.
        stale = wanted.keys() | {(*identity[:-1], ANY_FOOTPRINT) for identity in wanted}
        record.busy = pl.DataFrame([r for r in record.busy.to_dicts() if row_identity(r) not in stale], BUSY)
    missing = [i for i in wanted.values() if i.identity not in known and i.device.kind != "emulated"]
    lacking = {(x.source, x.target) for x in platform.links} - set(record.links.select("source", "target").iter_rows())
    work = _Work(graph, platform, wanted, record, known, budget_s, kernel_limit_s, progress)
    if missing or lacking or work.windows():
        store.prepare()
        place = _scratch_place(graph)
        try:
            with scratch_folder(place) as folder:
                work.run(folder, missing, lacking)
        except OSError as error:
            # NumPy tells a short write without a number.
            if isinstance(error, StoreError) or error.errno not in (None, errno.ENOSPC, errno.EDQUOT):
                raise
            raise ProfileError(
                f"{place or tempfile.gettempdir()} has no room for the inputs of the kernels to be timed; free space "
                "there, or set TMPDIR to a larger folder"
            ) from error
        save_record(store, platform, record)
        if work.errors:
            more = f" (and {len(work.errors) - 3} more)" if len(work.errors) > 3 else ""
            raise ProfileError("; ".join(work.errors[:3]) + more)
    timings = pl.DataFrame([known[i] for i in wanted if i in known], TIMINGS, orient="row")
    digest = fingerprint(timings, record.links, record.busy, record.pairs)
    return Profile(
        timings,
        record.links,
        len(missing),
        len(timings) - len(missing),
        digest,
        busy=record.busy,
        pairs=record.pairs,
        notes=work.notes,
    )


def stored_profile(graph: TaskGraph, platform: Platform, store: Store) -> tuple[Profile, list[str]]:
    """Return what the store knows for ``graph`` on ``platform``, and what is missing in words; measures nothing."""
    wanted = wanted_items(graph, platform)
    known = known_timings(store, wanted)
    record = platform_record(store, platform)
    timings = pl.DataFrame([known[i] for i in wanted if i in known], TIMINGS, orient="row")
    digest = fingerprint(timings, record.links, record.busy, record.pairs)
    missing = [
        f"{i.task.kernel.name}/{i.variant.name} on {i.device.model} (task {i.task.name})"
        for i in wanted.values()
        if i.identity not in known
    ]
    have = Profile(timings, record.links, 0, len(timings), digest, busy=record.busy, pairs=record.pairs)
    return have, missing


class _Work:
    """One measuring session: what it finds goes into the record and the known timings."""

    def __init__(
        self,
        graph: TaskGraph,
        platform: Platform,
        wanted: Mapping[Identity, Item],
        record: Record,
        known: dict[Identity, dict[str, Any]],
        budget_s: float,
        kernel_limit_s: float,
        progress: Progress | None,
    ) -> None:
        self.graph, self.platform, self.wanted, self.record, self.known = graph, platform, wanted, record, known
        self.budget_s, self.kernel_limit_s, self.progress = budget_s, kernel_limit_s, progress
        self.files: dict[tuple[int, str, int], Path] = {}
        self.errors: list[str] = []
        self.notes: tuple[str, ...] = ()
        self._total = self._done = 0
        self._end_s = 0.0
        """When the budget, stretched, is spent (CLOCK_MONOTONIC)."""
        self._samples = [0, 0]
        """Disturbed samples, all samples."""

    def windows(self) -> list[Window]:
        """The windows that the record lacks, as far as the timings known now tell."""
        rows = self.record.busy.select([*IDENTITY, "device"]).iter_rows()
        return lacking_windows(plan_windows(self.graph, self.platform, self.wanted, self.known), set(rows))

    def run(self, folder: Path, missing: list[Item], lacking: set[tuple[str, str]]) -> None:
        self._total = len(missing)
        self._end_s = time.monotonic() + EXTENSION * self.budget_s
        companions = self._companions(lacking)
        tasks = [i.task for i in missing] + [i.task for i in companions.values()]
        self.files = capture_inputs(self.graph, [*tasks, *representatives(self.graph).values()], folder)
        measured: dict[tuple[str, str], Samples] = {}
        pairs: list[dict[str, Any]] = []
        if lacking & {(x.source, x.target) for x in self.platform.links if x.kind == "network"}:
            samples, both = measure_network(self.platform, folder)
            measured |= {ends: s for ends, s in samples.items() if ends in lacking}
            pairs += both
        rows: list[dict[str, Any]] = []
        raw: list[dict[str, Any]] = []
        for device in self.platform.devices:
            items = [i for i in missing if i.device is device]
            ends = {"in": (device.node, device.memory), "out": (device.memory, device.node)}
            sizes = (
                link_sizes(device, self.platform) if device.kind != "emulated" and lacking & set(ends.values()) else ()
            )
            companion = companions.get(device.name) if sizes else None
            while items or sizes:
                items, sizes = self._on_device(
                    device, items, companion, sizes, folder, rows=rows, raw=raw, links=measured, pairs=pairs, ends=ends
                )
        links, link_samples = link_tables(self.platform.links, measured)
        self.record.add("timings", pl.DataFrame(rows, TIMINGS, orient="row"), SUPERSEDED_BY)
        self.record.add("samples", pl.DataFrame(raw, TIMING_SAMPLES, orient="row"), SUPERSEDED_BY)
        self.record.add("links", links, ["source", "target"])
        self.record.add("link_samples", link_samples, ["source", "target"])
        self.record.add("pairs", pl.DataFrame(pairs, PAIRS, orient="row"), ["first", "second"])
        self.known |= {row_identity(row): row for row in rows}
        if self._samples[0] > NOTABLE * self._samples[1]:
            self.notes = (
                f"{self._samples[0]} of {self._samples[1]} samples were disturbed: something else computed on the "
                "same cores (marked, and left out where enough others remained); use `heterotask profile --again` on a "
                "quiet machine",
            )
        windows = self.windows()
        if windows and not self.errors:
            try:
                busy, notes = measure_busy(
                    windows,
                    self.known,
                    self.platform,
                    self.files,
                    folder,
                    limit_s=self.kernel_limit_s,
                    end_s=self._end_s,
                )
            except ProfileError as error:
                self.errors.append(str(error))
            else:
                self.notes += notes
                self.record.add("busy", pl.DataFrame(busy, BUSY, orient="row"), [*SUPERSEDED_BY, "device"])

    def _companions(self, lacking: set[tuple[str, str]]) -> dict[str, Item]:
        """Device → what it computes beside copies: a kernel that only reads and writes, with the largest arrays."""
        found: dict[str, Item] = {}
        for device in self.platform.devices:
            if {(device.node, device.memory), (device.memory, device.node)} & lacking:
                fits = [
                    i
                    for i in self.wanted.values()
                    if i.device is device
                    and not i.task.kernel.updates
                    and not i.task.kernel.sink
                    and not i.variant.on_host
                ]
                if fits:
                    found[device.name] = max(fits, key=lambda i: i.size_bytes)
        return found

    def _on_device(
        self,
        device: Device,
        items: list[Item],
        companion: Item | None,
        sizes: tuple[int, ...],
        folder: Path,
        *,
        rows: list[dict[str, Any]],
        raw: list[dict[str, Any]],
        links: dict[tuple[str, str], Samples],
        pairs: list[dict[str, Any]],
        ends: dict[str, tuple[str, str]],
    ) -> tuple[list[Item], tuple[int, ...]]:
        """Run one child; return the items and link sizes left for another one because a kernel hung or crashed."""
        described = [job_item(i, self.files) for i in items]
        if companion is not None:
            described.append(job_item(companion, self.files, companion=True))
        job = device_job(device, described, folder) | {
            "slice_s": self.budget_s / max(1, self._total),
            "end_s": self._end_s - WINDOWS_SHARE * EXTENSION * self.budget_s,
            "items_after": self._total - self._done - len(items),
            "link_sizes_bytes": sizes,
        }
        started = -1
        over: set[int] = set()
        names = {"compute": device.name, "in": "→".join(ends["in"]), "out": "→".join(ends["out"])}
        with closing(Child(job, device, folder)) as child:
            limit_s = START_LIMIT_S
            while True:
                try:
                    answer = child.answer(limit_s)
                except (HangingError, EndedError) as error:
                    if started < 0:
                        # Not a kernel's fault: the device cannot be opened, or copies fail.
                        self.errors.append(str(error))
                        return [], ()
                    self._failed(items[started], str(error))
                    return [i for n, i in enumerate(items) if n not in {*over, started}], sizes
                if answer is None:
                    return [], ()
                if "started" in answer:
                    started, limit_s = answer["started"], self.kernel_limit_s
                elif "item" in answer:
                    started, limit_s = -1, START_LIMIT_S
                    item = items[answer["item"]]
                    over.add(answer["item"])
                    if "error" in answer:
                        self._failed(item, answer["error"])
                        continue
                    self._samples[0] += sum(answer["disturbed"])
                    self._samples[1] += len(answer["disturbed"])
                    rows.append(_row(item, answer))
                    raw += _sample_rows(item, answer)
                    self._advance()
                elif "link" in answer:
                    links.setdefault(ends[answer["link"]], {})[answer["size_bytes"]] = answer["samples"]
                else:
                    first, second = (names[name] for name in answer["pair"])
                    pairs.append(pair_row(first, second, answer["first_s"], answer["second_s"], answer["together_s"]))

    def _failed(self, item: Item, reason: str) -> None:
        self.errors.append(f"{item.describe()}: {reason}")
        self._advance()

    def _advance(self) -> None:
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, self._total)


def _scratch_place(graph: TaskGraph) -> Path | None:
    """Return /dev/shm if the graph's data would leave half of it free, else None for the usual temporary folder."""
    size_bytes = sum(item.size_bytes for item in graph.items)
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and shutil.disk_usage(shared).free > 2 * size_bytes else None


def _row(item: Item, answer: dict[str, Any]) -> dict[str, Any]:
    summary = summarise(undisturbed(answer))
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


def _sample_rows(item: Item, answer: dict[str, Any]) -> list[dict[str, Any]]:
    common = dict(zip(IDENTITY, item.identity, strict=True)) | {
        "kernel": item.task.kernel.name,
        "device": item.device.name,
        "busy": False,
    }
    kept = undisturbed(answer)
    # Among samples in the same state: those disturbed would hide how far off others are.
    limit_s = max(s for s, out in zip(kept, outliers(kept), strict=True) if not out)
    cold = common | {"sample": -1, "duration_s": answer["cold_s"], "outlier": False, "disturbed": False, "cold": True}
    return [cold] + [
        common | {"sample": n, "duration_s": s, "outlier": s > limit_s, "disturbed": bad, "cold": False}
        for n, (s, bad) in enumerate(zip(answer["samples"], answer["disturbed"], strict=True))
    ]


def undisturbed(answer: Mapping[str, Any]) -> list[float]:
    """Return the samples that count: those without other load, or all where there are fewer than three."""
    kept = [s for s, bad in zip(answer["samples"], answer["disturbed"], strict=True) if not bad]
    return kept if len(kept) >= 3 else list(answer["samples"])
