"""A scheduling problem as arrays: what every planner reads, whether it came from a graph or from a file.

Indices: T tasks, V versions, D devices, M memories, L links, C task classes, X variant names a class.
CSR pairs are named ``*_ptr`` (int64, length n + 1) and the flat array beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Task graph, platform and costs, ready to plan.

    Tasks stand in program order, which is a topological order. A version is a value of a data item
    (``version_number`` writes before it); versions with number 0 are home copies, present at time 0.
    ``cost_s[class, device]`` is the smallest cost of a feasible variant (infinite where the device cannot
    or may not run the task: no variant, or pinned elsewhere) and ``cost_variant`` its index in
    ``class_variants[class]`` (−1: the only, unnamed one). ``variant_cost_s[c]`` has all of a class, (X, D).
    """

    name: str
    contention: bool
    # memories
    memory_names: tuple[str, ...]
    memory_nodes: tuple[str, ...]
    memory_capacity_bytes: I64
    """(M,), −1 where unlimited."""
    memory_alignment_bytes: I64
    """(M,), 1 where offsets are free."""
    # devices
    device_names: tuple[str, ...]
    device_kinds: tuple[str, ...]
    device_memory: I32
    device_lane_ptr: I64
    device_lanes: I32
    # links
    link_source: I32
    link_target: I32
    link_latency_s: F64
    link_bandwidth_bytes_per_s: F64
    link_lane_ptr: I64
    link_lanes: I32
    lane_names: tuple[str, ...]
    """Device lanes and link lanes share one numbering; a device without lanes has one of its own."""
    # data
    data_names: tuple[str, ...]
    version_data: I32
    version_number: I32
    version_size_bytes: I64 | F64
    """(V,); whole numbers for real data, fractions occur in the literature's random problems."""
    version_producer: I32
    """(V,), task index, −1 for a home copy."""
    home_ptr: I64
    home_memories: I32
    """CSR over versions: memories that hold the version at time 0."""
    version_final_memory: I32
    """(V,), memory the version must reach, −1 for none."""
    # tasks
    task_names: tuple[str, ...]
    task_class: I32
    input_ptr: I64
    input_versions: I32
    """CSR over tasks: versions taken, reads first and then updates, in declared order."""
    output_ptr: I64
    output_versions: I32
    output_takes_over: I32
    """Parallel to ``output_versions``: the version an update reads and replaces, −1 for a write."""
    after_ptr: I64
    after_tasks: I32
    # classes
    class_names: tuple[str, ...]
    class_variants: tuple[tuple[str, ...], ...]
    cost_s: F64
    cost_variant: I32
    variant_cost_s: tuple[F64, ...]
    class_scratch_bytes: I64 | None = None
    """(C, D) or None: extra bytes in the device's memory while a task of the class runs there."""
    class_blocking: npt.NDArray[np.bool_] | None = None
    """(C, D) or None: whether the cheapest variant there keeps its device's rank from issuing copies meanwhile."""
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_names)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.device_names)

    @property
    def n_memories(self) -> int:
        """Number of memories."""
        return len(self.memory_names)

    @property
    def n_versions(self) -> int:
        """Number of versions."""
        return len(self.version_data)
