"""An agent's lookout: a thread that tells the caller how its node is, whatever the agent itself is doing.

It watches the node's processes, so a rank that dies is known on any host, and it ends them all when the caller is
gone or says so. It computes nothing and calls no MPI.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from pathlib import Path
from typing import Any

from heterotask_core.program.model import LaneKind, RankRole
from heterotask_core.runtime.cleanup import remove_files
from heterotask_core.runtime.context import Context, describe_op
from heterotask_core.runtime.line import BEAT_S, call
from heterotask_core.runtime.watch import RankWatch, under_debugger

_TICK_S = 0.05
"""How often it looks for ranks that have not started yet."""
_log = logging.getLogger(__name__)


class Lookout:
    """Of an agent, a thread from the rank's start to :meth:`close`; of a device rank, nothing."""

    def __init__(self, folder: Path, rank: int, ranks: tuple[RankRole, ...]) -> None:
        """Call the caller. ``ranks``: all ranks of the job."""
        self._folder = folder
        self._context: Context | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._moved: dict[int, tuple[int, int, float]] = {}
        if ranks[rank].device is not None or not (folder / "line.json").exists():
            return
        others = [r for r, role in enumerate(ranks) if role.node == ranks[rank].node and r != rank]
        self._watch = RankWatch(folder, others)
        self._socket = call(folder, rank)
        self._socket.setblocking(False)
        self._bell = os.eventfd(0)
        self._watch.wake_by(self._socket.fileno())
        self._watch.wake_by(self._bell)
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._thread.start()

    def follow(self, context: Context | None) -> None:
        """Tell of this program from now on; None while none runs."""
        self._moved = {}
        self._context = context

    def close(self) -> None:
        """Say that the rank is done, and hang up."""
        if self._thread is None:
            return
        self._ended = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._thread = None
        os.close(self._bell)

    def _run(self) -> None:
        try:
            self._loop()
        except OSError as error:
            _log.info("the line to the caller broke: %s", error)
            self._end_node()

    def _loop(self) -> None:
        beaten_s = 0.0
        told_dead: tuple[int, ...] = ()
        while not self._ended:
            # A death wakes it at once: MPI may end the others, and this process, within a moment.
            left_s = max(0.0, beaten_s + BEAT_S - time.monotonic())
            self._watch.wait(left_s if self._watch.complete else min(left_s, _TICK_S))
            for word in self._heard():
                if word == "end":
                    self._end_node()
                if word == "report":
                    self._say(report=lanes_report(self._context, self._moved))
            now_s = time.monotonic()
            if self._watch.first_dead != told_dead or now_s - beaten_s >= BEAT_S:
                told_dead, beaten_s = self._watch.first_dead, now_s
                self._say(**self._beat(), dead=list(told_dead), signals=list(self._watch.signals.items()))
        self._say(finished=True)
        self._socket.close()

    def _heard(self) -> list[str]:
        try:
            received = self._socket.recv(4096)
        except BlockingIOError:
            return []
        if not received:
            raise ConnectionResetError("the caller hung up")
        return received.decode(errors="replace").split()

    def _beat(self) -> dict[str, Any]:
        context = self._context
        facts: dict[str, Any] = {"running": False, "traced": self._watch.traced() or under_debugger()}
        if context is None:
            return facts
        lanes = context.node_lanes()
        issued = {lane: context.counters.issued(lane) for lane in lanes}
        done = {lane: context.counters.done(lane) for lane in lanes}
        now_s = time.monotonic()
        for lane in lanes:
            if self._moved.get(lane, (-1, -1, 0.0))[:2] != (issued[lane], done[lane]):
                self._moved[lane] = (issued[lane], done[lane], now_s)
        total = sum(done.values())
        program = context.program
        busy = {
            int(program.lane_rank[lane])
            for lane in lanes
            if issued[lane] > done[lane] and program.lane_kinds[lane] == LaneKind.COMPUTE
        }
        facts |= {"computed_s": sum(self._watch.cpu_s(rank) for rank in busy)}
        facts |= {"running": context.repeat >= 0, "repeat": context.repeat, "done": total}
        return facts | {"progress": total + sum(issued.values())}

    def _say(self, **message: Any) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            _, writable, _ = select.select([], [self._socket], [], 5.0)
            if not writable:
                raise TimeoutError("the caller does not read")
            data = data[self._socket.send(data) :]

    def _end_node(self) -> None:
        """Kill the node's ranks and this one: nobody waits for them any more."""
        self._watch.end(0.0)
        remove_files(self._folder)
        os._exit(1)


def lanes_report(context: Context | None, moved: dict[int, tuple[int, int, float]]) -> dict[str, Any]:
    """Return what every issue lane of the node does: {"lanes": [{"rank", "lane", "op", "state", "since_s"}, …]}.

    ``moved``: lane → (issued, done, time on CLOCK_MONOTONIC at which these were first seen).
    """
    if context is None:
        return {"lanes": []}
    program, counters = context.program, context.counters
    owners = op_ranks(context)
    now_s = time.monotonic()
    lines = []
    for lane in context.node_lanes():
        ops = context.lane_ops(lane)
        issued, done = counters.issued(lane), counters.done(lane)
        since_s = now_s - moved.get(lane, (0, 0, now_s))[2]
        line = {"rank": int(program.lane_rank[lane]), "lane": program.lane_names[lane], "since_s": since_s, "op": None}
        kind = LaneKind(int(program.lane_kinds[lane]))
        if not ops:
            continue
        if issued > done:
            op = ops[done % len(ops)]
            state = "is in flight" if kind in (LaneKind.SEND, LaneKind.RECEIVE) else "runs"
            if kind == LaneKind.RECEIVE:
                state += f", rank {owners[op][0]} should deliver"
            line |= {"op": describe_op(program, op, variant=True), "state": state, "running": True}
        elif done and done % len(ops) == 0 and context.memory.seen(ops[-1], context.epoch):
            line |= {"state": "has nothing left"}
        else:
            op = ops[done % len(ops)]
            missing = [d for d in context.waits_for(op) if not context.memory.seen(d, context.epoch)]
            what = ", ".join(f"{context.describe(d)} (rank {owners[d][-1]})" for d in missing)
            line |= {"op": context.describe(op), "state": f"waits for {what or 'its turn'}"}
            line["running"] = not missing and kind == LaneKind.COMPUTE
        lines.append(line)
    return {"lanes": lines}


def op_ranks(context: Context) -> dict[int, list[int]]:
    """Return op → ranks of its issue lanes: of a transfer the sender's, then the receiver's."""
    program = context.program
    ranks: dict[int, list[int]] = {}
    for lane, owner in enumerate(program.lane_rank.tolist()):
        if owner < 0:
            continue
        for op in context.lane_ops(lane):
            if program.lane_kinds[lane] == LaneKind.SEND:
                ranks.setdefault(op, []).insert(0, owner)
            else:
                ranks.setdefault(op, []).append(owner)
    return ranks
