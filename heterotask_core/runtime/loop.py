"""The loop that every rank runs: walk the own lanes in order, never block on one of them.

An op is issued when it heads its lane and everything it waits for is seen, or is issued by this very rank to a
device that can order the two itself. Completions are polled and published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from heterotask_core.runtime.context import Context, Idle

WINDOW = 16
"""Ops in flight per lane, at most."""


class Handle(Protocol):
    """An issued op."""

    def query(self) -> bool:
        """Return whether it is complete, without blocking."""

    def times(self) -> tuple[float, float]:
        """Return start and end on CLOCK_MONOTONIC, once complete."""


@dataclass
class _Lane:
    index: int
    ops: list[int]
    cursor: int = 0
    pending: list[tuple[int, Handle]] = field(default_factory=list)
    issued_before: int = 0
    done: int = 0


class Loop:
    """Runs the lanes of one rank, repeat after repeat."""

    def __init__(
        self,
        context: Context,
        issue: Callable[[int, int, list[Any]], Handle],
        *,
        chain: bool,
        sleep_s: float,
        poll: Callable[[], None],
    ) -> None:
        """``issue(lane, op, after)`` starts an op; with ``chain`` it may wait for own handles given as ``after``."""
        self._context = context
        self._issue = issue
        self._chain = chain
        self._sleep_s = sleep_s
        self._poll = poll
        self._lanes = [_Lane(lane, context.lane_ops(lane)) for lane in context.lanes]
        self._running: dict[int, Handle] = {}

    def run(self, epoch: int) -> None:
        """Run every op of the own lanes once; ``epoch`` counts from 1. Exceptions are left for the launcher."""
        self._context.epoch = epoch
        for lane in self._lanes:
            lane.issued_before = (epoch - 1) * len(lane.ops)
            lane.cursor = 0
        idle = Idle(self._sleep_s)
        open_lanes = [lane for lane in self._lanes if lane.ops]
        while open_lanes:
            moved = False
            for lane in open_lanes:
                moved = self._collect(lane, epoch) or moved
                while len(lane.pending) < WINDOW and self._advance(lane, epoch):
                    moved = True
            if moved:
                open_lanes = [lane for lane in open_lanes if lane.pending or lane.cursor < len(lane.ops)]
                idle.reset()
            else:
                idle.wait()
            self._poll()

    def _advance(self, lane: _Lane, epoch: int) -> bool:
        """Issue the head op of a lane if it may start; return whether it did."""
        if lane.cursor == len(lane.ops):
            return False
        op = lane.ops[lane.cursor]
        after = []
        for dependency in self._context.dependencies[op]:
            if not self._context.memory.seen(dependency, epoch):
                if not self._chain or dependency not in self._running:
                    return False
                after.append(self._running[dependency])
        try:
            handle = self._issue(lane.index, op, after)
        except Exception as error:
            self._context.fail(op, error)
            raise
        lane.cursor += 1
        lane.pending.append((op, handle))
        self._running[op] = handle
        self._context.counters.set(lane.index, issued=lane.issued_before + lane.cursor, done=lane.done)
        self._collect(lane, epoch)
        return True

    def _collect(self, lane: _Lane, epoch: int) -> bool:
        """Publish the ops of a lane that are complete; return whether there were any."""
        kept = []
        for op, handle in lane.pending:
            try:
                complete = handle.query()
            except Exception as error:
                self._context.fail(op, error)
                raise
            if not complete:
                kept.append((op, handle))
                continue
            self._context.memory.publish(op, epoch)
            start_s, finish_s = handle.times()
            self._context.start_s[epoch - 1, op] = start_s
            self._context.finish_s[epoch - 1, op] = finish_s
            del self._running[op]
            lane.done += 1
        if len(kept) == len(lane.pending):
            return False
        lane.pending = kept
        self._context.counters.set(lane.index, issued=lane.issued_before + lane.cursor, done=lane.done)
        return True
