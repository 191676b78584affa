"""What goes wrong on day one, checked: each finding with its fix."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterotask_core.errors import HeteroTaskError
from heterotask_core.platform.accelerators import opencl_fault
from heterotask_core.platform.model import Platform
from heterotask_core.scratch import scratch_folder

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "panfs"}
TRANSPORT_MARK = "heterotask-transport "
_NO_MESSAGES = "open the ports between the hosts, and see that each finds this interpreter under the same path"
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
    """Run every check and return the findings; only required ones make ``heterotask doctor`` fail.

    With several hosts (``--hosts``, or a Slurm allocation) also those that need them all.
    """
    from heterotask_core.platform.cluster import allocated_hosts

    findings = [
        _mpiexec(),
        _shared_memory(shared_memory),
        _memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        _cores(),
        _threads_of_cores(Path("/sys/devices/system/cpu"), sorted(os.sched_getaffinity(0))),
        _guard(),
        _caches(kernel_caches(os.environ), Path("/proc/mounts").read_text()),
        _opencl(),
        _cuda(),
        *_gpus(),
    ]
    try:
        hosts = allocated_hosts()
        findings += _transport(hosts)
        if len(hosts) > 1:
            findings.append(_nodes(hosts))
    except HeteroTaskError as error:
        findings.append(Finding("hosts", False, str(error), "name them with --hosts"))
    return findings


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
        found = [(d.name, opencl_fault(d)) for p in pyopencl.get_platforms() for d in p.get_devices()]
    except pyopencl.Error as error:
        return Finding("opencl", False, str(error), "install an OpenCL driver, or PoCL", required=False)
    said = ", ".join(f"{name} (cannot compile: {fault})" if fault else name for name, fault in found)
    # One that is older than the processor does not know its name: Debian's is patched to take the nearest.
    fix = "install an OpenCL driver" + (" that knows this processor, such as Debian's pocl-opencl-icd" if said else "")
    usable = any(not fault for _, fault in found)
    return Finding("opencl", usable, said or "no device", fix, required=False)


def _cuda() -> Finding:
    if importlib.util.find_spec("cupy") is None:
        return Finding("cuda", False, "cupy is not installed", "pip install 'heterotask[cuda]'", required=False)
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return Finding("cuda", False, str(error), "install the NVIDIA driver", required=False)
    return Finding("cuda", count > 0, f"{count} devices", "no GPU is visible: see CUDA_VISIBLE_DEVICES", required=False)


def _memlock(limit_bytes: int) -> Finding:
    unlimited = limit_bytes == resource.RLIM_INFINITY
    gpus = any(Path("/proc/driver/nvidia/gpus").glob("*"))
    return Finding(
        "memlock",
        unlimited or not gpus,
        "unlimited" if unlimited else f"at most {limit_bytes / 2**20:.0f} MiB can be page-locked",
        "arenas of GPU nodes are page-locked: `ulimit -l unlimited`, or memlock in /etc/security/limits.conf; under "
        "Slurm LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept=MEMLOCK",
        required=False,
    )


def _threads_of_cores(cpus: Path, allowed: list[int]) -> Finding:
    """Whether two of the allowed CPUs are hardware threads of one core: groups on both slow each other down."""
    together = set()
    for cpu in allowed:
        path = cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings = parse_cpus(path.read_text()) if path.exists() else [cpu]
        shared = tuple(c for c in siblings if c in allowed)
        if len(shared) > 1:
            together.add(shared)
    first = sorted(together)[:1]
    return Finding(
        "hyper-threads",
        not together,
        f"{len(together)} cores offer several hardware threads each, e.g. CPUs {', '.join(map(str, first[0]))}"
        if first
        else "every allowed CPU is a core of its own",
        "use one thread a core: taskset -c, or --hint=nomultithread under Slurm",
        required=False,
    )


def parse_cpus(text: str) -> list[int]:
    """Return the CPUs of the kernel's list format, as ``0-2,5``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def kernel_caches(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders in which compiled kernels are kept between runs, by who keeps them."""
    home = Path(environment.get("HOME", "/"))
    cache = Path(environment.get("XDG_CACHE_HOME", home / ".cache"))
    return {
        "NUMBA_CACHE_DIR": Path(environment.get("NUMBA_CACHE_DIR", Path(__file__).parent)),
        "CUPY_CACHE_DIR": Path(environment.get("CUPY_CACHE_DIR", home / ".cupy" / "kernel_cache")),
        "POCL_CACHE_DIR": Path(environment.get("POCL_CACHE_DIR", cache / "pocl")),
        "PYOPENCL_CACHE_DIR": Path(environment.get("PYOPENCL_CACHE_DIR", cache / "pyopencl")),
    }


def _caches(caches: Mapping[str, Path], mounts: str) -> Finding:
    """Whether compiled kernels are kept on a network file system, where all ranks of a job meet on its locks."""
    remote = []
    for variable, folder in caches.items():
        kind = file_system(folder, mounts)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
            remote.append((variable, f"{folder} ({kind})"))
    return Finding(
        "kernel caches",
        not remote,
        ", ".join(where for _, where in remote) or "on local disks",
        "ranks that start together wait for each other there: "
        + ", ".join(f"export {variable}=/tmp/$USER/{variable.lower()}" for variable, _ in remote),
        required=False,
    )


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system that ``folder`` lies on, by the lines of ``/proc/mounts``."""
    found, longest = "", -1
    path = os.path.realpath(folder)
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def _gpus() -> list[Finding]:
    """Compute mode and visibility of NVIDIA GPUs, as their driver's own tool has them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    argv = [tool, "--query-gpu=index,pci.bus_id,compute_mode,mig.mode.current", "--format=csv,noheader"]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding("nvidia-smi", False, str(error), "install the driver that fits the kernel", required=False)]
    return gpu_findings(said, os.environ.get("CUDA_VISIBLE_DEVICES"))


