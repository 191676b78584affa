"""Trace → Chrome trace JSON, which ui.perfetto.dev opens: a process a node, a track a lane, arrows for data that move.

Waits are slices of their own in front of the op that waits; a network transfer lies on the tracks of both ends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import polars as pl

from heterotask_core.program.model import DependencyKind, LaneKind, OpKind, Program

MAX_ARROWS = 8
"""Arrows that leave one op."""
MIN_WAIT_US = 1.0
"""Shorter waits are not drawn."""
_TRACKS = {
    LaneKind.COMPUTE: "compute",
    LaneKind.HOST_TO_DEVICE: "copies in",
    LaneKind.DEVICE_TO_HOST: "copies out",
    LaneKind.SEND: "network: sends",
    LaneKind.RECEIVE: "network: receives",
}


def perfetto_json(program: Program, trace: pl.DataFrame) -> str:
    """Return the JSON text of one repeat (schema ``tables.TRACE``); times in µs."""
    origin = str(trace["origin"][0]) if len(trace) else "measured"
    mark = "" if origin == "measured" else f" ({origin})"
    nodes = list(dict.fromkeys(r.node for r in program.ranks))
    events: list[dict[str, Any]] = []
    for i, node in enumerate(nodes):
        events.append(_meta(i + 1, 0, "process_name", {"name": f"node {node}{mark}"}))
        events.append(_meta(i + 1, 0, "process_sort_index", {"sort_index": i}))
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    """Op → (process, track) of its lanes."""
    for k in range(len(program.lane_names)):
        kind = LaneKind(program.lane_kinds[k])
        if kind == LaneKind.CAPACITY:
            continue
        role = program.ranks[program.lane_rank[k]]
        pid = nodes.index(role.node) + 1
        label = f"{role.device or role.node} {_TRACKS[kind]}"
        events.append(_meta(pid, k + 1, "thread_name", {"name": label}))
        events.append(_meta(pid, k + 1, "thread_sort_index", {"sort_index": k}))
        for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist():
            tracks[op].append((pid, k + 1))
    names = trace.select(pl.coalesce("task", "data", "kind").alias("name")).to_series().to_list()
    shown: dict[int, tuple[float, float]] = {}
    free: dict[tuple[int, int], float] = {}
    label_of = dict(zip(trace["op"].to_list(), names, strict=True))
    for row in trace.sort("start_s", "op").iter_rows(named=True):
        op = row["op"]
        start, finish = row["start_s"] * 1e6, row["finish_s"] * 1e6
        shown[op] = start, finish
        for pid, tid in tracks[op]:
            since = free.get((pid, tid), 0.0)
            if start - since >= MIN_WAIT_US and row["waited_for"] >= 0:
                why = f"{row['why']} of {label_of.get(row['waited_for'], row['waited_for'])}"
                events.append(_slice(pid, tid, since, start, "wait", f"wait: {why}", {"op": op}))
            free[pid, tid] = max(since, finish)
            args = {
                key: row[key]
                for key in ("op", "kernel", "variant", "size_bytes", "planned_start_s", "planned_finish_s")
                if row[key] is not None
            }
            events.append(_slice(pid, tid, start, finish, row["kind"], label_of[op], args))
    events += _arrows(program, shown, tracks)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"origin": origin}})


def _arrows(
    program: Program, shown: dict[int, tuple[float, float]], tracks: dict[int, list[tuple[int, int]]]
) -> list[dict[str, Any]]:
    """Data dependencies of which one end is a copy or transfer, and the two ends of each transfer."""
    pairs: list[tuple[int, int]] = []
    leaving: dict[int, int] = defaultdict(int)
    for op in range(program.n_ops):
        for e in range(program.dep_ptr[op], program.dep_ptr[op + 1]):
            before = int(program.dep_ops[e])
            moves = program.op_kind[op] != OpKind.KERNEL or program.op_kind[before] != OpKind.KERNEL
            if moves and program.dep_kinds[e] == DependencyKind.DATA and op in shown and before in shown:
                leaving[before] += 1
                if leaving[before] <= MAX_ARROWS:
                    pairs.append((before, op))
    events: list[dict[str, Any]] = []

    def arrow(source: tuple[int, int], at: float, target: tuple[int, int], to: float) -> None:
        shared = {"cat": "transfer", "name": "data", "id": len(events) + 1}
        events.append({"ph": "s", "pid": source[0], "tid": source[1], "ts": at, **shared})
        events.append({"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": max(at, to), **shared})

    for before, op in pairs:
        start, finish = shown[before]
        # From inside the slice: an arrow at its very end would belong to the next one.
        arrow(tracks[before][-1], (start + finish) / 2, tracks[op][0], shown[op][0])
    for op, lanes in tracks.items():
        if len(lanes) == 2 and op in shown:
            arrow(lanes[0], shown[op][0], lanes[1], sum(shown[op]) / 2)
    return events


def _meta(pid: int, tid: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}


def _slice(
    pid: int, tid: int, start: float, finish: float, kind: str, name: str, args: dict[str, Any]
) -> dict[str, Any]:
    duration = max(finish - start, 0.0)
    return {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": duration, "cat": kind, "name": name, "args": args}
