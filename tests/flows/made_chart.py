"""The chart of a run of any number of ops on 16 devices, made of random times."""

from types import SimpleNamespace

import numpy as np
import polars as pl

from flows.artifacts import gantt_markdown
from heterotask_core.program.model import LaneKind
from heterotask_core.report.gantt import gantt_svg
from heterotask_core.tables import TRACE

DEVICES = 16


def chart_page(n_ops):
    """Return the page of an artifact with the chart."""
    rng = np.random.default_rng(0)
    lanes = [f"n0.cpu{i}" for i in range(DEVICES)]
    lane = np.arange(n_ops) % DEVICES
    planned_s = rng.uniform(0.5e-3, 1.5e-3, n_ops)
    taken_s = planned_s * rng.uniform(0.9, 1.3, n_ops)
    columns = {"op": np.arange(n_ops), "lane": [lanes[i] for i in lane]}
    columns["kernel"] = [f"kernel{i}" for i in rng.integers(0, 6, n_ops)]
    columns["task"] = [f"task{i}" for i in range(n_ops)]
    for name, times_s in (("planned_", planned_s), ("", taken_s)):
        finish_s = np.zeros(n_ops)
        for i in range(DEVICES):
            finish_s[lane == i] = np.cumsum(times_s[lane == i])
        columns |= {f"{name}start_s": finish_s - times_s, f"{name}finish_s": finish_s}
    trace = pl.DataFrame(columns).with_columns(repeat=pl.lit(0), origin=pl.lit("measured"), kind=pl.lit("kernel"))
    empty = [pl.lit(None).alias(name) for name in TRACE if name not in trace.columns]
    trace = trace.with_columns(empty).select(*TRACE).cast(TRACE)
    program = SimpleNamespace(lane_names=lanes, lane_kinds=[LaneKind.COMPUTE] * DEVICES)
    return gantt_markdown("made", gantt_svg(program, trace, title=f"{n_ops:,} tasks").encode())
