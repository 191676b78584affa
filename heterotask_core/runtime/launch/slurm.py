"""Ranks on the nodes of a Slurm allocation, through ``srun`` and its PMI-2."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from heterotask_core.errors import LaunchError
from heterotask_core.runtime.launch.base import host_counts, parent_guard, this_host


class SlurmLauncher:
    """``srun`` as a step of the allocation; MPICH speaks its PMI-2 (``--mpi=none`` would give jobs of one rank)."""

    def command(self, *, n_ranks: int, argv: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
        """Return the command line; raises :class:`LaunchError` where there is no ``srun``."""
        srun = shutil.which("srun")
        if srun is None:
            raise LaunchError("srun is not in PATH; run on a Slurm cluster, or use --launcher mpiexec")
        where = [this_host() if host == "localhost" else host for host in hosts] or [this_host()] * n_ranks
        options = [
            "--mpi=pmi2",
            f"--nodes={len(host_counts(where))}",
            f"--ntasks={n_ranks}",
            "--distribution=arbitrary",
            f"--nodelist={','.join(where)}",
            # Ranks pin themselves, agents share cores, and the step shares the allocation with its own batch script.
            "--cpu-bind=none",
            "--overcommit",
            "--overlap",
            # The others outlive a dead rank until it is known which died.
            "--kill-on-bad-exit=0",
            "--input=none",
        ]
        return [*parent_guard(), srun, *options, *argv]
