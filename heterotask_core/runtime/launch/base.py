"""What starts ranks: from hosts and one command to the command line of an MPI launcher."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from heterotask_core.errors import LaunchError

FOREIGN_PREFIXES = ("PMI", "HYDI_", "HYDRA_", "MPI_", "MPIR_", "MPIEXEC_", "OMPI_", "PRTE_", "PALS_")
"""Variables of an outer MPI job: inherited, they kill or confuse ours."""

ONE_HOST = {"UCX_MEM_MMAP_HOOK_MODE": "none", "UCX_TLS": "posix,self"}
"""What UCX, which MPICH brings, need not do for ranks of one host, whose messages go through MPICH's shared memory: its
hooks into ``mmap`` (for network adapters) are 40 ms of a core for every rank, the transports that it opens 5."""


class Launcher(Protocol):
    """Turns a request into a command line; pure, so it is tested without a cluster."""

    def command(self, *, n_ranks: int, argv: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
        """Return the command that runs ``argv`` as ``n_ranks`` ranks, rank i on ``hosts[i]``, and dies with its parent.

        Without ``hosts`` every rank runs here.

        Raises:
            LaunchError: the launcher is not installed, or it cannot place ranks like that.
        """


def this_host() -> str:
    """Return the name of this host: Slurm's, where Slurm started this process, else the kernel's."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def is_here(host: str) -> bool:
    """Return whether ``host`` names the machine that this process runs on."""
    return host in {"localhost", this_host(), os.uname().nodename}


def host_counts(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Return (host, number of ranks) in rank order.

    Raises:
        LaunchError: the ranks of a host do not follow each other; launchers cannot place them.
    """
    runs = [(host, len(list(group))) for host, group in groupby(hosts)]
    names = [host for host, _ in runs]
    for host in names:
        if names.count(host) > 1:
            raise LaunchError(
                f"the nodes on host {host!r} do not follow each other; order the platform's nodes by host"
            )
    return runs


def parent_guard() -> list[str]:
    """Return the prefix that lets the kernel kill a command when the thread that started it ends.

    Empty without ``setpriv`` (util-linux); then the reaper alone ends the job of a killed caller.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


def clean_environment(
    environment: Mapping[str, str], *, python_path: Sequence[str], one_host: bool = False
) -> dict[str, str]:
    """Return ``environment`` without an outer job's variables, with ``python_path`` for the ranks' imports.

    ``one_host``: all ranks run here, so that MPI need not get ready for a network; what ``environment`` says stays.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(FOREIGN_PREFIXES)}
    kept["PYTHONPATH"] = ":".join(python_path)
    if one_host:
        kept = ONE_HOST | kept
    # Hydra writes the machine's topology into /tmp unless this is set, and leaves it there when it is killed.
    kept.setdefault("HWLOC_XMLFILE", "")
    return kept
