"""Offsets for slots that live for a while, so that the peak stays near the live bytes.

Dynamic storage allocation with known lifetimes. Five greedy rules, of which the smallest peak is kept: slots in
order of first access, at the first or the tightest gap; and at the tightest gap between those that live at the same
time, slots by decreasing size and first access (which packs slots of one size perfectly), by decreasing size and
lifetime (as TensorFlow Lite's memory planner), and by decreasing size × lifetime. The last three are repeated with the
slots that made the peak placed first, where the peak is still far from the live bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from heterotask_core.planning.problem import F64, I64
from heterotask_core.program.tenants import ByteMap

QUADRATIC_SLOTS = 40_000
"""Slots of a memory up to which rules are tried that look at all pairs (seconds at this number)."""
MOST_TRIES = 100
PAIRS, ALL_PAIRS = 1_000_000_000, 4_000_000_000
"""Each of these rules is tried again as often as these (of one memory, of all together) allow."""
NEAR_LIVE = 1.01
"""No further rule is tried once the peak is within this factor of the live bytes."""
REPEAT_ABOVE = 1.05
"""A rule is repeated while the peak exceeds the live bytes by this factor: less is not worth the time."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A byte range to place: ``accesses`` are the ops that touch it in program order, the first one writes."""

    memory: int
    size_bytes: int
    accesses: tuple[int, ...]
    start_s: float
    """Planned start of the first access."""
    free_s: float
    """Planned end of the last one."""


