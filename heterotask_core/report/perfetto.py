"""Trace → Chrome trace JSON, which ui.perfetto.dev opens: a process a node, a track a lane, arrows for transfers."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from heterotask_core.program.model import LaneKind, OpKind, Program


def perfetto_json(program: Program, trace: pl.DataFrame) -> str:
    """Return the JSON text of one repeat (schema ``tables.TRACE``); times in µs."""
    nodes = list(dict.fromkeys(r.node for r in program.ranks))
    track = {name: k + 1 for k, name in enumerate(program.lane_names)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": nodes.index(n) + 1, "name": "process_name", "args": {"name": n}} for n in nodes
    ]
    lane_node = {}
    for name, kind, rank in zip(program.lane_names, program.lane_kinds, program.lane_rank, strict=True):
        if kind != LaneKind.CAPACITY:
            lane_node[name] = nodes.index(program.ranks[rank].node) + 1
            events.append(
                {"ph": "M", "pid": lane_node[name], "tid": track[name], "name": "thread_name", "args": {"name": name}}
            )
    at: dict[int, tuple[int, int, float, float]] = {}
    for row in trace.iter_rows(named=True):
        pid, tid = lane_node[row["lane"]], track[row["lane"]]
        start, finish = row["start_s"] * 1e6, row["finish_s"] * 1e6
        at[row["op"]] = (pid, tid, start, finish)
        events.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": start,
                "dur": max(finish - start, 0.0),
                "cat": row["kind"],
                "name": row["task"] or row["data"] or row["kind"],
                "args": {k: row[k] for k in ("op", "kernel", "variant", "size_bytes", "planned_start_s") if row[k]},
            }
        )
    flow = 0
    for op in range(program.n_ops):
        if program.op_kind[op] == OpKind.KERNEL or op not in at:
            continue
        users = [i for i in at if op in program.dep_ops[program.dep_ptr[i] : program.dep_ptr[i + 1]]]
        for user in users[:8]:
            flow += 1
            (pid, tid, _, finish), (to_pid, to_tid, start, _) = at[op], at[user]
            shared = {"cat": "transfer", "name": "data", "id": flow}
            events.append({"ph": "s", "pid": pid, "tid": tid, "ts": finish, **shared})
            events.append({"ph": "f", "bp": "e", "pid": to_pid, "tid": to_tid, "ts": max(start, finish), **shared})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
