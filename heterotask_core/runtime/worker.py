"""Entry of every rank: ``python -m mpi4py -m heterotask_core.runtime.worker FOLDER``.

Pins the rank and limits its threads *before* NumPy is imported: thread pools are sized at import.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import sys
from pathlib import Path

from heterotask_core.interrupts import leave

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")


def main() -> None:
    """Run the rank, and end the process; an exception makes mpi4py abort the whole job."""
    # Nothing that imports make is garbage: to look for some takes a tenth of their time (see run_program).
    gc.disable()
    folder = Path(sys.argv[1])
    if not folder.is_dir():
        raise SystemExit(
            f"host {os.uname().nodename} does not see {folder}: ranks of several hosts need a store (--store) in a "
            "folder that all of them share"
        )
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    _own_output(folder / f"output-{comm.rank}.txt")
    session = (folder / "session.json").exists()
    roles = json.loads((folder / ("session.json" if session else "program.json")).read_text())["ranks"]
    if comm.size != len(roles):
        raise SystemExit(f"the program has {len(roles)} ranks but the job has {comm.size}; check mpiexec and its MPI")
    allowed = os.sched_getaffinity(0)
    cores = set(roles[comm.rank]["core_ids"]) & allowed
    if cores:
        os.sched_setaffinity(0, cores)
    for name in _THREADS:
        os.environ[name] = str(max(1, len(cores)))

    from heterotask_core.runtime.context import write_missing_error

    try:
        if session:
            from heterotask_core.runtime.serve import serve

            serve(folder, comm, cores=len(allowed))
        else:
            from heterotask_core.runtime.rank import run_rank

            run_rank(folder, comm, cores=len(allowed))
    except Exception as error:
        write_missing_error(folder, comm.rank, error)
        raise
    # Before MPI ends: what is registered may need it.
    atexit._run_exitfuncs()
    MPI.Finalize()
    leave(0)


def _own_output(path: Path) -> None:
    """Send what this process prints, and the stack of a crash, to its own file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    faulthandler.enable()


if __name__ == "__main__":
    main()
