"""The C layer, driven from Python: start StarPU, run a flat graph a few times, read the times, stop."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from flat import COLUMNS, CodeletStruct, Flat, GraphStruct

FAILURES = {
    -1: "StarPU's configuration cannot be made",
    -2: "StarPU does not start: no worker",
    -3: "StarPU has fewer OpenCL devices than asked for (STARPU_OPENCL_ON_CPUS=1 admits PoCL)",
    -4: "an OpenCL program does not compile",
    -5: "an OpenCL kernel is not there",
    -6: "StarPU's OpenCL queue is out of order",
}


class StarPuError(RuntimeError):
    """StarPU refuses."""


class Layer:
    """StarPU with one graph; use it once in a process."""

    def __init__(self, library: ctypes.CDLL, flat: Flat) -> None:
        """Hold the arrays, which StarPU reads while it runs."""
        self._c = library
        self._c.layer_run.restype = ctypes.c_double
        self._c.layer_expected_s.restype = ctypes.c_double
        self._flat = flat
        self._kept: list[Any] = []
        n = len(flat.graph["task_codelet"])
        self.start_s, self.finish_s = np.zeros(n), np.zeros(n)
        self.worker = np.full(n, -1, np.int32)

    def start(self, policy: str, *, synchronous: bool, speedup: np.ndarray[Any, Any]) -> None:
        """Start StarPU and register the data; raises :class:`StarPuError`."""
        columns = self._flat.codelets
        given = CodeletStruct(
            n=len(columns["name"]),
            name=self._strings(columns["name"]),
            on_cpu=self._address(columns["on_cpu"]),
            on_opencl=self._address(columns["on_opencl"]),
            n_programs=len(columns["source"]),
            source=self._strings(columns["source"]),
            n_entries=len(columns["entry_name"]),
            entry_program=self._address(columns["entry_program"]),
            entry_name=self._strings(columns["entry_name"]),
            speedup=self._address(np.ascontiguousarray(speedup, np.float64)),
        )
        self._kept.append(given)
        code = self._c.layer_start(ctypes.byref(given), policy.encode(), int(synchronous))
        if code != 0:
            raise StarPuError(FAILURES.get(code, f"code {code}"))
        graph = GraphStruct(
            n_items=len(self._flat.graph["item_bytes"]),
            n_tasks=len(self.start_s),
            start_s=self._address(self.start_s),
            finish_s=self._address(self.finish_s),
            worker=self._address(self.worker),
            **{name: self._address(self._flat.graph[name]) for name in COLUMNS},
        )
        if self._c.layer_load(ctypes.byref(graph)) != 0:
            raise StarPuError("no memory for the graph's data")

    def run(self) -> float:
        """Execute the graph; return seconds from the first insertion to the end of the last task."""
        self.start_s[:] = self.finish_s[:] = 0.0
        spent_s = float(self._c.layer_run())
        if spent_s < 0:
            raise StarPuError("a task was refused: no worker can run it")
        return spent_s

    def expected_s(self, task: int, *, opencl: bool) -> float:
        """Return what StarPU's model says of a task."""
        return float(self._c.layer_expected_s(ctypes.c_int64(task), int(opencl)))

    def stop(self) -> None:
        """Release everything."""
        self._c.layer_stop()

    def _address(self, array: np.ndarray[Any, Any]) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)

    def _strings(self, values: list[str]) -> int:
        strings = (ctypes.c_char_p * max(1, len(values)))(*(v.encode() for v in values))
        self._kept.append(strings)
        return ctypes.addressof(strings)


def load_library(path: Path) -> ctypes.CDLL:
    """Load the C layer; its OpenCL loader must see the vendors that the environment names."""
    return ctypes.CDLL(str(path))
