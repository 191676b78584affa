"""What goes wrong on day one, checked: each finding with its fix."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from heterotask_core.errors import HeteroTaskError

SMALLEST_SHARED_MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, what was found, and what to do if it is not ``ok``."""

    what: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def diagnose(*, shared_memory: Path = Path("/dev/shm")) -> list[Finding]:
    """Run every check and return the findings; only required ones make ``heterotask doctor`` fail."""
    return [_mpiexec(), _shared_memory(shared_memory), _cores(), _guard(), _opencl(), _cuda()]


def _mpiexec() -> Finding:
    from heterotask_core.runtime.launch.local import find_mpiexec

    try:
        return Finding("mpiexec", True, str(find_mpiexec()))
    except HeteroTaskError as error:
        return Finding("mpiexec", False, str(error), "pip install mpich")


def _shared_memory(path: Path) -> Finding:
    if not path.is_dir():
        return Finding("shared memory", False, f"{path} is missing", "mount a tmpfs at /dev/shm; arenas live there")
    free = shutil.disk_usage(path).free
    return Finding(
        "shared memory",
        free >= SMALLEST_SHARED_MEMORY_BYTES,
        f"{free / 2**30:.1f} GiB free in {path}",
        "enlarge it (mount -o remount,size=8G /dev/shm; in containers --shm-size=8g)",
    )


def _cores() -> Finding:
    allowed = len(os.sched_getaffinity(0))
    return Finding(
        "cores",
        allowed >= 2,
        f"{allowed} allowed to this process",
        "with one core the workers and the node agent take turns; ask for more cores",
        required=False,
    )


def _guard() -> Finding:
    found = shutil.which("setpriv")
    return Finding(
        "setpriv",
        found is not None,
        found or "not found",
        "install util-linux: without it a job outlives a caller that is killed with -9",
        required=False,
    )


def _opencl() -> Finding:
    if importlib.util.find_spec("pyopencl") is None:
        return Finding("opencl", False, "pyopencl is not installed", "pip install 'heterotask[opencl]'", required=False)
    import pyopencl

    try:
        names = [d.name for p in pyopencl.get_platforms() for d in p.get_devices()]
    except pyopencl.Error as error:
        return Finding("opencl", False, str(error), "install an OpenCL driver, or PoCL", required=False)
    return Finding("opencl", bool(names), ", ".join(names) or "no device", "install an OpenCL driver", required=False)


def _cuda() -> Finding:
    if importlib.util.find_spec("cupy") is None:
        return Finding("cuda", False, "cupy is not installed", "pip install 'heterotask[cuda]'", required=False)
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return Finding("cuda", False, str(error), "install the NVIDIA driver", required=False)
    return Finding("cuda", count > 0, f"{count} devices", "no GPU is visible: see CUDA_VISIBLE_DEVICES", required=False)
