"""What a failed run leaves to look at: the outputs of its ranks and the times measured so far."""

from __future__ import annotations

import errno
import logging
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heterotask_core.errors import HeteroTaskError
from heterotask_core.files import whole_file
from heterotask_core.program.io import load_program
from heterotask_core.program.model import F64
from heterotask_core.runtime.context import JobSpec
from heterotask_core.runtime.outputs import Outputs
from heterotask_core.runtime.times import read_times

PARTIAL_FILE = "partial.npz"
"""In the results' folder: ``start_s`` and ``finish_s``, (repeats, N) seconds on the host's clock, +∞ where unknown,
and ``printed``, the names of the files beside it that hold what ranks printed."""
_PRINTED = re.compile(r"output(-\d+)?\.txt")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger(__name__)


def keep_partial(folder: Path) -> None:
    """Copy outputs and times of the job in ``folder`` to its results' folder (see :func:`keep_times`)."""
    try:
        program, spec, outputs = load_program(folder), JobSpec.load(folder), Outputs.load(folder)
        start_s, finish_s = read_times(folder, len(program.ranks), spec.repeats, program.n_ops)
        printed = [path for path in sorted(folder.glob("output*.txt")) if path.stat().st_size]
    except (OSError, HeteroTaskError, ValueError, TypeError, KeyError) as error:
        _log.warning("what is left of the failed run cannot be read: %s", error)
        return
    keep_times(outputs, start_s, finish_s, printed)


def keep_times(outputs: Outputs, start_s: F64, finish_s: F64, printed: Sequence[Path] = ()) -> None:
    """Write times, (repeats, N) seconds, and copies of what ranks ``printed`` to the folder of the results.

    Where the disk is full, results of the failed run make room for them, the largest first. What an earlier failed
    run has left there goes.
    """
    done = np.isfinite(finish_s)
    start_s, finish_s = np.where(done, start_s, np.inf), np.where(done, finish_s, np.inf)
    drop_partial(outputs.folder)

    def write() -> None:
        names = np.array([path.name for path in printed], np.str_)
        with whole_file(outputs.folder / PARTIAL_FILE) as file:
            np.savez_compressed(file, start_s=start_s, finish_s=finish_s, printed=names)
        for path in printed:
            with whole_file(outputs.folder / path.name) as file:
                file.write(path.read_bytes())

    with_room(outputs, write)


def drop_partial(output_dir: Path) -> None:
    """Remove what :func:`keep_times` has left in ``output_dir``: of a run that comes next nothing of it is true."""
    path = output_dir / PARTIAL_FILE
    try:
        # Opened here: NumPy leaves the file open when it is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not {"start_s", "finish_s"} <= set(stored.files):
                return
            printed = stored["printed"].tolist() if "printed" in stored.files else []
        for name in [*printed, PARTIAL_FILE]:
            if name == PARTIAL_FILE or _PRINTED.fullmatch(name):
                (output_dir / name).unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        _log.warning("%s is left of another run, or of something else, and stays: %s", path, error)


def with_room(outputs: Outputs, write: Callable[[], None]) -> None:
    """Call ``write``; while the disk is full, delete the largest result that the failed run wrote, and call it again.

    Nothing else in the folder is touched: it may be a user's, with more in it than results.
    """
    while True:
        try:
            write()
            return
        except OSError as error:
            largest = max(outputs.written(), key=lambda path: path.stat().st_size, default=None)
            if error.errno not in _FULL or largest is None or largest.stat().st_size == 0:
                _log.warning("what is left of the failed run cannot be kept: %s", error.strerror or error)
                return
            _log.info("the disk is full: the result %s makes room for the trace of the run that wrote it", largest.name)
            largest.unlink()
