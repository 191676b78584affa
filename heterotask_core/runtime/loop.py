"""The loop of ranks that issue and poll: device ranks with memory of their own, and node agents.

An op is issued when it heads its lane and everything it waits for is seen, or is issued by this very rank to an
engine that orders the two itself. Completions are polled and published. The loop never blocks on one lane.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heterotask_core.runtime.context import SPIN_S, Context
from heterotask_core.runtime.native import native

WINDOW = 16
"""Ops in flight per lane, at most."""
_SPIN_NS = int(SPIN_S * 1e9)
_ROUNDS = 64
"""Rounds without progress between two calls of ``poll``."""


class Engine(Protocol):
    """What carries out the ops of a rank's lanes."""

    chains: bool
    """Whether an op may be issued behind own ones that still run."""
    sleeps: bool
    """Whether the loop may sleep while ops are in flight."""

    @property
    def blocking(self) -> Collection[int]:
        """Ops that keep the rank busy until they are complete."""

    @property
    def last(self) -> Collection[int]:
        """Ops that are issued when no other lane has an op in flight: the rank might not see it end meanwhile.

        Nothing new is issued while one that could run is held for that.
        """

    def issue(self, lane: int, op: int, after: Sequence[int]) -> None:
        """Start ``op``, behind the own ops ``after`` of this repeat."""

    def completed(self) -> Iterable[tuple[int, int, float, float]]:
        """Return (lane, op, start, end on CLOCK_MONOTONIC) of ops that have become complete, without blocking."""


@dataclass(slots=True)
class _Lane:
    index: int
    ops: list[int]
    ptr: list[int]
    own: list[tuple[int, ...]]
    before: int = 0
    issued: int = 0
    done: int = 0


class Loop:
    """Runs the lanes of one rank, repeat after repeat."""

    def __init__(self, context: Context, engine: Engine, *, sleep_s: float, poll: Callable[[], None]) -> None:
        """``poll`` is called now and then; the loop sleeps ``sleep_s`` between looks once idle."""
        self._context = context
        self._engine = engine
        self._poll = poll
        self._sleep_s = sleep_s
        self._lanes: list[_Lane] = []
        lists, start = [np.zeros(0, np.int32)], 0
        for lane in context.lanes:
            ops = context.lane_ops(lane)
            ptr, deps = context.wait_lists(ops, own=not engine.chains)
            own = [context.own_waits(op) if engine.chains else () for op in ops]
            self._lanes.append(_Lane(lane, ops, (ptr + start).tolist(), own))
            lists.append(deps)
            start += len(deps)
        self._deps = np.concatenate(lists)
        self._by_index = {lane.index: slot for slot, lane in enumerate(self._lanes)}
        self._ranges = [-1] * (2 * len(self._lanes))
        # Only where ranks share cores does an agent nap.
        self._sent: set[int] = set()
        if not context.spin_s and native() is not None:
            for own_lane in self._lanes:
                flags = context.sent(own_lane.ops).tolist()
                self._sent.update(op for op, sent in zip(own_lane.ops, flags, strict=True) if sent)
        self._issued: set[int] = set()
        self._holding = False
        self.op: int | None = None
        """The op that was issued last: the one that has failed when :meth:`run` raises."""

    def run(self, repeat: int) -> bool:
        """Run every op of the own lanes once; return False where the epoch was aborted. Raises what the engine does."""
        context, engine, lanes = self._context, self._engine, self._lanes
        self._issued.clear()
        self._holding = False
        for slot, lane in enumerate(lanes):
            lane.before = context.counters.done(lane.index)
            lane.issued = lane.done = 0
            self._look(slot)
        left = sum(len(lane.ops) for lane in lanes)
        in_flight = rounds = 0
        idle_s: float | None = None
        yield_ns = 0
        while left:
            moved = False
            for lane_index, op, start_s, finish_s in engine.completed() if in_flight else ():
                self._complete(repeat, lane_index, op, start_s, finish_s)
                in_flight -= 1
                left -= 1
                moved = True
            ready = context.memory.flags.poll(
                context.memory.n_ops, context.epoch, self._deps, self._ranges, yield_ns, int(self._sleep_s * 1e9)
            )
            if ready < 0:
                return False
            for slot in range(len(lanes)) if ready else ():
                if ready >> slot & 1 and self._issue(slot):
                    in_flight += 1
                    moved = True
            if moved:
                idle_s, yield_ns, rounds = None, 0, 0
                continue
            rounds += 1
            if in_flight and not engine.sleeps:
                os.sched_yield()
                if rounds % _ROUNDS == 0:
                    self._poll()
                continue
            now_s = time.monotonic()
            idle_s = now_s if idle_s is None else idle_s
            rest_ns = max(1, _SPIN_NS - int((now_s - idle_s) * 1e9))
            # With nothing in flight the flags alone can bring news: wait where they are polled fastest.
            yield_ns = 0 if in_flight or ready else rest_ns
            if in_flight or ready:
                if rest_ns > 1:
                    os.sched_yield()
                else:
                    time.sleep(self._sleep_s)
            if rest_ns == 1 or rounds % _ROUNDS == 0:
                self._poll()
        return True

    def _look(self, slot: int) -> None:
        """Note what the lane's head waits for, if it may be issued at all."""
        lane = self._lanes[slot]
        closed = lane.issued == len(lane.ops) or lane.issued - lane.done >= WINDOW
        self._ranges[2 * slot] = -1 if closed else lane.ptr[lane.issued]
        self._ranges[2 * slot + 1] = -1 if closed else lane.ptr[lane.issued + 1]

    def _issue(self, slot: int) -> bool:
        """Issue the head of a lane whose host dependencies are seen, unless an own one is not even issued."""
        lane = self._lanes[slot]
        op, after = lane.ops[lane.issued], lane.own[lane.issued]
        if any(own not in self._issued for own in after):
            return False
        if op in self._engine.blocking and not self._complete_before(lane):
            return False
        if op in self._engine.last:
            self._holding = any(other.issued > other.done for other in self._lanes if other is not lane)
        if self._holding:
            return False
        self.op = op
        self._engine.issue(lane.index, op, after)
        self._issued.add(op)
        lane.issued += 1
        self._look(slot)
        self._context.counters.set(lane.index, issued=lane.before + lane.issued, done=lane.before + lane.done)
        return True

    def _complete_before(self, lane: _Lane) -> bool:
        """Return whether a lane's head finds complete what it waits for: else others would not hear of it meanwhile."""
        memory, epoch = self._context.memory, self._context.epoch
        return lane.issued == lane.done and all(memory.seen(own, epoch) for own in lane.own[lane.issued])

    def _complete(self, repeat: int, lane_index: int, op: int, start_s: float, finish_s: float) -> None:
        context, slot = self._context, self._by_index[lane_index]
        lane = self._lanes[slot]
        context.start_s[repeat, op] = start_s
        context.finish_s[repeat, op] = finish_s
        context.memory.flags.publish(op, context.epoch)
        if op in self._sent:
            context.memory.wake_agent()
        lane.done += 1
        self._look(slot)
        context.counters.set(lane.index, issued=lane.before + lane.issued, done=lane.before + lane.done)
