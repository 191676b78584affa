"""What a failed run leaves to look at: the outputs of its ranks and the times measured so far."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from heterotask_core.errors import HeteroTaskError
from heterotask_core.program.io import load_program
from heterotask_core.runtime.context import JobSpec
from heterotask_core.runtime.times import read_times

PARTIAL_FILE = "partial.npz"
"""In the results' folder: ``start_s`` and ``finish_s``, (repeats, N) seconds on the host's clock, +∞ where unknown."""
_log = logging.getLogger(__name__)


def keep_partial(folder: Path) -> None:
    """Copy outputs and times of the job in ``folder`` to its results' folder.

    Where the disk is full, results of the failed run make room for them, the largest first.
    """
    try:
        program, spec = load_program(folder), JobSpec.load(folder)
        output_dir = Path(spec.output_dir)
        start_s, finish_s = read_times(folder, len(program.ranks), spec.repeats, program.n_ops)
    except (OSError, HeteroTaskError, ValueError, TypeError) as error:
        _log.warning("what is left of the failed run cannot be read: %s", error)
        return
    done = np.isfinite(finish_s)
    start_s, finish_s = np.where(done, start_s, np.inf), np.where(done, finish_s, np.inf)

    def write() -> None:
        np.savez_compressed(output_dir / PARTIAL_FILE, start_s=start_s, finish_s=finish_s)
        for path in sorted(folder.glob("output*.txt")):
            if path.stat().st_size:
                (output_dir / path.name).write_bytes(path.read_bytes())

    with_room(output_dir, write)


def with_room(output_dir: Path, write: Callable[[], None]) -> None:
    """Call ``write``; while the disk is full, delete the largest file of the failed run and call it again."""
    while True:
        try:
            write()
            return
        except OSError as error:
            files = [p for p in output_dir.rglob("*") if p.is_file() and p.name not in (PARTIAL_FILE, "manifest.json")]
            largest = max(files, key=lambda path: path.stat().st_size, default=None)
            if error.errno != errno.ENOSPC or largest is None or largest.stat().st_size == 0:
                _log.warning("what is left of the failed run cannot be kept in %s: %s", output_dir, error)
                return
            largest.unlink()
