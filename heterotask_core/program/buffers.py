"""Offsets for slots that live for a while: first fit in order of first access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterotask_core.planning.problem import I64


@dataclass(frozen=True, slots=True)
class Slot:
    """A byte range to place: ``accesses`` are the ops that touch it in program order, the first one writes."""

    memory: int
    size_bytes: int
    accesses: tuple[int, ...]
    free_s: float


def pack(
    slots: Sequence[Slot], start_s: Sequence[float], alignment_bytes: I64, n_memories: int
) -> tuple[I64, I64, list[tuple[int, int]]]:
    """Place ``slots`` and return (offsets in bytes, bytes needed a memory, pairs (later, earlier) that share bytes).

    ``start_s`` is the planned start of each slot's first access. Two slots may share bytes only if the earlier one's
    last access precedes the later one's first in program order and is planned to end by then.
    """
    offsets, sizes = np.zeros(len(slots), np.int64), np.zeros(n_memories, np.int64)
    conflicts: list[tuple[int, int]] = []
    placed: list[list[int]] = [[] for _ in range(n_memories)]
    for s in sorted(range(len(slots)), key=lambda i: (slots[i].accesses[0], i)):
        slot = slots[s]
        if slot.size_bytes == 0:
            continue
        earlier = placed[slot.memory]
        done = [e for e in earlier if slots[e].accesses[-1] < slot.accesses[0] and slots[e].free_s <= start_s[s]]
        alive = sorted(set(earlier) - set(done), key=lambda e: (offsets[e], e))
        align, offset = int(alignment_bytes[slot.memory]), 0
        for e in alive:
            if offset + slot.size_bytes <= offsets[e]:
                break
            end = int(offsets[e]) + slots[e].size_bytes
            offset = max(offset, -(-end // align) * align)
        offsets[s] = offset
        end = offset + slot.size_bytes
        sizes[slot.memory] = max(int(sizes[slot.memory]), end)
        shared = [e for e in done if offset < offsets[e] + slots[e].size_bytes and offsets[e] < end]
        conflicts += [(s, e) for e in shared]
        # A tenant wholly covered by later ones is ordered before whoever follows through them.
        placed[slot.memory] = [
            e
            for e in earlier
            if e not in shared or not (offset <= offsets[e] and offsets[e] + slots[e].size_bytes <= end)
        ]
        placed[slot.memory].append(s)
    return offsets, sizes, conflicts
