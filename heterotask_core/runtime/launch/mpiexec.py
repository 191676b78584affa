"""Ranks on several hosts through MPICH's ``mpiexec`` (Hydra): over ssh, or over Slurm inside an allocation."""

from __future__ import annotations

import os
from collections.abc import Sequence

from heterotask_core.runtime.launch.base import host_counts, parent_guard
from heterotask_core.runtime.launch.local import LocalLauncher, find_mpiexec


class MpiexecLauncher:
    """``mpiexec`` with a proxy on every host; every host needs this interpreter under the same path."""

    def command(self, *, n_ranks: int, argv: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
        """Return the command line; the proxies come up through ``srun`` in an allocation, else through ``ssh``."""
        if not hosts:
            return LocalLauncher().command(n_ranks=n_ranks, argv=argv)
        through = "slurm" if os.environ.get("SLURM_JOB_ID") else "ssh"
        where = ",".join(f"{host}:{count}" for host, count in host_counts(hosts))
        options = ["-launcher", through, "-hosts", where, "-disable-auto-cleanup"]
        return [*parent_guard(), find_mpiexec(), *options, "-n", str(n_ranks), *argv]
