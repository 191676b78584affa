"""What a program's ops would take under other overheads than those that it was planned with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.model import OpKind, Program

F64 = npt.NDArray[np.float64]


def retimed(
    program: Program,
    planned_with: Overheads,
    overheads: Overheads,
    *,
    device_kinds: Mapping[str, str],
    link_kinds: Mapping[tuple[str, str], str],
) -> F64:
    """Return (N,) seconds of every op under ``overheads``, dispatch and set-up included.

    The planned durations less ``planned_with`` are the profiled times. ``device_kinds`` maps device names to device
    kinds, ``link_kinds`` (source, target) memories to link kinds.
    """
    seconds = program.op_duration_s.astype(np.float64)
    for n in range(program.n_ops):
        planned_s = float(seconds[n])
        if program.op_kind[n] == OpKind.KERNEL:
            task = int(program.op_task[n])
            kernel = program.calls[program.task_call[task]].kernel
            device = program.device_names[program.task_device[task]]
            kind = device_kinds[device]
            constant_s = planned_with.task_s(kernel, kind, 0.0)
            profiled_s = (planned_s - constant_s) / (planned_with.task_s(kernel, kind, 1.0, device=device) - constant_s)
            seconds[n] = overheads.task_s(kernel, kind, profiled_s, device=device)
            continue
        memories = program.residency_memory
        source, target = memories[program.op_source[n]], memories[program.op_target[n]]
        if source != target:
            link = link_kinds[program.memory_names[source], program.memory_names[target]]
            profiled_s = planned_s - planned_with.link_setup_s.get(link, 0.0)
            profiled_s /= planned_with.link_scale.get(link, 1.0)
            seconds[n] = profiled_s * overheads.link_scale.get(link, 1.0) + overheads.link_setup_s.get(link, 0.0)
    return seconds
