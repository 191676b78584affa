"""A task graph as the flat arrays of the C layer (``layer.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from codelets import Host, call_of

from heterotask_core.graph import Task, TaskGraph, class_key
from heterotask_core.kernel import ArrayArg, Kernel, Launch, Variant, usable_variants
from heterotask_core.runtime.devices.base import Argument, by_role, source_text

MODES = {"read": 1, "write": 2, "update": 3}
SCRATCH = 4
GRANULE = 256
"""Scratch sizes are rounded up to it, so that tasks share handles."""


def owner_everywhere_zero(task: Task) -> int:
    """Return rank 0: one node runs all."""
    return 0


@dataclass
class Flat:
    """Columns of ``struct graph`` and ``struct codelets`` by their names in C, in order of their pointers."""

    graph: dict[str, Any] = field(default_factory=dict)
    codelets: dict[str, Any] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    """Name of each codelet's kernel."""


class Flattener:
    """Builds the arrays task by task."""

    def __init__(self, graph: TaskGraph, host: Host, *, opencl: bool, fastest: Mapping[str, str]) -> None:
        """``fastest``: kernel → the OpenCL variant to use, where there are several (default: the first)."""
        self._graph, self._host, self._opencl, self._fastest = graph, host, opencl, fastest
        self._names: list[tuple[str, bool, bool]] = []
        self._codelet: dict[tuple[str, bool, bool], int] = {}
        self._sources: dict[str, int] = {}
        self._entries: dict[tuple[int, str], int] = {}
        self._scratch: dict[int, int] = {}
        self._item_bytes = [item.size_bytes for item in graph.items]
        self._launches: dict[str, tuple[Variant, list[Launch], int]] = {}

    def build(self, *, priority: Callable[[Task], int], rank_of: Callable[[Task], int] = owner_everywhere_zero) -> Flat:
        """Return the arrays; tasks of equal class share their launches."""
        column: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for name in ("argument_ptr", "number_ptr", "real_ptr", "launch_ptr", "value_ptr"):
            column[name].append(0)
        owner = [0] * len(self._graph.items)
        seen: set[int] = set()
        for task in self._graph:
            call = call_of(task, self._host)
            found = self._opencl_launches(task)
            key = (task.kernel.name, True, found is not None)
            if key not in self._codelet:
                self._codelet[key] = len(self._names)
                self._names.append(key)
            rank = rank_of(task)
            column["task_codelet"].append(self._codelet[key])
            column["task_priority"].append(priority(task))
            column["task_rank"].append(rank)
            column["task_cpu"].append(call.address)
            column["numbers"].extend(int(n) for n in call.numbers)
            column["reals"].extend(float(x) for x in call.reals)
            for argument in task.arguments:
                column["argument_item"].append(argument.item.index)
                column["argument_mode"].append(MODES[task.kernel.access(argument.role)])
                if argument.makes is not None and argument.item.index not in seen:
                    seen.add(argument.item.index)
                    owner[argument.item.index] = rank
            scratch_bytes = max(call.scratch_bytes, 0 if found is None else found[2])
            if scratch_bytes:
                column["argument_item"].append(self._scratch_item(scratch_bytes))
                column["argument_mode"].append(SCRATCH)
            if found is not None:
                self._add_launches(column, task, found)
            column["argument_ptr"].append(len(column["argument_item"]))
            column["number_ptr"].append(len(column["numbers"]))
            column["real_ptr"].append(len(column["reals"]))
            column["launch_ptr"].append(len(column["launch_entry"]))
        column["item_bytes"] = [max(1, n) for n in self._item_bytes]
        column["item_scratch"] = [int(k >= len(self._graph.items)) for k in range(len(self._item_bytes))]
        column["item_owner"] = owner + [0] * len(self._scratch)
        arrays = {name: np.asarray(values, COLUMNS[name]) for name, values in column.items()}
        return Flat(arrays, self._codelet_columns(), [name for name, _, _ in self._names])

    def _scratch_item(self, size_bytes: int) -> int:
        size_bytes = -(-size_bytes // GRANULE) * GRANULE
        if size_bytes not in self._scratch:
            self._scratch[size_bytes] = len(self._item_bytes)
            self._item_bytes.append(size_bytes)
        return self._scratch[size_bytes]

    def _opencl_launches(self, task: Task) -> tuple[Variant, list[Launch], int] | None:
        if not self._opencl:
            return None
        # Launches hold numbers out of all parameters, also those that do not change the cost.
        key = class_key(task) + repr([task.params.get(name) for name in task.kernel.free_params])
        if key in self._launches:
            return self._launches[key]
        variant = self._variant(task.kernel, task)
        if variant is None:
            return None
        counts: dict[str, int] = {}
        arguments = []
        for a in task.arguments:
            index = counts.get(a.role, 0)
            counts[a.role] = index + 1
            arguments.append(Argument(a.role, index, a.item.shape, a.item.dtype, 0, a.is_list))
        launches = variant.load()(**by_role(arguments, Argument.placeholder), **task.params)
        scratch_bytes = variant.scratch_bytes(task.params, task.shapes()) if variant.scratch_bytes else 0
        self._launches[key] = variant, launches, scratch_bytes
        return self._launches[key]

    def _variant(self, kernel: Kernel, task: Task) -> Variant | None:
        usable = usable_variants(
            kernel,
            params=task.params,
            shapes=task.shapes(),
            device_kind="opencl",
            cores=1,
            exact=self._graph.exact,
        )
        sources = [v for v in usable if v.source is not None]
        chosen = [v for v in sources if v.name == self._fastest.get(kernel.name)]
        return (chosen or sources or [None])[0]

    def _add_launches(self, column: dict[str, list[Any]], task: Task, found: tuple[Variant, list[Launch], int]) -> None:
        variant, launches, _ = found
        position = {}
        counts: dict[str, int] = {}
        for k, a in enumerate(task.arguments):
            index = counts.get(a.role, 0)
            counts[a.role] = index + 1
            position[a.role, index] = k
        source = self._sources.setdefault(source_text(variant), len(self._sources))
        for launch in launches:
            entry = self._entries.setdefault((source, launch.entry), len(self._entries))
            size = [-(-g // n) * n for g, n in zip(launch.global_size, launch.local_size, strict=True)]
            column["launch_entry"].append(entry)
            column["launch_dims"].append(len(size))
            column["launch_global"].extend([*size, 1, 1][:3])
            column["launch_local"].extend([*launch.local_size, 1, 1][:3])
            for value in launch.args:
                if isinstance(value, ArrayArg):
                    buffer, size_bytes, bits = position[value.role, value.index], 0, 0
                elif value is None:
                    buffer, size_bytes, bits = len(task.arguments), 0, 0
                else:
                    scalar = np.asarray(value)
                    buffer, size_bytes = -1, scalar.itemsize
                    bits = int.from_bytes(scalar.tobytes().ljust(8, b"\0"), "little", signed=True)
                column["value_buffer"].append(buffer)
                column["value_bytes"].append(size_bytes)
                column["value_bits"].append(bits)
            column["value_ptr"].append(len(column["value_buffer"]))

    def _codelet_columns(self) -> dict[str, Any]:
        return {
            "name": [f"{self._graph.name}-{name}{'-opencl' if opencl else ''}" for name, _, opencl in self._names],
            "on_cpu": np.array([cpu for _, cpu, _ in self._names], np.int32),
            "on_opencl": np.array([opencl for _, _, opencl in self._names], np.int32),
            "source": list(self._sources),
            "entry_program": np.array([source for source, _ in self._entries], np.int32),
            "entry_name": [name for _, name in self._entries],
        }


COLUMNS: dict[str, type] = {
    "item_bytes": np.int64,
    "item_scratch": np.int32,
    "item_owner": np.int32,
    "task_codelet": np.int32,
    "task_priority": np.int32,
    "task_rank": np.int32,
    "task_cpu": np.uint64,
    "argument_ptr": np.int64,
    "argument_item": np.int32,
    "argument_mode": np.int32,
    "number_ptr": np.int64,
    "numbers": np.int64,
    "real_ptr": np.int64,
    "reals": np.float64,
    "launch_ptr": np.int64,
    "launch_entry": np.int32,
    "launch_dims": np.int32,
    "launch_global": np.int64,
    "launch_local": np.int64,
    "value_ptr": np.int64,
    "value_buffer": np.int32,
    "value_bytes": np.int32,
    "value_bits": np.int64,
}
"""Arrays of ``struct graph`` and their types."""


class GraphStruct(ctypes.Structure):
    """``struct graph``."""

    _fields_ = [
        ("n_items", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in list(COLUMNS)[:3]),
        ("n_tasks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in list(COLUMNS)[3:]),
        *((name, ctypes.c_void_p) for name in ("start_s", "finish_s", "worker")),
    ]


class CodeletStruct(ctypes.Structure):
    """``struct codelets``."""

    _fields_ = [
        ("n", ctypes.c_int32),
        ("name", ctypes.c_void_p),
        ("on_cpu", ctypes.c_void_p),
        ("on_opencl", ctypes.c_void_p),
        ("n_programs", ctypes.c_int32),
        ("source", ctypes.c_void_p),
        ("n_entries", ctypes.c_int32),
        ("entry_program", ctypes.c_void_p),
        ("entry_name", ctypes.c_void_p),
        ("speedup", ctypes.c_void_p),
    ]
