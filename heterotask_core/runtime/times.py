"""Start and end of every op, kept in files of the job's folder: what a rank has measured outlives it.

``trace-R`` holds two float64 arrays (repeats, N), starts then ends, −inf where nothing was measured.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from heterotask_core.errors import ExecutionError
from heterotask_core.program.model import F64


def shared_times(folder: Path, rank: int, repeats: int, n_ops: int) -> tuple[F64, F64]:
    """Return new (starts, ends) of a rank, mapped from its file; an earlier program's arrays stay as they are.

    Raises:
        ExecutionError: there is no room for the file.
    """
    path = folder / f"trace-{rank}"
    path.unlink(missing_ok=True)
    size_bytes = max(1, 2 * repeats * n_ops * 8)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # A sparse file on a full disk would end in a SIGBUS later.
        os.posix_fallocate(descriptor, 0, size_bytes)
        words = np.frombuffer(mmap.mmap(descriptor, size_bytes), np.float64, 2 * repeats * n_ops)
    except OSError as error:
        raise ExecutionError(
            f"{path}: cannot write the trace ({error.strerror}); free space there, or set TMPDIR"
        ) from error
    finally:
        os.close(descriptor)
    words[:] = -np.inf
    both = words.reshape(2, repeats, n_ops)
    return both[0], both[1]


def read_times(folder: Path, n_ranks: int, repeats: int, n_ops: int) -> tuple[F64, F64]:
    """Return (starts, ends) of all ranks as far as they got; the later of two ranks that share an op."""
    whole = np.full((2, repeats, n_ops), -np.inf)
    for rank in range(n_ranks):
        path = folder / f"trace-{rank}"
        if path.exists() and path.stat().st_size >= whole.nbytes > 0:
            np.maximum(whole, np.fromfile(path, np.float64, whole.size).reshape(whole.shape), out=whole)
    return whole[0], whole[1]
