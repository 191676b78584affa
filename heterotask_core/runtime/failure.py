"""Why a job failed, in words: which rank, on which node, at which task, and what it printed last."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heterotask_core.errors import HeteroTaskError
from heterotask_core.program.io import load_program
from heterotask_core.program.model import LaneKind, RankRole
from heterotask_core.runtime.arena import Counters
from heterotask_core.runtime.context import counters_file, describe_op

TAIL_LINES = 4
_TAIL_CHARACTERS = 1000
_CRASH = "Fatal Python error: "
"""How faulthandler begins."""
_SIGNAL = re.compile(r"KILLED BY SIGNAL: (\d+) \((.+?)\)|EXIT STRING: ([A-Za-z ]+) \(signal (\d+)\)")

Lane = Mapping[str, Any]
"""An entry of :func:`heterotask_core.runtime.lookout.lanes_report`."""


def rank_name(ranks: Sequence[RankRole], rank: int) -> str:
    """Return a rank in words."""
    role = ranks[rank]
    what = "agent" if role.device is None else f"device {role.device!r}"
    return f"rank {rank} ({what}, node {role.node!r})"


def tail(text: str) -> str:
    """Return the last lines in one, without a Python traceback: what failed is said elsewhere.

    Of a crash, what was printed before it, its name, and where the interpreter was.
    """
    before, crash, stack = text.split("Traceback (most recent call last)")[0].partition(_CRASH)
    lines = [line.strip() for line in before.splitlines() if line.strip()][-TAIL_LINES:]
    if crash:
        first, *rest = stack.splitlines()
        frames = [line.strip() for line in rest if line.strip().startswith("File ")]
        lines += [crash + first, *frames[:TAIL_LINES]]
    return " | ".join(lines)[-_TAIL_CHARACTERS:]


def rank_output(folder: Path, rank: int) -> str:
    """Return the last lines that a rank printed, as a sentence; empty if it printed nothing."""
    path = folder / f"output-{rank}.txt"
    said = tail(path.read_text(errors="replace")) if path.exists() else ""
    return f"; rank {rank} printed: {said}" if said else ""


def errors_of(folder: Path) -> list[str]:
    """Return the failures that ranks have left, the first of them first, each with its rank's output."""
    found = sorted(folder.glob("error-*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    failures = [json.loads(path.read_text()) for path in found]
    return [failure["message"] + rank_output(folder, failure["rank"]) for failure in failures]


def died(
    ranks: Sequence[RankRole],
    dead: Sequence[int],
    lanes: Sequence[Lane],
    folder: Path,
    launcher: str,
    signals: Mapping[int, int],
) -> str:
    """Return the message for ranks that ended without being done.

    ``launcher``: what it has printed; ``signals``: rank → the signal that ended it, as far as it was seen.
    """
    names = []
    for rank in dead:
        running = [lane["op"] for lane in lanes if lane["rank"] == rank and lane.get("running")]
        names.append(rank_name(ranks, rank) + (f" running {' and '.join(running)}" if running else ""))
    agents = {ranks[rank].node for rank in dead if ranks[rank].device is None}
    beside = [lane for lane in lanes if lane["rank"] not in dead and ranks[lane["rank"]].node in agents]
    found = _SIGNAL.search(launcher) if len(dead) == 1 else None
    how = "was killed or crashed"
    if len(dead) == 1 and dead[0] in signals:
        how = f"was ended by signal {signals[dead[0]]} ({signal.strsignal(signals[dead[0]])})"
    elif found is not None:
        number, word = (found[1], found[2]) if found[1] else (found[4], found[3])
        how = f"was ended by signal {number} ({word})"
    hint = "if it was killed for lack of memory, dmesg tells"
    said = "".join(rank_output(folder, rank) for rank in dead)
    which = " or ".join(names) or "a rank"
    return f"{which} {how}; the job was ended ({hint}){said}{were_running(ranks, beside, folder)}"


def were_running(ranks: Sequence[RankRole], lanes: Sequence[Lane], folder: Path) -> str:
    """Return what device ranks were running, and what these printed last, as sentences; empty if none was."""
    running = [lane for lane in lanes if lane.get("running") and ranks[lane["rank"]].device is not None]
    tasks = "".join(f"; {rank_name(ranks, lane['rank'])} was running {lane['op']}" for lane in running)
    return tasks + "".join(rank_output(folder, rank) for rank in dict.fromkeys(lane["rank"] for lane in running))


def last_lanes(folder: Path, node: str) -> list[dict[str, Any]]:
    """Return the compute lanes of a node that were running an op, from its counters: for agents that cannot say so.

    MPI over TCP ends the ranks that were connected to a dead one within milliseconds, the node's agent with them.
    """
    try:
        program = load_program(folder)
        counters = Counters(counters_file(folder, program, node), len(program.lane_names))
    except (OSError, HeteroTaskError):
        return []
    lanes = []
    for lane, owner in enumerate(program.lane_rank.tolist()):
        if owner < 0 or program.ranks[owner].node != node or program.lane_kinds[lane] != LaneKind.COMPUTE:
            continue
        ops = program.lane_ops[program.lane_ptr[lane] : program.lane_ptr[lane + 1]].tolist()
        done = counters.done(lane)
        if ops and counters.issued(lane) > done:
            name = describe_op(program, ops[done % len(ops)], variant=True)
            lanes.append({"rank": owner, "lane": program.lane_names[lane], "op": name, "running": True})
    return lanes


def silent(ranks: Sequence[RankRole], rank: int, silent_s: float, folder: Path) -> str:
    """Return the message for an agent whose heartbeat stopped."""
    beside = were_running(ranks, last_lanes(folder, ranks[rank].node), folder)
    return (
        f"{rank_name(ranks, rank)} has been silent for {silent_s:.0f} s: stopped, or its host is overloaded or out of "
        f"reach; the job was ended{rank_output(folder, rank)}{beside}"
    )


def stalled(ranks: Sequence[RankRole], limit_s: float, lanes: Sequence[Lane], folder: Path) -> str:
    """Return the message for a job in which nothing moves, with a line for every lane that is not through."""
    table, computing = [], []
    for lane in lanes:
        if lane["op"] is None:
            continue
        where = f"lane {lane['lane']!r} of rank {lane['rank']}, node {ranks[lane['rank']].node!r}"
        table.append(f"  {where}: {lane['op']} {lane['state']}, since {lane['since_s']:.0f} s")
        if lane.get("running") and ranks[lane["rank"]].device is not None:
            computing.append(lane["rank"])
    said = "".join(rank_output(folder, rank) for rank in dict.fromkeys(computing))
    return "\n".join([f"no progress for {limit_s:.0f} s; the job was ended{said}. Every lane:", *table])