def gpu_findings(said: str, visible: str | None) -> list[Finding]:
    """Return the findings on lines of ``index, PCI id, compute mode, MIG mode``."""
    rows = [[word.strip() for word in line.split(",")] for line in said.splitlines() if line.strip()]
    modes = {row[2] for row in rows}
    shown = len(rows) if visible is None else len([x for x in visible.split(",") if x.strip()])
    return [
        Finding(
            "compute mode",
            modes <= {"Default", "Exclusive_Process"},
            ", ".join(sorted(modes)) or "no GPU",
            "one rank drives a GPU: nvidia-smi -c DEFAULT (or EXCLUSIVE_PROCESS)",
            required=False,
        ),
        Finding(
            "GPU binding",
            shown == len(rows),
            f"{shown} of {len(rows)} GPUs are visible: " + ", ".join(row[1] for row in rows),
            "every rank of a node must see all its GPUs, they are chosen by PCI id: unset CUDA_VISIBLE_DEVICES; under "
            "Slurm ask for --gpus-per-node and leave --gpu-bind out",
            required=False,
        ),
    ]


def _transport(hosts: Sequence[str]) -> list[Finding]:
    """Which way messages really go between two nodes, and how fast: measured, since MPI falls back without a word."""
    from heterotask_core.runtime.launch.base import clean_environment, is_here
    from heterotask_core.runtime.launch.choose import choose_launcher

    pair = tuple(hosts[:2]) if len(hosts) > 1 else (hosts[0], hosts[0])
    with scratch_folder() as folder:
        argv = [sys.executable, "-m", "mpi4py", "-m", "heterotask_core.transport"]
        try:
            command = choose_launcher(hosts=pair).command(
                n_ranks=2, argv=argv, hosts=() if all(map(is_here, pair)) else pair
            )
            # UCX names what it chose for each connection in its log.
            environment = clean_environment(os.environ, python_path=[str(Path(p).resolve()) for p in sys.path])
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                cwd=folder,
                env=environment | {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": ""},
            )
        except (HeteroTaskError, OSError, subprocess.SubprocessError) as error:
            return [Finding("transport", False, str(error), "see docs/slurm.md for how ranks are started")]
    return [transport_finding(done.stdout + done.stderr, pair, done.returncode)]


def transport_finding(said: str, pair: Sequence[str], code: int) -> Finding:
    """Return the finding on what two ranks printed, with UCX's log among it."""
    answer = next((line for line in said.splitlines() if TRANSPORT_MARK in line), None)
    where = " and ".join(pair) if pair[0] != pair[1] else f"two processes of {pair[0]}"
    if answer is None:
        last = ([line for line in said.splitlines() if line.strip()] or ["nothing"])[-1]
        return Finding("transport", False, f"{where} cannot exchange messages (exit code {code}): {last}", _NO_MESSAGES)
    facts = json.loads(answer[answer.index(TRANSPORT_MARK) + len(TRANSPORT_MARK) :])
    chosen = set(re.findall(r"int(?:er|ra)-node cfg#\d+ tag\(([^)]*)\)", said))
    names = sorted({name for entry in chosen for name in entry.split()})
    slow = pair[0] != pair[1] and bool(names) and all(name.startswith(("tcp", "self")) for name in names)
    return Finding(
        "transport",
        not slow,
        f"{where}: {', '.join(names) or 'not told by this MPI'}; "
        f"{facts['bytes_per_s'] / 1e9:.2f} GB/s, {facts['latency_s'] * 1e6:.1f} µs one way",
        "messages go over TCP: install the fabric's libraries (libibverbs, libfabric), or name it in UCX_NET_DEVICES",
        required=False,
    )


def _nodes(hosts: Sequence[str]) -> Finding:
    """Whether all hosts have the same devices: a plan for unequal ones is fine, an unexpected difference is not."""
    from heterotask_core.platform.cluster import ask_hosts
    from heterotask_core.runtime.launch.choose import choose_launcher

    platforms = ask_hosts(hosts, "", 1, choose_launcher(hosts=hosts))
    return nodes_finding({host: describe_devices(platform) for host, platform in zip(hosts, platforms, strict=True)})


def describe_devices(platform: Platform) -> str:
    """Return a host's devices in words, equal for equal hosts."""
    models = [f"{device.kind} {device.model} {device.driver}".strip() for device in platform.devices]
    return ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))


def nodes_finding(devices: Mapping[str, str]) -> Finding:
    """Return the finding on host → devices in words."""
    kinds = {words: [host for host in devices if devices[host] == words] for words in dict.fromkeys(devices.values())}
    return Finding(
        "equal nodes",
        len(kinds) == 1,
        "; ".join(f"{', '.join(hosts)}: {words}" for words, hosts in kinds.items()),
        "plans take unequal nodes as they are; if you did not expect them, look for missing drivers or other "
        "allocations (--exclusive)",
        required=False,
    )
