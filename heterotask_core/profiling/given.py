"""Times that a user hands in: CSV or Parquet, checked against application and platform before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import ProfileError
from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.platform.model import Platform
from heterotask_core.profiling.items import ANY_FOOTPRINT, IDENTITY, Identity, Item, wanted_items
from heterotask_core.profiling.records import SUPERSEDED_BY, platform_record, save_record
from heterotask_core.store import Store
from heterotask_core.tables import ADDED, TIMINGS, check_table, complete

REQUIRED = ("kernel", "variant", "device_kind", "median_s")
OPTIONAL = ("task", "device_model", "mad_s")


def import_timings(path: Path, graph: TaskGraph, platform: Platform, store: Store) -> int:
    """Keep the times in ``path`` as timings with source "given", in place of measured ones; return how many classes.

    A file has the columns ``REQUIRED`` and may have ``OPTIONAL``: a row counts for all classes of the kernel, with
    ``task`` only for the class of that task; without ``device_model`` for all models of the kind. Or it is the
    ``timings.parquet`` of another store, of which what fits the application is taken.

    Raises :class:`ProfileError` naming file, row and value for a damaged file, other columns, times that are not
    above 0, unknown kernels or variants, and devices that are not here. Nothing is stored then.
    """
    table = _read(path)
    wanted = wanted_items(graph, platform)
    if {*table.columns, *ADDED} == set(TIMINGS):
        rows = _whole(path, check_table(complete(table, TIMINGS), TIMINGS, what=str(path)), wanted, platform)
    else:
        rows = _listed(path, table, wanted, graph, platform)
    record = platform_record(store, platform)
    same = [name for name in SUPERSEDED_BY if name != "footprint_bytes"]
    record.add("timings", pl.DataFrame(list(rows.values()), TIMINGS, orient="row"), same)
    save_record(store, platform, record)
    return len(rows)


def _read(path: Path) -> pl.DataFrame:
    if path.suffix not in (".csv", ".parquet"):
        raise ProfileError(f"{path}: times are read from .csv or .parquet; name the file accordingly")
    try:
        return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except FileNotFoundError:
        raise ProfileError(f"{path} does not exist; give a CSV or Parquet file with times") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ProfileError(
            f"{path} is damaged or not a {path.suffix[1:].upper()} file ({reason}); export it again"
        ) from None


def _whole(
    path: Path, table: pl.DataFrame, wanted: Mapping[Identity, Item], platform: Platform
) -> dict[Identity, dict[str, Any]]:
    here = {d.model for d in platform.devices}
    foreign = sorted(set(table["device_model"]) - here)
    if foreign and not here & set(table["device_model"]):
        raise ProfileError(
            f"{path} is a profile of another device ({', '.join(foreign)}); here is {', '.join(sorted(here))}; "
            "measure here, or hand in a file with the columns " + ", ".join(REQUIRED)
        )
    classes = {identity[:-1] for identity in wanted}
    rows: dict[Identity, dict[str, Any]] = {}
    for number, row in enumerate(table.iter_rows(named=True), 1):
        _check_time(path, number, "median_s", row["median_s"])
        identity: Identity = tuple(row[name] for name in IDENTITY)
        general = (*identity[:-1], ANY_FOOTPRINT)
        # Of several footprints that of this application's graph; any of them is better than none.
        if identity in wanted or (identity[:-1] in classes and general not in rows):
            rows[general] = row | {"source": "given", "footprint_bytes": ANY_FOOTPRINT}
    if not rows:
        raise ProfileError(
            f"{path} holds no timing that this application needs here: kernels, sources, packages, driver or "
            "parameters differ; profile again"
        )
    return rows


def _listed(
    path: Path, table: pl.DataFrame, wanted: Mapping[Identity, Item], graph: TaskGraph, platform: Platform
) -> dict[Identity, dict[str, Any]]:
    lacking = [name for name in REQUIRED if name not in table.columns]
    unknown = [name for name in table.columns if name not in (*REQUIRED, *OPTIONAL)]
    if lacking or unknown:
        raise ProfileError(
            f"{path}: columns {', '.join(lacking) or 'none'} are missing and {', '.join(unknown) or 'none'} unknown; "
            f"it must have {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}"
        )
    keys = {item.task.name: item.identity[0] for item in wanted.values()}
    rows: dict[Identity, dict[str, Any]] = {}
    for number, row in enumerate(table.iter_rows(named=True), 1):
        median_s = _check_time(path, number, "median_s", row["median_s"])
        mad_s = 0.0 if row.get("mad_s") is None else _number(row["mad_s"])
        if mad_s is None or not 0.0 <= mad_s < math.inf:
            raise ProfileError(f"{path}, row {number}: mad_s is {row['mad_s']!r}; it must be seconds, 0 or more")
        fits = {
            identity: item
            for identity, item in wanted.items()
            if item.task.kernel.name == row["kernel"]
            and identity[1] == row["variant"]
            and identity[3] == row["device_kind"]
            and row.get("device_model") in (None, identity[4])
        }
        if not fits:
            raise ProfileError(f"{path}, row {number}: {_why_not(row, wanted, platform)}")
        if row.get("task") is not None:
            key = keys.get(row["task"]) or _class_of(graph, row["task"])
            fits = {identity: item for identity, item in fits.items() if identity[0] == key}
            if not fits:
                raise ProfileError(f"{path}, row {number}: {row['task']!r} is no task of kernel {row['kernel']!r}")
        for identity, item in fits.items():
            general = (*identity[:-1], ANY_FOOTPRINT)
            rows[general] = dict(zip(IDENTITY, general, strict=True)) | {
                "kernel": row["kernel"],
                "busy": False,
                "median_s": median_s,
                "mad_s": mad_s,
                "p95_s": median_s,
                "cold_s": math.nan,
                "count": 0,
                "input_bytes": sum(v.item.size_bytes for v in item.task.inputs),
                "output_bytes": sum(v.item.size_bytes for v in item.task.outputs),
                "source": "given",
            }
    return rows


def _class_of(graph: TaskGraph, name: str) -> str:
    return next((class_key(t) for t in graph if t.name == name), "")


def _why_not(row: Mapping[str, Any], wanted: Mapping[Identity, Item], platform: Platform) -> str:
    kernels = sorted({i.task.kernel.name for i in wanted.values()})
    if row["kernel"] not in kernels:
        return f"no kernel {row['kernel']!r} in this application; it has {', '.join(kernels)}"
    kinds = sorted({d.variant_kind for d in platform.devices})
    if row["device_kind"] not in kinds:
        return f"no device of kind {row['device_kind']!r} here, only {', '.join(kinds)}; see --devices"
    models = sorted({d.model for d in platform.devices if d.variant_kind == row["device_kind"]})
    if row.get("device_model") not in (None, *models):
        return f"device model {row['device_model']!r} is not here; there is {', '.join(models)}"
    variants = sorted({i.variant.name for i in wanted.values() if i.task.kernel.name == row["kernel"]})
    return (
        f"kernel {row['kernel']!r} has no variant {row['variant']!r} for {row['device_kind']}; "
        f"it has {', '.join(variants)}"
    )


def _check_time(path: Path, number: int, column: str, value: Any) -> float:
    seconds = _number(value)
    if seconds is None or not 0.0 < seconds < math.inf:
        raise ProfileError(f"{path}, row {number}: {column} is {value!r}; it must be seconds above 0")
    return seconds


def _number(value: Any) -> float | None:
    # One bad cell makes a CSV column one of strings.
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
