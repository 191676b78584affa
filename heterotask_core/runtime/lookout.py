"""An agent's lookout: a thread that tells the caller how its node is, whatever the agent itself is doing.

It watches the node's processes, so a rank that dies is known on any host, and it ends them all when the caller is
gone or says so. It computes nothing and calls no MPI.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heterotask_core.program.model import LaneKind, Program, RankRole
from heterotask_core.runtime.arena import Counters
from heterotask_core.runtime.cleanup import remove_files
from heterotask_core.runtime.context import Context, describe_op, node_lanes
from heterotask_core.runtime.watch import RankWatch, under_debugger


class Lookout:
    """Of an agent, a thread from the rank's start to :meth:`close`; of a device rank, nothing."""

    def __init__(self, folder: Path, rank: int, ranks: tuple[RankRole, ...]) -> None:
        """Call the caller. ``ranks``: all ranks of the job."""
        self._folder = folder
        self._context: Context | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._progress: Progress | None = None
        if ranks[rank].device is not None or not (folder / "line.json").exists():
            return
        # Imported here because device ranks, which have no lookout, start sooner without it.
        from heterotask_core.runtime.line import call

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
        self._progress = None if context is None else Progress(context.program, context.counters, context.role.node)
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
            import logging

            logging.getLogger(__name__).info("the line to the caller broke: %s", error)
            self._end_node()

    def _loop(self) -> None:
        from heterotask_core.runtime.line import BEAT_S

        beaten_s = 0.0
        told_dead: tuple[int, ...] = ()
        while not self._ended:
            # A death wakes it at once: MPI may end the others, and this process, within a moment.
            self._watch.wait(max(0.0, beaten_s + BEAT_S - time.monotonic()))
            for word in self._heard():
                if word == "end":
                    self._end_node()
                if word == "report":
                    self._say(report=self._report())
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
        context, progress = self._context, self._progress
        facts: dict[str, Any] = {"running": False, "traced": self._watch.traced() or under_debugger()}
        if context is None or progress is None:
            return facts
        return facts | progress.facts(self._watch) | {"running": context.repeat >= 0, "repeat": context.repeat}

    def _report(self) -> dict[str, Any]:
        context, progress = self._context, self._progress
        if context is None or progress is None:
            return {"lanes": []}
        return progress.report(lambda op: context.memory.seen(op, context.epoch))

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


class Progress:
    """How far a node is with a program, from its counters: how many ops of every issue lane are issued and done."""

    def __init__(self, program: Program, counters: Counters, node: str) -> None:
        """Follow ``node``, whose counters these are."""
        self.program = program
        self.counters = counters
        self._lanes = node_lanes(program, node)
        self._moved: dict[int, tuple[int, int, float]] = {}
        """Lane → (issued, done, time on CLOCK_MONOTONIC at which these were first seen)."""

    def _ops(self, lane: int) -> list[int]:
        ptr = self.program.lane_ptr
        ops: list[int] = self.program.lane_ops[ptr[lane] : ptr[lane + 1]].tolist()
        return ops

    def facts(self, watch: RankWatch) -> dict[str, Any]:
        """Return ``done``, ``progress`` and ``computed_s`` (see :class:`AgentState`)."""
        lanes, program, counters = self._lanes, self.program, self.counters
        issued = {lane: counters.issued(lane) for lane in lanes}
        done = {lane: counters.done(lane) for lane in lanes}
        now_s = time.monotonic()
        for lane in lanes:
            if self._moved.get(lane, (-1, -1, 0.0))[:2] != (issued[lane], done[lane]):
                self._moved[lane] = (issued[lane], done[lane], now_s)
        total = sum(done.values())
        busy = {
            int(program.lane_rank[lane])
            for lane in lanes
            if issued[lane] > done[lane] and program.lane_kinds[lane] == LaneKind.COMPUTE
        }
        computed_s = sum(watch.cpu_s(rank) for rank in busy)
        return {"computed_s": computed_s, "done": total, "progress": total + sum(issued.values())}

    def counted(self, op: int) -> bool:
        """Return whether an op is complete, by the counts of its lane alone: ops of a device complete in order."""
        for lane in self._lanes:
            ops = self._ops(lane)
            if op in ops:
                return self.counters.done(lane) > self.counters.repeat * len(ops) + ops.index(op)
        return False

    def report(self, complete: Callable[[int], bool]) -> dict[str, Any]:
        """Return what every issue lane does: {"lanes": [{"rank", "lane", "op", "state", "since_s"}, …]}.

        ``complete`` says of an op of this node whether this repeat has it behind it.
        """
        program, counters = self.program, self.counters
        owners = op_ranks(program)
        visible = {op for lane in self._lanes for op in self._ops(lane)}
        now_s = time.monotonic()
        lines = []
        for lane in self._lanes:
            ops = self._ops(lane)
            issued, done = counters.issued(lane), counters.done(lane)
            since_s = now_s - self._moved.get(lane, (0, 0, now_s))[2]
            line = {"rank": int(program.lane_rank[lane]), "lane": program.lane_names[lane]}
            line |= {"since_s": since_s, "op": None}
            kind = LaneKind(int(program.lane_kinds[lane]))
            if not ops:
                continue
            op = ops[done % len(ops)]
            if issued > done:
                state = "is in flight" if kind in (LaneKind.SEND, LaneKind.RECEIVE) else "runs"
                if kind == LaneKind.RECEIVE:
                    state += f", rank {owners[op][0]} should deliver"
                line |= {"op": describe_op(program, op, variant=True), "state": state, "running": True}
            elif done and done % len(ops) == 0 and complete(ops[-1]):
                line |= {"state": "has nothing left"}
            else:
                deps = program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]].tolist()
                missing = [d for d in deps if d in visible and not complete(d)]
                what = ", ".join(f"{describe_op(program, d)} (rank {owners[d][-1]})" for d in missing)
                line |= {"op": describe_op(program, op), "state": f"waits for {what or 'its turn'}"}
                line["running"] = not missing and kind == LaneKind.COMPUTE
            lines.append(line)
        return {"lanes": lines}


def op_ranks(program: Program) -> dict[int, list[int]]:
    """Return op → ranks of its issue lanes: of a transfer the sender's, then the receiver's."""
    ranks: dict[int, list[int]] = {}
    for lane, owner in enumerate(program.lane_rank.tolist()):
        if owner < 0:
            continue
        for op in program.lane_ops[program.lane_ptr[lane] : program.lane_ptr[lane + 1]].tolist():
            if program.lane_kinds[lane] == LaneKind.SEND:
                ranks.setdefault(op, []).insert(0, owner)
            else:
                ranks.setdefault(op, []).append(owner)
    return ranks
