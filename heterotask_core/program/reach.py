"""Which ops are complete before which others start, by enforced edges alone.

Kernels and copies of a lane are complete in its order, so a lane is a chain, and what an op has behind it is one
position a chain (a vector clock): ops × lanes numbers instead of ops × ops bits. Network transfers are no chain,
because several of a lane are in flight; what follows one is found through the first op of each chain that waits
for it.
"""

from __future__ import annotations

import numba
import numpy as np

from heterotask_core.program.model import I32, I64, LaneKind, Program
from heterotask_core.simulate import topological_order

BLOCK_BYTES = 256 << 20
"""Memory for vector clocks; more chains than fit are gone through in several passes."""


class Reach:
    """The enforced order of a program: dependencies, and the lanes whose ops are complete in order."""

    def __init__(self, program: Program) -> None:
        """Find the chains; raises :class:`~heterotask_core.errors.ProgramError` when the order has a cycle."""
        n = program.n_ops
        self._order = topological_order(program)
        self.place = np.empty(n, np.int64)
        """(N,): position of every op in one order that respects all lanes and dependencies."""
        self.place[self._order] = np.arange(n)
        self._chain = np.full(n, -1, np.int32)
        self._position = np.zeros(n, np.int32)
        followers = [np.repeat(np.arange(n, dtype=np.int32), np.diff(program.dep_ptr))]
        leaders = [program.dep_ops]
        self._n_chains = 0
        for k in range(len(program.lane_names)):
            if program.lane_kinds[k] in (LaneKind.CAPACITY, LaneKind.SEND, LaneKind.RECEIVE):
                continue
            ops = program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]
            if len(ops):
                self._chain[ops] = self._n_chains
                self._position[ops] = np.arange(len(ops))
                self._n_chains += 1
                followers.append(ops[1:])
                leaders.append(ops[:-1])
        self._ptr, self._before = _csr(np.concatenate(followers), np.concatenate(leaders), n)
        self._first = self._after_transfers(np.concatenate(followers), np.concatenate(leaders))

    def _after_transfers(self, follower: I32, leader: I32) -> dict[int, tuple[dict[int, int], list[int]]]:
        """Transfer → (chain → position of the first op there that follows it, transfers that wait for it)."""
        direct: dict[int, list[int]] = {int(t): [] for t in np.flatnonzero(self._chain < 0)}
        for edge in np.flatnonzero(self._chain[leader] < 0).tolist():
            direct[int(leader[edge])].append(int(follower[edge]))
        found: dict[int, tuple[dict[int, int], list[int]]] = {}
        for t in sorted(direct, key=lambda op: -self.place[op]):
            first: dict[int, int] = {}
            transfers = []
            for op in direct[t]:
                chain = int(self._chain[op])
                if chain < 0:
                    transfers.append(op)
                    following = list(found[op][0].items())
                else:
                    following = [(chain, int(self._position[op]))]
                for c, position in following:
                    first[c] = min(first.get(c, position), position)
            found[t] = first, transfers
        return found

    def ordered(self, before: I64 | I32, after: I64 | I32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return (Q,) whether op ``before[q]`` is complete before op ``after[q]`` starts, whatever anything takes."""
        rows: list[tuple[int, int, int, int, bool]] = []
        answer = np.zeros(len(before), bool)
        is_transfer = self._chain[before] < 0
        for q in np.flatnonzero(is_transfer).tolist():
            x, y = int(before[q]), int(after[q])
            if self._chain[y] < 0 and self._follows(x, y):
                answer[q] = True
            rows += [(q, y, c, position, True) for c, position in self._first[x][0].items()]
        plain = np.flatnonzero(~is_transfer)
        extra = np.array(rows, np.int64).reshape(-1, 5)
        query = np.concatenate([plain, extra[:, 0]])
        target = np.concatenate([np.asarray(after, np.int64)[plain], extra[:, 1]])
        chain = np.concatenate([self._chain[before][plain], extra[:, 2]])
        position = np.concatenate([self._position[before][plain], extra[:, 3]])
        # An op that itself is the first to follow counts as following.
        own = (self._chain[target] == chain) & (self._position[target] >= position)
        answer[query[own & (np.arange(len(query)) >= len(plain))]] = True
        width = max(1, BLOCK_BYTES // (4 * max(1, len(self._chain))))
        for low in range(0, self._n_chains, width):
            inside = np.flatnonzero((chain >= low) & (chain < low + width))
            if len(inside):
                n = min(width, self._n_chains - low)
                clock = _clocks(self._order, self._ptr, self._before, self._chain, self._position, low, n)
                reached = clock[target[inside], chain[inside] - low] >= position[inside]
                answer[query[inside[reached]]] = True
        return answer

    def _follows(self, x: int, y: int) -> bool:
        """Whether transfer ``y`` waits for transfer ``x`` through transfers alone."""
        stack, seen = [x], {x}
        while stack:
            for op in self._first[stack.pop()][1]:
                if op == y:
                    return True
                if op not in seen and self.place[op] < self.place[y]:
                    seen.add(op)
                    stack.append(op)
        return False


def _csr(follower: I32, leader: I32, n: int) -> tuple[I64, I32]:
    order = np.argsort(follower, kind="stable")
    ptr = np.zeros(n + 1, np.int64)
    ptr[1:] = np.cumsum(np.bincount(follower, minlength=n))
    return ptr, leader[order].astype(np.int32)


@numba.njit(cache=True)
def _clocks(order, ptr, before, chain, position, low, width):  # type: ignore[no-untyped-def]
    clock = np.full((len(order), width), -1, np.int32)
    for i in order:
        for e in range(ptr[i], ptr[i + 1]):
            p = before[e]
            for c in range(width):
                clock[i, c] = max(clock[i, c], clock[p, c])
            own = chain[p] - low
            if 0 <= own < width:
                clock[i, own] = max(clock[i, own], position[p])
    return clock
