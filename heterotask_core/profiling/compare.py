"""Two profiles side by side: what became faster or slower by more than its spread, what is new or gone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import ProfileError
from heterotask_core.profiling.items import ANY_FOOTPRINT
from heterotask_core.profiling.records import FILES, read_record
from heterotask_core.profiling.samples import MAD_TO_SIGMA
from heterotask_core.store import MARKER, Store

NOTABLE = 0.02
"""Smaller changes of a median are none."""
SIGMAS = 3.0

KEY = ("class_key", "kernel", "variant", "device_kind", "device_model", "cores", "footprint_bytes")


@dataclass(frozen=True)
class Change:
    """A timing in two profiles; ``ratio`` is new / old, and ``verdict`` slower, faster, same, new or gone."""

    kernel: str
    variant: str
    device_model: str
    class_key: str
    old_s: float
    new_s: float
    ratio: float
    verdict: str
    why: str
    """What else differs: source, driver."""


def load_profile(folder: Path) -> pl.DataFrame:
    """Return the timings of a record folder, or of all records of a store.

    Raises :class:`ProfileError` where there is neither, :class:`~heterotask_core.errors.StoreError` for damaged files.
    """
    if (folder / FILES["timings"][0]).is_file():
        return read_record(folder).timings
    if (folder / MARKER).is_file():
        store = Store(folder)
        found = [store.find("profiles", key) for key in store.list("profiles")]
        tables = [read_record(path).timings for path in found if path is not None]
        if tables:
            return pl.concat(tables).unique(KEY, keep="last", maintain_order=True)
    raise ProfileError(f"{folder} holds no profile; give a store, or a folder below its profiles/")


def compare(old: pl.DataFrame, new: pl.DataFrame) -> list[Change]:
    """Return the changes, largest ratio first; a time for any footprint is compared with all of its class.

    Raises :class:`ProfileError` for profiles of different devices.
    """
    models = [set(table["device_model"]) for table in (old, new)]
    if not models[0] & models[1]:
        raise ProfileError(
            f"the profiles are of different devices ({', '.join(sorted(models[0]))}; {', '.join(sorted(models[1]))}), "
            "so their times say nothing about a change; compare profiles of one machine"
        )
    rows = [{tuple(r[k] for k in KEY): r for r in t.iter_rows(named=True)} for t in (old, new)]
    keys = {**rows[0], **rows[1]}
    on_footprint = {key[:-1] for key in keys if key[-1] != ANY_FOOTPRINT}
    pairs = [
        [found.get(key, found.get((*key[:-1], ANY_FOOTPRINT))) for found in rows]
        for key in keys
        if key[-1] != ANY_FOOTPRINT or key[:-1] not in on_footprint
    ]
    changes = [_change(old, new) for old, new in pairs]
    return sorted(changes, key=lambda c: (-abs(math.log(c.ratio)) if c.ratio > 0.0 else 0.0, c.kernel, c.variant))


def _change(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change:
    row = new if new is not None else old
    assert row is not None
    names = (row["kernel"], row["variant"], row["device_model"], row["class_key"])
    if old is None or new is None:
        old_s = math.nan if old is None else float(old["median_s"])
        new_s = math.nan if new is None else float(new["median_s"])
        return Change(*names, old_s, new_s, math.nan, "new" if old is None else "gone", "")
    sigma = MAD_TO_SIGMA * math.hypot(old["mad_s"], new["mad_s"])
    difference = new["median_s"] - old["median_s"]
    verdict = "same"
    if abs(difference) > max(SIGMAS * sigma, NOTABLE * old["median_s"]):
        verdict = "slower" if difference > 0.0 else "faster"
    differs = {"variant_fingerprint": "source or packages", "driver": "driver", "source": "origin"}
    why = ", ".join(text for column, text in differs.items() if old[column] != new[column])
    return Change(*names, old["median_s"], new["median_s"], new["median_s"] / old["median_s"], verdict, why)
