"""All ranks on this host, through MPICH's ``mpiexec`` (the pip wheel's, or one in PATH)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heterotask_core.errors import LaunchError
from heterotask_core.runtime.launch.base import is_here, parent_guard


def find_mpiexec() -> str:
    """Return ``mpiexec``: the one beside the interpreter, else the one in PATH.

    Raises:
        LaunchError: there is none, or the one in PATH is not Hydra (MPICH's, or one made of it).
    """
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpiexec")
    if found is None:
        raise LaunchError(
            f"mpiexec is neither beside {sys.executable} nor in PATH; run `{sys.executable} -m pip install mpich`"
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if not any(name in version.stdout for name in ("HYDRA", "Intel(R) MPI")):
        raise LaunchError(
            f"mpiexec is not beside {sys.executable}, and {found} is not MPICH's; run `{sys.executable} -m pip install "
            "mpich`"
        )
    return found


class LocalLauncher:
    """``mpiexec`` forking on this host; the kernel kills it when the thread that started it ends."""

    def command(self, *, n_ranks: int, argv: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
        """Return the command line; raises :class:`LaunchError` for ranks on other hosts."""
        others = sorted({host for host in hosts if not is_here(host)})
        if others:
            raise LaunchError(
                f"launcher 'local' runs ranks on this host only, the platform has {', '.join(others)}; "
                "use --launcher slurm or --launcher mpiexec"
            )
        # Without auto-cleanup the other ranks outlive a dead one, so that it can be told which died.
        options = ["-launcher", "fork", "-hosts", "localhost", "-disable-auto-cleanup"]
        return [*parent_guard(), find_mpiexec(), *options, "-n", str(n_ranks), *argv]
