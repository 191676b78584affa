"""Start one StarPU process for an application: its environment, its answer, its time from launch to exit."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layer import StarPuError

HERE = Path(__file__).parent
SINGLE_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
LIMIT_S = 600.0
MPIEXEC = ("mpiexec.openmpi", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root")
"""StarPU-MPI is built with Open MPI."""


@dataclass(frozen=True)
class Devices:
    """How many CPU workers and OpenCL devices StarPU gets."""

    cpus: int
    opencls: int

    @staticmethod
    def parse(text: str) -> Devices:
        """Read ``cpu:2`` or ``cpu:1,opencl:1``; raises :class:`ValueError` for others."""
        counts = {"cpu": 0, "opencl": 0}
        for part in text.split(","):
            kind, _, number = part.partition(":")
            if kind not in counts or not number.isdigit():
                raise ValueError(f"devices {text!r}: cpu:N and opencl:N are known here")
            counts[kind] = int(number)
        return Devices(counts["cpu"], counts["opencl"])


@dataclass(frozen=True)
class Setting:
    """A StarPU configuration."""

    policy: str
    beta: float = 1.0

    @property
    def label(self) -> str:
        """A name for tables."""
        return self.policy if self.beta == 1.0 else f"{self.policy} beta={self.beta:.2g}"


@dataclass
class Starpu:
    """One application with its parameters for StarPU on a device set; ``home`` keeps the performance models."""

    application: str
    params: dict[str, Any]
    devices: Devices
    binary: Path
    home: Path
    seconds: dict[str, float] = field(default_factory=dict)
    speedup: dict[str, float] = field(default_factory=dict)
    fastest: dict[str, str] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    """MPI rank (node) of each task, for StarPU-MPI; empty: one node."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(self.ranks, default=0) + 1

    def run(
        self, setting: Setting, folder: Path, *, repeats: int = 1, calibrate: int = 0, **options: Any
    ) -> dict[str, Any]:
        """Run in a new process and return its answer with ``completion_s``; raises :class:`StarPuError`.

        ``options`` go into the worker's SPEC (``synchronous``, ``models``).
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        spec = {
            "application": self.application,
            "params": self.params,
            "opencl": self.devices.opencls,
            "policy": setting.policy,
            "repeats": repeats,
            "folder": str(folder.resolve()),
            "binary": str(self.binary),
            "seconds": self.seconds,
            "speedup": self.speedup,
            "fastest": self.fastest,
            "ranks": self.ranks,
            **options,
        }
        for old in folder.glob("answer-*.json"):
            old.unlink()
        path = folder / "spec.json"
        path.write_text(json.dumps(spec))
        command = [sys.executable, str(HERE / "worker.py"), str(path)]
        if self.nodes > 1:
            command = [*MPIEXEC, "-n", str(self.nodes), *command]
        start_s = time.monotonic()
        done = subprocess.run(
            command,
            env=self._environment(setting, calibrate),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        completion_s = time.monotonic() - start_s
        if done.returncode != 0:
            raise StarPuError(
                f"{self.application} on {self.devices}, {setting.label}: exit {done.returncode}\n{done.stderr[-2000:]}"
            )
        answers = [json.loads(answer.read_text()) for answer in sorted(folder.glob("answer-*.json"))]
        return {**merged(answers), "completion_s": completion_s}

    def _environment(self, setting: Setting, calibrate: int) -> dict[str, str]:
        environment = dict(os.environ)
        environment |= dict.fromkeys(SINGLE_THREADS, "1")
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), environment.get("PYTHONPATH", "")]),
            "STARPU_HOME": str(self.home.resolve()),
            "STARPU_HOSTNAME": "bench",
            "STARPU_NCPU": str(self.devices.cpus),
            "STARPU_NOPENCL": str(self.devices.opencls),
            "STARPU_OPENCL_ON_CPUS": "1",
            "STARPU_CALIBRATE": str(calibrate),
            "STARPU_SCHED_BETA": str(setting.beta),
            "STARPU_SILENT": "1",
            # As in our ranks: a PoCL device has the core of its rank.
            "POCL_MAX_PTHREAD_COUNT": "1",
            # Nor does UCX, which both sides' MPI brings, hook into mmap for a network that is not used.
            "UCX_MEM_MMAP_HOOK_MODE": "none",
        }
        vendors = opencl_vendors(self.home)
        if vendors is not None:
            environment["OCL_ICD_VENDORS"] = str(vendors)
        return environment


def merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one answer of all ranks (of one host, so of one clock): windows span them, the last one ends the job."""
    whole = dict(answers[0])
    first = [min(times) for times in zip(*(a["first_s"] for a in answers), strict=True)]
    last = [max(times) for times in zip(*(a["last_s"] for a in answers), strict=True)]
    whole["makespan_s"] = [end - start for start, end in zip(first, last, strict=True)]
    whole["kernels_s"] = [
        {name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))}
        for parts in zip(*(a["kernels_s"] for a in answers), strict=True)
    ]
    whole["native_s"] = max(a["native_s"] for a in answers)
    return whole


INSTALLED = Path("/etc/OpenCL/vendors")
"""Where OpenCL drivers of the system are named."""


def opencl_vendors(folder: Path) -> Path | None:
    """Return a folder that names the PoCL that PyOpenCL brings, so that both sides use the same.

    None where there is none, or where drivers are installed: PyOpenCL lists these first, as StarPU does.
    """
    spec = importlib.util.find_spec("pyopencl")
    if spec is None or spec.origin is None or any(INSTALLED.glob("*.icd")):
        return None
    found = sorted(Path(spec.origin).parent.glob(".libs/libpocl*.so*"))
    if not found:
        return None
    vendors = folder / "vendors"
    vendors.mkdir(parents=True, exist_ok=True)
    (vendors / "pocl.icd").write_text(f"{found[0]}\n")
    return vendors.resolve()
