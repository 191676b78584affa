"""A node agent: network courier and watchdog; it runs no kernels."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import LaneKind, OpKind, Program
from heterotask_core.runtime.context import Context, write_error
from heterotask_core.runtime.loop import Loop

COURIER_SLEEP_S = 50e-6
IDLE_SLEEP_S = 1e-3
_CHECK_S = 0.2
_TAGS = 32_768
"""Tags that the MPI standard promises."""


class _Transfer:
    """A posted send or receive; both ends report when they posted and when they were complete."""

    __slots__ = ("_end_s", "_request", "_start_s")

    def __init__(self, request: Any) -> None:
        self._request = request
        self._start_s = time.monotonic()
        self._end_s = self._start_s

    def query(self) -> bool:
        if not self._request.Test():
            return False
        self._end_s = time.monotonic()
        return True

    def times(self) -> tuple[float, float]:
        return self._start_s, self._end_s


def run_agent(context: Context) -> None:
    """Carry this node's network transfers through all repeats, and end the job when nothing moves any more."""
    program = context.program
    tags = _tags(program)
    network = context.comm

    def issue(lane: int, op: int, after: list[Any]) -> _Transfer:
        sends = program.lane_kinds[lane] == LaneKind.SEND
        _, offset, size_bytes = context.place(int((program.op_source if sends else program.op_target)[op]))
        part = context.memory.arena[offset : offset + size_bytes]
        source, target = _ends(program, op)
        if sends:
            return _Transfer(network.Isend(part, dest=target, tag=tags[op]))
        return _Transfer(network.Irecv(part, source=source, tag=tags[op]))

    watchdog = Watchdog(context)
    sleep_s = COURIER_SLEEP_S if context.lanes else IDLE_SLEEP_S
    loop = Loop(context, issue, chain=False, sleep_s=sleep_s, poll=watchdog.check)

    def load() -> None:
        """Nobody counts while ranks load; the launcher's limit holds there."""

    for repeat in range(context.spec.repeats):
        context.barrier(watchdog.check if repeat else load, IDLE_SLEEP_S)
        watchdog.start()
        loop.run(repeat + 1)
    context.barrier(watchdog.check, IDLE_SLEEP_S)


def _ends(program: Program, op: int) -> tuple[int, int]:
    """Return the agent ranks that send and receive a transfer."""
    agents = {role.node: rank for rank, role in enumerate(program.ranks) if role.device is None}
    nodes = [
        program.memory_nodes[program.residency_memory[residency]]
        for residency in (int(program.op_source[op]), int(program.op_target[op]))
    ]
    return agents[nodes[0]], agents[nodes[1]]


def _tags(program: Program) -> dict[int, int]:
    """Return transfer → tag: its number among those of its pair of agents, in the sender's order."""
    tags: dict[int, int] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for lane, kind in enumerate(program.lane_kinds.tolist()):
        if kind != LaneKind.SEND:
            continue
        for op in program.lane_ops[program.lane_ptr[lane] : program.lane_ptr[lane + 1]].tolist():
            assert program.op_kind[op] == OpKind.TRANSFER
            pair = _ends(program, op)
            tags[op] = counts[pair] % _TAGS
            counts[pair] += 1
    return tags


class Watchdog:
    """Ends the job when no rank has issued or completed anything for the job's ``stall_s``."""

    def __init__(self, context: Context) -> None:
        """Watch the counters of all ranks of the job."""
        self._context = context
        self._total = -1
        self._since_s = self._checked_s = time.monotonic()

    def start(self) -> None:
        """Count from now on."""
        self._since_s = time.monotonic()

    def check(self) -> None:
        """Look at the counters at times.

        Raises:
            ExecutionError: nothing moves; the message lists what every lane of this node waits for.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        total = self._context.counters.total()
        if total != self._total:
            self._total = total
            self._since_s = now_s
            return
        if now_s - self._since_s < self._context.spec.stall_s:
            return
        message = (
            f"no progress for {now_s - self._since_s:.0f} s; lanes of node {self._context.role.node!r}:\n"
            + "\n".join(self._table())
        )
        write_error(self._context.folder, self._context.rank, message)
        # Agents of other nodes find it at about the same time: let them write what their lanes wait for.
        time.sleep(2 * _CHECK_S)
        raise ExecutionError(message)

    def _table(self) -> list[str]:
        """Return a line for every lane of the node: what runs, or what its head waits for."""
        context, counters = self._context, self._context.counters
        lines = []
        for lane in context.node_lanes():
            ops = context.lane_ops(lane)
            position = counters.issued(lane) - (context.epoch - 1) * len(ops)
            line = f"  lane {context.program.lane_names[lane]!r} of rank {context.program.lane_rank[lane]}: "
            running = counters.issued(lane) - counters.done(lane)
            if running:
                line += f"{running} in flight, last issued {context.describe(ops[position - 1])}; "
            if position == len(ops):
                line += "nothing left to issue"
            else:
                missing = [d for d in context.dependencies[ops[position]] if not context.memory.seen(d, context.epoch)]
                line += f"{context.describe(ops[position])} waits for "
                line += ", ".join(context.describe(d) for d in missing) or "its turn (its kernel may be running)"
            lines.append(line)
        return lines
