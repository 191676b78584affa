"""Lanes: finding a gap in one or several of them, and reserving an interval (Numba).

Lane ``l`` is busy in ``lane_length[l]`` sorted intervals from index ``l * room`` on, in the workspace of
:mod:`~heterotask_core.planning.placing`. What moves hold that are only planned is a list of its own, as it is thrown
away for every memory that is tried.
"""

from __future__ import annotations

import numpy as np

from heterotask_core.planning.raw import inner

BLOCK, BLOCKED = 16, 64
"""Intervals for which the widest gap is kept together, and intervals of a lane from which on gaps are kept."""


@inner(forceinline=True)
def _free_from(w, lane, t, duration):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``t`` on that is free on one lane."""
    n = w.lane_length[lane]
    first = lane * w.room
    end = first + n
    if n == 0 or w.busy_finish[end - 1] <= t:
        return t
    # The first interval that ends after t, by longer and longer strides from where the last search ended.
    low, high = first, end - 1
    at, stride = first + min(w.finger[lane], n - 1), 1
    if w.busy_finish[at] > t:
        high = at
        while high > low:
            at = high - stride
            if at < low:
                break
            if w.busy_finish[at] <= t:
                low = at + 1
                break
            high = at
            stride *= 2
    else:
        low = at + 1
        while low < high:
            at = low + stride - 1
            if at >= high:
                break
            if w.busy_finish[at] > t:
                high = at
                break
            low = at + 1
            stride *= 2
    while low < high:
        middle = (low + high) >> 1
        if w.busy_finish[middle] > t:
            high = middle
        else:
            low = middle + 1
    while low < end and w.busy_start[low] < t + duration:
        if n >= BLOCKED and (low - first) % BLOCK == BLOCK - 1:
            # Blocks in which no gap is wide enough; what rounding may hide is added.
            block, n_blocks = (low - first) // BLOCK + 1, n // BLOCK
            at = lane * (w.room // BLOCK + 1)
            while block < n_blocks and w.widest_s[at + block] + 1e-15 * w.busy_finish[end - 1] < duration:
                block += 1
            low = first + block * BLOCK - 1
        t = w.busy_finish[low]
        low += 1
    w.finger[lane] = low - first
    return t


@inner(forceinline=True)
def keep_gaps(w, lane, since, until):  # type: ignore[no-untyped-def]
    """Find the widest gaps of the blocks that hold a lane's intervals ``since`` to ``until`` anew."""
    n, first = w.lane_length[lane], lane * w.room
    if n < BLOCKED:
        return
    # A lane that has just become long has no gaps yet.
    low = 0 if n == BLOCKED else since // BLOCK
    at = lane * (w.room // BLOCK + 1)
    for block in range(low, min(until, n - 1) // BLOCK + 1):
        widest = 0.0
        for i in range(first + block * BLOCK, first + min(n, (block + 1) * BLOCK)):
            widest = max(widest, w.busy_start[i] - w.busy_finish[i - 1] if i > first else w.busy_start[i])
        w.widest_s[at + block] = widest


@inner(forceinline=True)
def gap(w, lanes, first, last, t, duration):  # type: ignore[no-untyped-def]
    """Return the earliest start from ``t`` on that is free on ``lanes[first:last]``."""
    if duration <= 0.0 or first == last:
        return t
    k, quiet = first, 0
    while quiet < last - first:
        u = _free_from(w, lanes[k], t, duration)
        quiet = 1 if u > t else quiet + 1
        t = u
        k = first if k + 1 == last else k + 1
    return t


@inner
def hold(w, lane, least_s, start, finish):  # type: ignore[no-untyped-def]
    """Reserve an interval of a lane; intervals with nothing usable between them become one. False: no room."""
    if finish <= start:
        return True
    w.changes[lane] += 1
    n = w.lane_length[lane]
    first = lane * w.room
    end = first + n
    at = end
    while at > first and w.busy_start[at - 1] > start:
        at -= 1
    left = at > first and (w.busy_finish[at - 1] == start or w.busy_finish[at - 1] + least_s > start)
    right = at < end and (w.busy_start[at] == finish or finish + least_s > w.busy_start[at])
    if left:
        if right:
            w.busy_finish[at - 1] = w.busy_finish[at]
            for i in range(at, end - 1):
                w.busy_start[i] = w.busy_start[i + 1]
                w.busy_finish[i] = w.busy_finish[i + 1]
            w.lane_length[lane] = n - 1
            keep_gaps(w, lane, at - 1 - first, n - 1)
        else:
            w.busy_finish[at - 1] = finish
            keep_gaps(w, lane, at - first, at - first)
        return True
    if right:
        w.busy_start[at] = start
        keep_gaps(w, lane, at - first, at - first)
        return True
    if n == w.room:
        return False
    i = end
    while i > at:
        w.busy_start[i] = w.busy_start[i - 1]
        w.busy_finish[i] = w.busy_finish[i - 1]
        i -= 1
    w.busy_start[at] = start
    w.busy_finish[at] = finish
    w.lane_length[lane] = n + 1
    keep_gaps(w, lane, at - first, n)
    return True


@inner(forceinline=True)
def hold_after(w, lane, t):  # type: ignore[no-untyped-def]
    """Return the first interval held by planned moves that ends after ``t``, −1 for none; the list is not empty."""
    i = w.hold_finger[lane]
    while i >= 0 and w.hold_finish[i] <= t:
        w.hold_finger[lane] = i
        i = w.hold_next[i]
    if i < 0:
        return i
    while w.hold_before[i] >= 0 and w.hold_finish[w.hold_before[i]] > t:
        i = w.hold_before[i]
    w.hold_finger[lane] = i
    return i


@inner
def hold_planned(w, lane, start, finish):  # type: ignore[no-untyped-def]
    """Hold a lane for a planned move; intervals that touch become one."""
    if finish <= start:
        return
    after, before = np.int64(-1), np.int64(-1)
    if w.hold_try[lane] == w.used[3]:
        after = hold_after(w, lane, start)
        before = w.hold_before[after] if after >= 0 else w.hold_finger[lane]
    w.hold_try[lane] = w.used[3]
    left = before >= 0 and w.hold_finish[before] == start
    right = after >= 0 and w.hold_start[after] == finish
    if left and right:
        w.hold_finish[before] = w.hold_finish[after]
        last = w.hold_next[after]
        w.hold_next[before] = last
        if last >= 0:
            w.hold_before[last] = before
        w.hold_finger[lane] = before
    elif left:
        w.hold_finish[before] = finish
    elif right:
        w.hold_start[after] = start
    else:
        i = w.used[4]
        w.used[4] = i + 1
        w.hold_start[i], w.hold_finish[i] = start, finish
        w.hold_before[i], w.hold_next[i] = before, after
        if before >= 0:
            w.hold_next[before] = i
        if after >= 0:
            w.hold_before[after] = i
        w.hold_finger[lane] = i
