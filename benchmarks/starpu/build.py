"""Install StarPU where that can be done, and compile the C layer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("layer.c", "natives.c", "layer.h")
PACKAGES = {False: ("libstarpu-dev", "pkg-config", "gcc"), True: ("libstarpu-dev", "libopenmpi-dev", "openmpi-bin")}
"""Debian packages for one node, and those more for two."""


class BuildError(RuntimeError):
    """StarPU is not there, or the layer does not compile."""


def _module(mpi: bool) -> str:
    return "starpumpi-1.3" if mpi else "starpu-1.3"


def available(*, mpi: bool = False) -> bool:
    """Return whether the layer can be compiled here."""
    if not all(shutil.which(tool) for tool in ("gcc", "pkg-config")) or (mpi and not shutil.which("mpicc.openmpi")):
        return False
    return subprocess.run(["pkg-config", "--exists", _module(mpi)], check=False).returncode == 0


def install(*, mpi: bool = False) -> None:
    """Install Debian's packages if they are missing; raises :class:`BuildError` where that cannot be done."""
    if available(mpi=mpi):
        return
    names = " ".join(PACKAGES[mpi])
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise BuildError(f"StarPU is not installed; as root: apt-get install {names}")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", *PACKAGES[mpi]]):
        subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if not available(mpi=mpi):
        raise BuildError(f"apt-get install {names} has not brought {_module(mpi)}")


def build(*, mpi: bool = False) -> Path:
    """Return the shared library, compiled if a source is newer.

    Raises:
        BuildError: the compiler refuses, with what it said.
    """
    library = HERE / "build" / ("layer_mpi.so" if mpi else "layer.so")
    sources = [HERE / name for name in SOURCES]
    if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return library
    library.parent.mkdir(exist_ok=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", _module(mpi)], check=True, capture_output=True, text=True
    ).stdout.split()
    new = library.with_suffix(f".{os.getpid()}.so")
    command = ["mpicc.openmpi" if mpi else "gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall"]
    command += [f"-DLAYER_MPI={int(mpi)}"] if mpi else []
    command += [*(str(p) for p in sources if p.suffix == ".c"), *flags, "-lOpenCL", "-lm", "-o", str(new)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    new.replace(library)
    return library
