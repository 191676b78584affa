"""Clocks of nodes, put on the clock of the first node: offset and drift from ping-pong before and after the run.

A round trip is three times: asked and answered on the reference clock, stamped on the other one in between. It
bounds the offset (other minus reference) by ``stamped − answered`` and ``stamped − asked`` (Cristian, 1989). Trips
close together share one offset, so their bounds are intersected. Between the two moments the offset is taken to be
linear in time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heterotask_core.program.model import F64

if TYPE_CHECKING:
    from heterotask_core.runtime.context import Context

ROUNDS = 8
"""Round trips a node and moment."""
_TAG = 2


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The clock of a node beside the first node's, in seconds."""

    offset_s: float
    """What it is ahead, at ``at_s``."""
    drift: float
    """Seconds that it gains a second."""
    at_s: float
    """The moment on this clock in the middle of the run."""
    error_s: float
    """Largest error of a converted time between the round trips before and after, if the drift is constant."""

    def to_reference(self, times_s: F64) -> F64:
        """Return times of this clock on the reference clock."""
        # So that −∞, not measured, stays what it is.
        return times_s * (1.0 - self.drift) - (self.offset_s - self.drift * self.at_s)


SAME = NodeClock(0.0, 0.0, 0.0, 0.0)
"""The clock of the first node itself."""


def fit_clock(before: F64, after: F64) -> NodeClock:
    """Return the clock that fits round trips (n, 3) of [asked, stamped, answered] before and after a run.

    A clock whose bounds at both moments allow that there is no offset is taken to be the reference clock itself: nodes
    of one host, whose times a correction could only blur.
    """
    (first_s, first_error_s, first_at_s), (last_s, last_error_s, last_at_s) = _offset(before), _offset(after)
    if abs(first_s) <= first_error_s and abs(last_s) <= last_error_s:
        # The offset may be anywhere within the bounds, which 0 need not be in the middle of.
        return NodeClock(0.0, 0.0, 0.0, max(abs(first_s) + first_error_s, abs(last_s) + last_error_s))
    span_s = last_at_s - first_at_s
    drift = (last_s - first_s) / span_s if span_s > 0 else 0.0
    middle_s = (first_at_s + last_at_s) / 2
    return NodeClock((first_s + last_s) / 2, drift, middle_s, max(first_error_s, last_error_s))


def _offset(trips: F64) -> tuple[float, float, float]:
    """Return (offset, its error, when on the other clock), seconds, of round trips made at about the same time."""
    lower, upper = float((trips[:, 1] - trips[:, 2]).max()), float((trips[:, 1] - trips[:, 0]).min())
    if lower > upper:
        # The clock drifted between the trips: the shortest alone.
        best = trips[np.argmin(trips[:, 2] - trips[:, 0])]
        lower, upper = float(best[1] - best[2]), float(best[1] - best[0])
    return (lower + upper) / 2, (upper - lower) / 2, float(trips[:, 1].mean())


def exchange(context: Context) -> F64:
    """Measure round trips from the first node's agent to every other; all agents call this, other ranks may.

    Returns (nodes, ROUNDS, 3) on the first agent, nothing elsewhere. Emulated devices have logical time: nothing.
    """
    agents = [rank for rank, role in enumerate(context.program.ranks) if role.device is None]
    trips = np.zeros((len(agents), ROUNDS, 3))
    if context.rank not in agents or len(agents) < 2 or _logical(context):
        return np.zeros((0, ROUNDS, 3))
    stamp = np.zeros(1)
    if context.rank != agents[0]:
        for _ in range(ROUNDS):
            _wait(context.comm.Irecv(stamp, agents[0], _TAG))
            stamp[0] = time.monotonic()
            _wait(context.comm.Isend(stamp, agents[0], _TAG))
        return np.zeros((0, ROUNDS, 3))
    for node, peer in enumerate(agents[1:], 1):
        for trip in range(ROUNDS):
            trips[node, trip, 0] = time.monotonic()
            _wait(context.comm.Isend(stamp, peer, _TAG))
            _wait(context.comm.Irecv(stamp, peer, _TAG))
            trips[node, trip, 1:] = stamp[0], time.monotonic()
    return trips


def align(context: Context, before: F64, after: F64) -> tuple[NodeClock, ...]:
    """Put this rank's times on the first node's clock; every rank calls this, and gets the clocks of all nodes."""
    program = context.program
    nodes = list(dict.fromkeys(role.node for role in program.ranks))
    if len(nodes) < 2 or _logical(context):
        return (SAME,) * len(nodes)
    table = np.zeros((len(nodes), 4))
    agents = [rank for rank, role in enumerate(program.ranks) if role.device is None]
    if context.rank == agents[0]:
        for node in range(1, len(nodes)):
            fit = fit_clock(before[node], after[node])
            table[node] = fit.offset_s, fit.drift, fit.at_s, fit.error_s
    _wait(context.comm.Ibcast(table, root=agents[0]))
    clocks = tuple(NodeClock(*row) for row in table.tolist())
    own = clocks[nodes.index(context.role.node)]
    for times_s in (context.start_s, context.finish_s):
        times_s[:] = own.to_reference(times_s)
    return clocks


def _logical(context: Context) -> bool:
    return any(device["kind"] == "emulated" for device in context.spec.devices.values())


def _wait(request: Any) -> None:
    # Ranks may share cores: spinning inside MPI would keep the other end from answering.
    while not request.Test():
        os.sched_yield()
