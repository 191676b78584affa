"""Schemas of every table that goes between stages or to disk, and the checked reader.

Times are float seconds, sizes bytes. Tables are Parquet on disk; :func:`read_table` refuses a file whose
columns or types are others.
"""

from __future__ import annotations

import signal
from pathlib import Path

import polars as pl

from heterotask_core.errors import StoreError

# Importing Polars makes Ctrl-C wait until the child process that Python waits for has ended.
signal.siginterrupt(signal.SIGINT, True)

Schema = dict[str, pl.DataType | type[pl.DataType]]

ORIGINS = ("measured", "emulated", "virtual", "simulated")
"""Where a trace comes from; numbers of different origins are never mixed."""

TIMING_SAMPLES: Schema = {
    "class_key": pl.String,
    "kernel": pl.String,
    "variant": pl.String,
    "variant_fingerprint": pl.String,
    "device_kind": pl.String,
    "device_model": pl.String,
    "device": pl.String,
    "driver": pl.String,
    "cores": pl.Int32,
    "footprint_bytes": pl.Int64,
    "busy": pl.Boolean,
    "sample": pl.Int32,
    "duration_s": pl.Float64,
    "outlier": pl.Boolean,
    "disturbed": pl.Boolean,
    "cold": pl.Boolean,
}
"""Raw samples; ``cold``: the first call (JIT, load, cache); ``outlier`` and ``disturbed`` (something else computed on
the cores meanwhile): kept, but in no statistic. ``busy`` is false: see BUSY for times while all workers compute."""

TIMINGS: Schema = {
    "class_key": pl.String,
    "kernel": pl.String,
    "variant": pl.String,
    "variant_fingerprint": pl.String,
    "device_kind": pl.String,
    "device_model": pl.String,
    "driver": pl.String,
    "cores": pl.Int32,
    "footprint_bytes": pl.Int64,
    "busy": pl.Boolean,
    "median_s": pl.Float64,
    "mad_s": pl.Float64,
    "p95_s": pl.Float64,
    "cold_s": pl.Float64,
    "count": pl.Int32,
    "input_bytes": pl.Int64,
    "output_bytes": pl.Int64,
    "source": pl.String,
}
"""One row a (class, variant, device model, footprint); ``source``: "measured", "given" or "predicted";
``footprint_bytes``: what the arrays rotated through, 0 where a timing counts for any footprint."""

BUSY: Schema = {
    "class_key": pl.String,
    "kernel": pl.String,
    "variant": pl.String,
    "variant_fingerprint": pl.String,
    "device_kind": pl.String,
    "device_model": pl.String,
    "driver": pl.String,
    "cores": pl.Int32,
    "footprint_bytes": pl.Int64,
    "device": pl.String,
    "alone_s": pl.Float64,
    "busy_s": pl.Float64,
    "mad_s": pl.Float64,
    "scale": pl.Float64,
    "count": pl.Int32,
    "bytes": pl.Int64,
}
"""One row a (class, variant, device): its median while all devices of the host compute, beside the one alone.
``scale``: by how much the others slow it down, at least 1; ``bytes``: what a task of the class reads and writes."""

PAIRS: Schema = {
    "first": pl.String,
    "second": pl.String,
    "first_s": pl.Float64,
    "second_s": pl.Float64,
    "together_s": pl.Float64,
    "overlap": pl.Float64,
}
"""Two lanes of a device used at once: "compute", or source→target of a link. ``overlap`` is the share of the shorter
one that ran beside the longer one: 1 side by side, 0 one after the other."""

LINK_SAMPLES: Schema = {
    "source": pl.String,
    "target": pl.String,
    "kind": pl.String,
    "size_bytes": pl.Int64,
    "sample": pl.Int32,
    "duration_s": pl.Float64,
}

LINKS: Schema = {
    "source": pl.String,
    "target": pl.String,
    "kind": pl.String,
    "latency_s": pl.Float64,
    "bandwidth_bytes_per_s": pl.Float64,
    "residual": pl.Float64,
    "count": pl.Int32,
}
"""Fitted latency and bandwidth of a link; ``residual`` is the relative RMS error of the fit."""

TRACE: Schema = {
    "op": pl.Int32,
    "repeat": pl.Int32,
    "kind": pl.String,
    "task": pl.String,
    "kernel": pl.String,
    "variant": pl.String,
    "data": pl.String,
    "rank": pl.Int32,
    "node": pl.String,
    "device": pl.String,
    "lane": pl.String,
    "source": pl.String,
    "target": pl.String,
    "size_bytes": pl.Int64,
    "planned_start_s": pl.Float64,
    "planned_finish_s": pl.Float64,
    "ready_s": pl.Float64,
    "start_s": pl.Float64,
    "finish_s": pl.Float64,
    "waited_for": pl.Int32,
    "why": pl.String,
    "origin": pl.String,
}
"""One row an op and repeat, keyed by op: simulated and executed traces join. ``kind`` is kernel, copy or
transfer; ``ready_s`` is the latest finish of the op's dependencies and of the previous op of its lanes;
``waited_for`` is that op (−1: none) and ``why`` its part: data, reuse (of a buffer), lane, or capacity (a shared bus,
not in measured traces). ``lane`` is its first issue lane; times count from the first task's start of that repeat."""


ADDED: dict[str, int] = {"footprint_bytes": 0}
"""Columns that tables of older versions lack, and the value that means what those versions did."""


def complete(table: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Return ``table`` with the columns of ``schema`` that an older version did not write, in its order."""
    lacking = [name for name in ADDED if name in schema and name not in table.columns]
    filled = table.with_columns(pl.lit(ADDED[name], schema[name]).alias(name) for name in lacking)
    return filled.select(list(schema)) if set(filled.columns) == set(schema) else filled


def check_table(table: pl.DataFrame, schema: Schema, *, what: str) -> pl.DataFrame:
    """Return ``table`` if it has exactly the columns and types of ``schema``; raises :class:`StoreError`."""
    expected = {name: str(dtype() if isinstance(dtype, type) else dtype) for name, dtype in schema.items()}
    found = {name: str(dtype) for name, dtype in table.schema.items()}
    if expected != found:
        wrong = sorted(set(expected.items()) ^ set(found.items()))
        raise StoreError(f"{what}: columns differ from the schema at {wrong[:4]}; delete it and profile or run again")
    return table


def read_table(path: Path, schema: Schema, *, remedy: str) -> pl.DataFrame:
    """Read a Parquet table and check its schema.

    Raises :class:`StoreError` naming the file and ``remedy`` when it is missing, damaged or foreign.
    """
    try:
        table = pl.read_parquet(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path} does not exist; {remedy}") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        raise StoreError(f"{path} is damaged or not a Parquet file ({error}); {remedy}") from error
    return check_table(complete(table, schema), schema, what=str(path))


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a Parquet table, whole or not at all; raises :class:`StoreError` naming the file when it cannot be."""
    try:
        table.write_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        path.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written ({error}); free space there, or choose another --store") from error
