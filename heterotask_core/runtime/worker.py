"""Entry of every rank: ``python -m mpi4py -m heterotask_core.runtime.worker FOLDER``.

Pins the rank and limits its threads *before* NumPy is imported: thread pools are sized at import.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")


def main() -> None:
    """Run the rank; an exception makes mpi4py abort the whole job."""
    folder = Path(sys.argv[1])
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    roles = json.loads((folder / "program.json").read_text())["ranks"]
    if comm.size != len(roles):
        raise SystemExit(f"the program has {len(roles)} ranks but the job has {comm.size}; check mpiexec and its MPI")
    allowed = os.sched_getaffinity(0)
    cores = set(roles[comm.rank]["core_ids"]) & allowed
    if cores:
        os.sched_setaffinity(0, cores)
    for name in _THREADS:
        os.environ[name] = str(max(1, len(cores)))

    from heterotask_core.runtime.rank import run_rank

    run_rank(folder, comm, cores=len(allowed))


if __name__ == "__main__":
    main()
