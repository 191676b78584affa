"""Profiles in the store: one record a platform; timings are shared by all platforms with devices of that model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.platform.model import Platform
from heterotask_core.profiling.items import ANY_FOOTPRINT, IDENTITY, Identity
from heterotask_core.store import Store
from heterotask_core.tables import (
    BUSY,
    LINK_SAMPLES,
    LINKS,
    PAIRS,
    TIMING_SAMPLES,
    TIMINGS,
    Schema,
    read_table,
    write_table,
)

REMEDY = "delete its folder and run `heterotask profile` again"

FILES: Mapping[str, tuple[str, Schema]] = {
    "timings": ("timings.parquet", TIMINGS),
    "samples": ("samples.parquet", TIMING_SAMPLES),
    "links": ("links.parquet", LINKS),
    "link_samples": ("link_samples.parquet", LINK_SAMPLES),
    "busy": ("busy.parquet", BUSY),
    "pairs": ("pairs.parquet", PAIRS),
}


@dataclass
class Record:
    """The tables of one platform's profile."""

    timings: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIMINGS))
    samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIMING_SAMPLES))
    links: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINKS))
    link_samples: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINK_SAMPLES))
    busy: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BUSY))
    pairs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PAIRS))

    def add(self, name: str, rows: pl.DataFrame, same: Sequence[str]) -> None:
        """Append rows to a table; older ones with equal values in the columns ``same`` are superseded."""
        before: pl.DataFrame = getattr(self, name)
        setattr(self, name, pl.concat([before.join(rows, on=same, how="anti", nulls_equal=True), rows]))


SUPERSEDED_BY = [name for name in IDENTITY if name not in ("variant_fingerprint", "driver")]
"""Of a variant on a device only the newest source and driver count."""


def read_record(folder: Path) -> Record:
    """Read a platform's profile; raises :class:`~heterotask_core.errors.StoreError` naming a damaged file."""
    return Record(**{name: read_table(folder / file, schema, remedy=REMEDY) for name, (file, schema) in FILES.items()})


def platform_record(store: Store, platform: Platform) -> Record:
    """Return the platform's own record, empty if there is none."""
    folder = store.find("profiles", platform.fingerprint())
    return Record() if folder is None else read_record(folder)


def known_timings(store: Store, wanted: Iterable[Identity] = ()) -> dict[Identity, dict[str, Any]]:
    """Return all timings of the store by identity; of equal ones the record started last counts.

    For a ``wanted`` one a time that was given for any footprint counts first, then one of its own footprint, then one
    of a version that knew no footprints.
    """
    known: dict[Identity, dict[str, Any]] = {}
    for key in store.list("profiles"):
        folder = store.find("profiles", key)
        if folder is not None:
            table = read_table(folder / FILES["timings"][0], TIMINGS, remedy=REMEDY)
            known |= {row_identity(row): row for row in table.iter_rows(named=True)}
    for identity in wanted:
        general = known.get((*identity[:-1], ANY_FOOTPRINT))
        if general is not None and (general["source"] == "given" or identity not in known):
            known[identity] = general
    return known


def row_identity(row: Mapping[str, Any]) -> Identity:
    """Return the identity of a row of a timing table."""
    return tuple(row[name] for name in IDENTITY)


def save_record(store: Store, platform: Platform, record: Record) -> None:
    """Replace the platform's record."""
    key = platform.fingerprint()
    models = sorted({d.model for d in platform.devices})
    with store.new_record("profiles", key, platform=key, devices=models) as target:
        for name, (file, _) in FILES.items():
            write_table(getattr(record, name), target / file)


def fingerprint(timings: pl.DataFrame, links: pl.DataFrame, busy: pl.DataFrame, pairs: pl.DataFrame) -> str:
    """Return a hash of all numbers that planning uses: equal profiles give equal plans."""
    digest = hashlib.sha256()
    for table in (
        timings.sort(IDENTITY),
        links.sort("source", "target"),
        busy.sort([*IDENTITY, "device"]),
        pairs.sort("first", "second"),
    ):
        digest.update(json.dumps(table.to_dicts(), sort_keys=True).encode())
    return digest.hexdigest()[:16]
