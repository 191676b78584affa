"""The shared memory of a node: arena, completion flags; and the counters that all ranks of a job share.

A :class:`NodeMemory` is one file in ``/dev/shm``: the arena at planned offsets, then the completion flags of the ops
(see flags.py), one that says up to which epoch everything is aborted, one a rank for meeting at a start line, and the
bell of the node's agent (see ``_native.c``).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heterotask_core.errors import ArenaTooSmallError, ExecutionError
from heterotask_core.runtime.flags import LINE_BYTES, LINE_WORDS, Flags, no_fence
from heterotask_core.runtime.native import native

_PAGE = 4096
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, which the mmap module does not name."""
SHM = Path("/dev/shm")
FILL = 0.9
"""Share of the free shared memory that a job may take."""


def check_free(needed_bytes: int, *, free_bytes: int | None = None) -> None:
    """Raise :class:`ArenaTooSmallError` unless ``needed_bytes`` fit into the free part of ``/dev/shm``."""
    if free_bytes is None:
        stat = os.statvfs(SHM)
        free_bytes = stat.f_bavail * stat.f_frsize
    limit = int(FILL * free_bytes)
    if needed_bytes > limit:
        raise ArenaTooSmallError(
            f"the arenas need {needed_bytes / 2**20:.1f} MiB but {SHM} has {free_bytes / 2**20:.1f} MiB free, of which "
            f"{limit / 2**20:.1f} MiB may be used; enlarge it (mount -o remount,size=… {SHM}) or plan with a smaller "
            f"problem"
        )


_GATE_WORD = 2
"""Of the agent's line, on which the bell and another word (see ``_native.c``) come first."""
MOST_RANKS = 255
"""Ranks of a node, at most."""


def node_bytes(arena_bytes: int, n_ops: int) -> int:
    """Return the size of a node's file: the arena in whole pages, then the flags."""
    return -(-arena_bytes // _PAGE) * _PAGE + _n_flags(n_ops) * LINE_BYTES


def _n_flags(n_ops: int) -> int:
    return n_ops + 1 + MOST_RANKS + 1


class NodeMemory:
    """The mapped shared memory of one node, owned by the ranks that map it; freed when the last one ends."""

    def __init__(
        self, path: Path, arena_bytes: int, n_ops: int, *, create: bool, fence: Callable[[], None] = no_fence
    ) -> None:
        """Map ``path``; with ``create`` make it first, with every page allocated. ``fence``: see :class:`Flags`.

        Raises:
            ArenaTooSmallError: the pages cannot be had (found here, not by a SIGBUS later).
        """
        self.path = path
        self.n_ops = n_ops
        size_bytes = node_bytes(arena_bytes, n_ops)
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, size_bytes)
            self._map = mmap.mmap(descriptor, size_bytes)
            self._map_pages()
        except OSError as error:
            raise ArenaTooSmallError(f"{path}: cannot allocate {size_bytes} bytes of shared memory: {error}") from error
        finally:
            os.close(descriptor)
        self.arena: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, arena_bytes)
        words = np.frombuffer(self._map, np.uint64, offset=size_bytes - _n_flags(n_ops) * LINE_BYTES)
        self.flags = Flags(words, fence=fence)
        self.aborted_address = self.flags.address + n_ops * LINE_BYTES
        self.bell_address = self.aborted_address + (1 + MOST_RANKS) * LINE_BYTES
        # Its own word: devices that wait ring the other one all the time.
        self._gate_address = self.bell_address + _GATE_WORD * 8
        self._meetings = 0
        self.publish = self.flags.publish
        self.seen = self.flags.seen

    def _map_pages(self) -> None:
        """Enter all pages into this process's page table, or the first tasks to touch them would pay for it."""
        # Kernels before 5.14 do not know it; they fault the pages in one by one.
        with contextlib.suppress(ValueError, OSError):
            self._map.madvise(_POPULATE_WRITE)

    def meet(self, index: int, n_ranks: int) -> Callable[[], bool]:
        """Arrive as rank ``index`` of the node's ``n_ranks``, which all do; return what tells whether all have."""
        self._meetings += 1
        count, first = self._meetings, self.n_ops + 1
        self.flags.publish(first + index, count)
        return lambda: all(self.flags.seen(first + i, count) for i in range(n_ranks))

    def rest(self, n_ranks: int, time_s: float) -> bool:
        """As the agent, sleep until a rank rings, ``time_s`` at most; return without where all have arrived, with True.

        Only with the compiled helper. At once where all ``n_ranks`` are at the meeting in which this rank has arrived.
        """
        helper = native()
        assert helper is not None
        first = self.flags.address + (self.n_ops + 1) * LINE_BYTES
        return bool(helper.rest(self._gate_address, first, n_ranks, self._meetings, int(time_s * 1e9)))

    def wake_agent(self) -> None:
        """End the nap of the node's agent: there is something for it to send."""
        helper = native()
        if helper is not None:
            helper.wake(self.bell_address)

    def ring(self) -> None:
        """Wake the agent that rests until all have come to the meeting in which this rank has arrived."""
        helper = native()
        assert helper is not None
        helper.wake(self._gate_address)

    def abort(self, epoch: int) -> None:
        """Tell every rank of the node to leave ``epoch`` at its next poll."""
        self.flags.publish(self.n_ops, epoch)

    def aborted(self, epoch: int) -> bool:
        """Return whether ``epoch`` is aborted on this node."""
        return self.flags.seen(self.n_ops, epoch)


