"""What the ranks on this host print, line by line, as messages of the logger ``heterotask.ranks``.

Whoever wants to see them while the job runs gives that logger a handler and the level INFO; else nothing is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from heterotask_core.program.model import RankRole

LOGGER = logging.getLogger("heterotask.ranks")
MAX_LINES = 2_000
"""So many lines of a rank are passed on; the rest stays in its file."""
_CHUNK_BYTES = 65_536
_LONGEST_LINE = 4_000


class Echo:
    """Follows the output files of a job's ranks. Not thread-safe."""

    def __init__(self, folder: Path, ranks: Sequence[RankRole]) -> None:
        """``folder``: the job's, where each rank writes ``output-RANK.txt``."""
        self._files = [_Follower(folder / f"output-{rank}.txt", rank, role.node) for rank, role in enumerate(ranks)]

    def poll(self, *, last: bool = False) -> None:
        """Pass on the lines that are complete, with ``last`` also one without an end; cheap when nobody listens."""
        if LOGGER.isEnabledFor(logging.INFO):
            for file in self._files:
                file.poll(last=last)


class _Follower:
    def __init__(self, path: Path, rank: int, node: str) -> None:
        self._path, self._rank, self._node = path, rank, node
        self._at = self._lines = 0

    def poll(self, *, last: bool) -> None:
        while self._lines < MAX_LINES and (data := self._read()):
            whole = data.rfind(b"\n") + 1
            if not whole and (last or len(data) >= _CHUNK_BYTES):
                whole = len(data)
            if not whole:
                return
            self._at += whole
            for line in data[:whole].decode(errors="replace").splitlines():
                if line.strip() and self._lines < MAX_LINES:
                    self._lines += 1
                    LOGGER.info("rank %d, node %s: %s", self._rank, self._node, line.rstrip()[:_LONGEST_LINE])
            if self._lines >= MAX_LINES:
                LOGGER.info("rank %d, node %s: further lines are left out", self._rank, self._node)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                return file.read(_CHUNK_BYTES)
        except OSError:
            # Not there yet, or on another host.
            return b""
