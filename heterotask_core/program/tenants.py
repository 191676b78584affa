"""Who holds which bytes of a memory, tenant after tenant: what lowering orders and the verifier checks."""

from __future__ import annotations

import bisect


class ByteMap:
    """The last tenant of every byte that had one: disjoint ranges in order, each with the number of its tenant."""

    def __init__(self) -> None:
        """Begin with a memory that nobody has used."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._tenants: list[int] = []

    def take(self, start: int, stop: int, tenant: int) -> list[int]:
        """Give bytes [start, stop) to ``tenant``; return who held any of them before, each once, in order of bytes.

        Tenants that follow each other here pair by pair are ordered altogether: whoever held a byte before the last
        holder was returned when that one took it.
        """
        starts, stops, tenants = self._starts, self._stops, self._tenants
        i = bisect.bisect_right(starts, start)
        if i and stops[i - 1] > start:
            i -= 1
        j = i
        before: dict[int, None] = {}
        left: list[tuple[int, int, int]] = []
        right: list[tuple[int, int, int]] = []
        while j < len(starts) and starts[j] < stop:
            before[tenants[j]] = None
            if starts[j] < start:
                left.append((starts[j], start, tenants[j]))
            if stops[j] > stop:
                right.append((stop, stops[j], tenants[j]))
            j += 1
        pieces = [*left, (start, stop, tenant), *right]
        starts[i:j] = [p[0] for p in pieces]
        stops[i:j] = [p[1] for p in pieces]
        tenants[i:j] = [p[2] for p in pieces]
        return list(before)