class Counters:
    """Per lane, how many of its ops are issued and how many done since the start; the repeat that the node is in."""

    def __init__(self, path: Path, n_lanes: int, *, create: bool = False) -> None:
        """Map ``path``, with ``create`` made and zeroed first."""
        size_bytes = (n_lanes + 1) * LINE_BYTES
        if create:
            path.write_bytes(bytes(size_bytes))
        try:
            with path.open("r+b") as file:
                mapped = np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint64)
        except (OSError, ValueError) as error:
            raise ExecutionError(f"{path}: cannot map the counters of the job: {error}") from error
        self._words = mapped.data
        self._address = int(mapped.ctypes.data)
        self.n_lanes = n_lanes

    def address(self, lane: int) -> int:
        """Return where the two counts of a lane lie in this process."""
        return self._address + lane * LINE_BYTES

    def set(self, lane: int, *, issued: int, done: int) -> None:
        """Store the counts of one lane; only the rank that owns it does."""
        self._words[lane * LINE_WORDS] = issued
        self._words[lane * LINE_WORDS + 1] = done

    def issued(self, lane: int) -> int:
        """Return how many ops of the lane were issued, over all repeats."""
        return self._words[lane * LINE_WORDS]

    def done(self, lane: int) -> int:
        """Return how many ops of the lane are complete, over all repeats."""
        return self._words[lane * LINE_WORDS + 1]

    def enter(self, repeat: int) -> None:
        """Say that the node's ranks run ``repeat``; the first of them does."""
        self._words[self.n_lanes * LINE_WORDS] = repeat + 1
        self._words[self.n_lanes * LINE_WORDS + 1] = 1

    def leave(self) -> None:
        """Say that they have left the program's last barrier."""
        self._words[self.n_lanes * LINE_WORDS + 1] = 0

    @property
    def repeat(self) -> int:
        """The repeat that the node is in, or was in last; −1 before the first."""
        return self._words[self.n_lanes * LINE_WORDS] - 1

    @property
    def running(self) -> bool:
        """Whether the node is between a program's first and last barrier."""
        return bool(self._words[self.n_lanes * LINE_WORDS + 1])

    def total(self) -> int:
        """Return the sum of everything issued and done: it changes whenever any rank gets on."""
        return sum(self.issued(lane) + self.done(lane) for lane in range(self.n_lanes))
