"""Completion flags in memory that processes share: one cache line an op, one writer a line.

A line's first word holds the epoch in which its op was last completed; waiters test ``>=``, so nothing is ever
reset. Whoever has seen a flag also sees what its writer wrote before. Two functions only touch the words:
*publish* is a store-release and *seen* a load-acquire. The compiled helper makes them atomics of the machine.
Without it a ``memoryview`` moves the aligned word in one access, and ``fence`` (``MPI_Win_sync`` in a rank)
orders it: before the store, and after the load that saw.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from heterotask_core.runtime.native import native

LINE_BYTES = 64
"""Distance of two flags or counters: a cache line, so that writers do not disturb each other."""
LINE_WORDS = LINE_BYTES // 8


def no_fence() -> None:
    """Order nothing: enough where one process writes and reads, and on x86-64, which keeps the order of both."""


class Flags:
    """``n`` flags over a shared buffer of ``n`` lines."""

    def __init__(self, words: npt.NDArray[np.uint64], *, fence: Callable[[], None] = no_fence) -> None:
        """Use ``words``, (8 × n,) and zero at first; ``fence`` counts only without the compiled helper."""
        self._words = words
        self._view = words.data
        self.address = int(words.ctypes.data)
        self._native = native()
        self._fence = fence

    def publish(self, op: int, epoch: int) -> None:
        """Say that ``op`` is complete in ``epoch`` (store-release)."""
        if self._native is not None:
            self._native.publish(self.address + op * LINE_BYTES, epoch)
            return
        self._fence()
        self._view[op * LINE_WORDS] = epoch

    def seen(self, op: int, epoch: int) -> bool:
        """Return whether ``op`` is complete in ``epoch`` (load-acquire)."""
        if self._native is not None:
            return bool(self._native.seen(self.address + op * LINE_BYTES, epoch))
        if self._view[op * LINE_WORDS] < epoch:
            return False
        self._fence()
        return True

    def poll(
        self, aborted: int, epoch: int, deps: npt.NDArray[np.int32], ranges: Sequence[int], yield_ns: int, sleep_ns: int
    ) -> int:
        """Return which ranges of ``deps`` are complete in ``epoch``, as bits; −1 where flag ``aborted`` says so.

        ``ranges`` are (begin, end) pairs, at most eight; begin −1 is never complete. With none complete this yields
        the core until one is, ``yield_ns`` at most, and then sleeps ``sleep_ns`` once.
        """
        if self._native is not None:
            return int(
                self._native.poll(
                    self.address,
                    self.address + aborted * LINE_BYTES,
                    epoch,
                    int(deps.ctypes.data),
                    yield_ns,
                    sleep_ns,
                    *ranges,
                )
            )
        until_ns = time.monotonic_ns() + yield_ns
        while True:
            if self.seen(aborted, epoch):
                return -1
            ready = 0
            for bit, (begin, end) in enumerate(zip(ranges[::2], ranges[1::2], strict=True)):
                if begin >= 0 and all(self.seen(op, epoch) for op in deps[begin:end].tolist()):
                    ready |= 1 << bit
            if ready or yield_ns <= 0:
                return ready
            if time.monotonic_ns() >= until_ns:
                time.sleep(sleep_ns * 1e-9)
                return 0
            os.sched_yield()
