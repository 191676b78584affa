"""A program: lanes of ops and the dependencies that are enforced; what is simulated, executed, calibrated.

An *op* is one kernel run, one copy inside a node, or one network transfer (a single op on two issue lanes).
An *issue lane* is an in-order queue owned by one rank and enforced; a *capacity lane* (bus, switch)
serialises ops in planner and simulator only. Dependencies are *data* (the input is there) and *reuse*
(every access of an earlier tenant of an intersecting byte range is done); lane order is the third kind and
follows from the lanes.

Indices: N ops, R residencies, G ranks, K issue and capacity lanes, M memories, A arguments.
CSR pairs are named ``*_ptr`` (int64) and the flat array beside it. Everything is a NumPy array or JSON, so a
rank loads a program with NumPy alone, and nothing is pickled.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


class OpKind(enum.IntEnum):
    """What an op does."""

    KERNEL = 0
    COPY = 1
    """Copy between two memories of one node, or inside one memory (an update that cannot take over)."""
    TRANSFER = 2
    """Network transfer between the host memories of two nodes."""


class LaneKind(enum.IntEnum):
    """What a lane stands for; capacity lanes have rank −1."""

    COMPUTE = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    SEND = 3
    RECEIVE = 4
    CAPACITY = 5


class DependencyKind(enum.IntEnum):
    """Why an op waits."""

    DATA = 0
    REUSE = 1


@dataclass(frozen=True)
class RankRole:
    """What one MPI rank does: ``device`` is a device name, or None for the node's agent."""

    node: str
    device: str | None
    core_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelCall:
    """A distinct (kernel, variant, params) that tasks refer to; ``params`` are JSON values
    (an output path is ``{"output": name}``)."""

    module: str
    kernel: str
    variant: str
    fingerprint: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """Everything a rank needs to run its part, and everything the simulator needs to predict all parts."""

    name: str
    graph_fingerprint: str
    platform_fingerprint: str
    # ranks
    ranks: tuple[RankRole, ...]
    """Nodes in order; of each node the agent first, then its devices. Jobs of one node run without (nearby.py)."""
    # memories and residencies
    memory_names: tuple[str, ...]
    memory_nodes: tuple[str, ...]
    memory_size_bytes: I64
    """(M,): bytes that the memory's arena or slab needs (planned peak with packing and scratch)."""
    residency_memory: I32
    residency_version: I32
    residency_offset_bytes: I64
    residency_size_bytes: I64
    version_item: I32
    version_number: I32
    item_names: tuple[str, ...]
    item_shapes: tuple[tuple[int, ...], ...]
    item_dtypes: tuple[str, ...]
    # ops
    op_kind: I8
    op_task: I32
    """(N,): task index, −1 for copies and transfers."""
    op_source: I32
    """(N,): residency read by a copy or transfer, −1 for kernels."""
    op_target: I32
    """(N,): residency filled by a copy or transfer, −1 for kernels."""
    op_duration_s: F64
    op_start_s: F64
    """(N,): planned start, for people and for tie-breaking; nothing enforced follows from it."""
    # dependencies
    dep_ptr: I64
    dep_ops: I32
    dep_kinds: I8
    # lanes
    lane_names: tuple[str, ...]
    lane_kinds: I8
    lane_rank: I32
    lane_ptr: I64
    lane_ops: I32
    # tasks
    task_names: tuple[str, ...]
    task_device: I32
    """(T,): index into ``device_names``."""
    device_names: tuple[str, ...]
    device_kinds: tuple[str, ...]
    task_call: I32
    """(T,): index into ``calls``."""
    calls: tuple[KernelCall, ...]
    argument_ptr: I64
    """CSR over tasks, in role order (reads, writes, updates), list roles flattened."""
    argument_residency: I32
    """Residency bound (for an update: the one that the task writes; it equals the one read, taken over)."""
    argument_role: I32
    """Index into ``role_names``."""
    argument_is_list: I8
    role_names: tuple[str, ...]
    task_scratch_offset_bytes: I64
    """(T,): offset of the scratch buffer in the device's memory, −1 for none."""
    task_scratch_bytes: I64
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.op_kind)
