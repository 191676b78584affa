"""Which launcher a job takes: the one that was asked for, else the one that fits where we are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from heterotask_core.errors import LaunchError
from heterotask_core.runtime.launch.base import Launcher, is_here
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.runtime.launch.mpiexec import MpiexecLauncher
from heterotask_core.runtime.launch.slurm import SlurmLauncher
from heterotask_core.runtime.launch.template import TemplateLauncher

LAUNCHERS: Mapping[str, Callable[[], Launcher]] = {
    "local": LocalLauncher,
    "mpiexec": MpiexecLauncher,
    "slurm": SlurmLauncher,
}
VARIABLE = "HETEROTASK_LAUNCHER"


def choose_launcher(name: str = "", *, hosts: Sequence[str] = ()) -> Launcher:
    """Return the launcher called ``name``; empty: the variable's, else what ``hosts`` and Slurm's variables suggest.

    A name with ``{command}`` in it is a template. Without a name: ``local`` for ranks on this host only, ``slurm``
    inside an allocation, ``mpiexec`` elsewhere.

    Raises:
        LaunchError: there is no such launcher.
    """
    name = name or os.environ.get(VARIABLE, "")
    if "{" in name:
        return TemplateLauncher(name)
    if not name:
        if all(is_here(host) for host in hosts):
            name = "local"
        else:
            name = "slurm" if os.environ.get("SLURM_JOB_ID") and shutil.which("srun") else "mpiexec"
    if name not in LAUNCHERS:
        raise LaunchError(
            f"unknown launcher {name!r}; known: {', '.join(LAUNCHERS)}, or a template with {{command}} in it"
        )
    return LAUNCHERS[name]()
