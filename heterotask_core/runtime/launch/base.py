"""What starts ranks: from a number of ranks and one command to the command line of an MPI launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

FOREIGN_PREFIXES = ("PMI", "HYDI_", "HYDRA_", "MPI_", "MPIR_", "MPIEXEC_", "OMPI_", "PRTE_", "PALS_")
"""Variables of an outer MPI job: inherited, they kill or confuse ours."""


class Launcher(Protocol):
    """Turns a request into a command line; pure, so it is tested without a cluster."""

    def command(self, *, n_ranks: int, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` as ``n_ranks`` ranks and dies with its parent.

        Raises:
            LaunchError: the launcher is not installed.
        """


def clean_environment(environment: Mapping[str, str], *, python_path: Sequence[str]) -> dict[str, str]:
    """Return ``environment`` without an outer job's variables, with ``python_path`` for the ranks' imports."""
    kept = {name: value for name, value in environment.items() if not name.startswith(FOREIGN_PREFIXES)}
    kept["PYTHONPATH"] = ":".join(python_path)
    return kept