def pack(
    slots: Sequence[Slot], alignment_bytes: I64, n_memories: int, max_allocation_bytes: I64 | None = None
) -> tuple[I64, I64]:
    """Place ``slots`` and return (offsets in bytes, bytes needed a memory).

    Two slots share bytes only if one's last access precedes the other's first in program order and is planned to end
    by then. With ``max_allocation_bytes`` (M,), 0 where there is no limit, no slot straddles a multiple of it.
    """
    offsets, sizes = np.zeros(len(slots), np.int64), np.zeros(n_memories, np.int64)
    mine: list[list[int]] = [[] for _ in range(n_memories)]
    pairs = min(PAIRS, ALL_PAIRS // max(1, n_memories))
    for s, slot in enumerate(slots):
        if slot.size_bytes > 0:
            mine[slot.memory].append(s)
    for m, members in enumerate(mine):
        if not members:
            continue
        members.sort(key=lambda s: (slots[s].accesses[0], s))
        size = np.array([slots[s].size_bytes for s in members], np.int64)
        first = np.array([slots[s].accesses[0] for s in members], np.int64)
        last = np.array([slots[s].accesses[-1] for s in members], np.int64)
        start_s = np.array([slots[s].start_s for s in members], np.float64)
        free_s = np.array([slots[s].free_s for s in members], np.float64)
        limit = 0 if max_allocation_bytes is None else int(max_allocation_bytes[m])
        found = _pack_memory(size, first, last, start_s, free_s, int(alignment_bytes[m]), limit, pairs)
        offsets[members] = found
        sizes[m] = int((found + size).max())
    return offsets, sizes


def successions(slots: Sequence[Slot], offsets: I64, n_memories: int) -> list[tuple[int, int]]:
    """Return (later, earlier) slots of which the later takes bytes right from the earlier; the rest follows."""
    pairs: list[tuple[int, int]] = []
    holders = [ByteMap() for _ in range(n_memories)]
    for s in sorted(range(len(slots)), key=lambda i: (slots[i].accesses[0], i)):
        if slots[s].size_bytes > 0:
            start = int(offsets[s])
            before = holders[slots[s].memory].take(start, start + slots[s].size_bytes, s)
            pairs += [(s, e) for e in before]
    return pairs


def _pack_memory(
    size: I64, first: I64, last: I64, start_s: F64, free_s: F64, alignment: int, limit: int, pairs: int
) -> I64:
    """Return offsets of one memory's slots, which stand in order of first access."""
    n = len(size)
    room = -(-size // alignment) * alignment
    live = peak_live(room, start_s, free_s)
    enough = NEAR_LIVE * live
    best: I64 = _in_order(room, first, last, start_s, free_s, limit, False)
    peak = int((best + size).max())
    if peak > enough:
        found: I64 = _in_order(room, first, last, start_s, free_s, limit, True)
        if int((found + size).max()) < peak:
            best, peak = found, int((found + size).max())
    if n > QUADRATIC_SLOTS:
        return best
    lifetime = np.maximum(free_s - start_s, 0.0)
    orders = np.lexsort((first, -room)), np.lexsort((-lifetime, -room)), np.lexsort((-room, -(room * lifetime)))
    for order in orders:
        # What makes the peak is placed before everything else the next time.
        for attempt in range(max(1, min(MOST_TRIES, pairs // n**2))):
            if peak <= (REPEAT_ABOVE * live if attempt else enough):
                break
            found = _by_rank(order, room, first, last, start_s, free_s, limit)
            ends = found + size
            if int(ends.max()) < peak:
                best, peak = found, int(ends.max())
            at_top = ends[order] == ends.max()
            order = np.concatenate([order[at_top], order[~at_top]])
    return best


def peak_live(size: I64, start_s: F64, free_s: F64) -> int:
    """Return the largest sum of sizes that are alive at one planned time: no packing needs less."""
    time_s = np.concatenate([free_s, start_s])
    change = np.concatenate([-size, size])
    # What ends at a time makes room for what starts then.
    order = np.lexsort((np.arange(len(change)), time_s))
    return int(np.cumsum(change[order]).max(initial=0))


@numba.njit(cache=True)
def _fit(low, room, limit):  # type: ignore[no-untyped-def]
    """The first offset from ``low`` on at which ``room`` bytes straddle no multiple of ``limit``."""
    if limit > 0 and low // limit != (low + room - 1) // limit:
        return -(-low // limit) * limit
    return low


@numba.njit(cache=True)
def _in_order(room, first, last, start_s, free_s, limit, tightest):  # type: ignore[no-untyped-def]
    n = len(room)
    offset = np.zeros(n, np.int64)
    alive = np.empty(n, np.int64)
    n_alive = 0
    for s in range(n):
        kept = 0
        for k in range(n_alive):
            e = alive[k]
            if not (last[e] < first[s] and free_s[e] <= start_s[s]):
                alive[kept] = e
                kept += 1
        n_alive = kept
        at, best, waste, place = 0, -1, np.int64(0), 0
        for k in range(n_alive):
            e = alive[k]
            low = _fit(at, room[s], limit)
            if low + room[s] <= offset[e]:
                spare = offset[e] - at - room[s]
                if best < 0 or spare < waste:
                    best, waste, place = low, spare, k
                if not tightest:
                    break
            at = max(at, offset[e] + room[e])
        if best < 0:
            best, place = _fit(at, room[s], limit), n_alive
        offset[s] = best
        for k in range(n_alive, place, -1):
            alive[k] = alive[k - 1]
        alive[place] = s
        n_alive += 1
    return offset


@numba.njit(cache=True)
def _by_rank(order, room, first, last, start_s, free_s, limit):  # type: ignore[no-untyped-def]
    n = len(room)
    offset = np.zeros(n, np.int64)
    placed = np.empty(n, np.int64)
    for i in range(n):
        s = order[i]
        at, best, waste = 0, -1, np.int64(0)
        for k in range(i):
            e = placed[k]
            if last[e] < first[s] and free_s[e] <= start_s[s]:
                continue
            if last[s] < first[e] and free_s[s] <= start_s[e]:
                continue
            low = _fit(at, room[s], limit)
            if low + room[s] <= offset[e]:
                spare = offset[e] - at - room[s]
                if best < 0 or spare < waste:
                    best, waste = low, spare
                if spare == 0:
                    break
            at = max(at, offset[e] + room[e])
        if best < 0:
            best = _fit(at, room[s], limit)
        offset[s] = best
        k = i
        while k > 0 and offset[placed[k - 1]] > best:
            placed[k] = placed[k - 1]
            k -= 1
        placed[k] = s
    return offset
