"""Independent tasks on a CPU and an OpenCL device: the smallest machine with something to calibrate."""

import numpy as np
import polars as pl

from heterotask_core.errors import ExecutionError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.program.model import KernelCall, LaneKind, OpKind, Program, RankRole
from heterotask_core.tables import TRACE

DEVICES = ("cpu0", "ocl0")
KINDS = {"cpu0": "cpu", "ocl0": "opencl"}
KERNELS = ("blur", "sobel", "merge")


def toy_program(device_of, order, durations):
    """Program whose lanes hold the tasks of each device in ``order``."""
    n = len(device_of)
    lanes = [[t for t in order if device_of[t] == d] for d in range(2)]
    starts = np.zeros(n)
    for lane in lanes:
        clock = 0.0
        for t in lane:
            starts[t] = clock
            clock += durations[t]
    i32, i64 = np.int32, np.int64
    none32, none64 = np.zeros(0, i32), np.zeros(0, i64)
    return Program(
        name="toy",
        graph_fingerprint="g",
        platform_fingerprint="p",
        ranks=(RankRole("n0", None), RankRole("n0", "cpu0"), RankRole("n0", "ocl0")),
        memory_names=("n0",),
        memory_nodes=("n0",),
        memory_size_bytes=np.zeros(1, i64),
        residency_memory=none32,
        residency_version=none32,
        residency_offset_bytes=none64,
        residency_size_bytes=none64,
        version_item=none32,
        version_number=none32,
        item_names=(),
        item_shapes=(),
        item_dtypes=(),
        op_kind=np.full(n, OpKind.KERNEL, np.int8),
        op_task=np.arange(n, dtype=i32),
        op_source=np.full(n, -1, i32),
        op_target=np.full(n, -1, i32),
        op_duration_s=np.asarray(durations, np.float64),
        op_start_s=starts,
        dep_ptr=np.zeros(n + 1, i64),
        dep_ops=none32,
        dep_kinds=np.zeros(0, np.int8),
        lane_names=DEVICES,
        lane_kinds=np.full(2, LaneKind.COMPUTE, np.int8),
        lane_rank=np.array([1, 2], i32),
        lane_ptr=np.array([0, len(lanes[0]), n], i64),
        lane_ops=np.array(lanes[0] + lanes[1], i32),
        task_names=tuple(f"t{i}" for i in range(n)),
        task_device=np.asarray(device_of, i32),
        device_names=DEVICES,
        device_kinds=("cpu", "opencl"),
        task_call=np.array([i % 3 for i in range(n)], i32),
        calls=tuple(KernelCall("m", k, "v", "f", {}) for k in KERNELS),
        argument_ptr=np.zeros(n + 1, i64),
        argument_residency=none32,
        argument_role=none32,
        argument_is_list=np.zeros(0, np.int8),
        role_names=(),
        task_scratch_offset_bytes=np.full(n, -1, i64),
        task_scratch_bytes=np.zeros(n, i64),
    )


class ToyEvaluator:
    """Greedy planner and a sum of durations; ``truth`` is what profiling does not see."""

    name = "toy"
    disturbance = ""
    device_kinds = KINDS

    def __init__(self, truth=None, *, tasks=24, noise=0.0, seed=0, profile=((4e-3, 1e-3), (3e-3, 1e-3), (2e-3, 1e-3))):
        self.link_kinds = {}
        self.truth = truth or Overheads()
        self.tasks, self.noise, self.profile = tasks, noise, profile
        self.rng = np.random.default_rng(seed)
        self.measured: list[tuple[Program, int]] = []
        self.planned = 0
        self.fail = lambda run: False

    def _cost(self, overheads, task, device):
        kernel = task % 3
        return overheads.task_s(KERNELS[kernel], KINDS[DEVICES[device]], self.profile[kernel][device])

    def plan(self, overheads):
        self.planned += 1
        ready, device_of, durations = [0.0, 0.0], [], []
        for t in range(self.tasks):
            finish = [ready[d] + self._cost(overheads, t, d) for d in range(2)]
            d = int(np.argmin(finish))
            ready[d] = finish[d]
            device_of.append(d)
            durations.append(self._cost(overheads, t, d))
        return toy_program(device_of, list(range(self.tasks)), durations), max(ready)

    def measure(self, program, repeats):
        self.measured.append((program, repeats))
        if self.fail(len(self.measured)):
            raise ExecutionError("task t3, variant v, rank 2: boom")
        makespans, rows = [], []
        for repeat in range(repeats):
            clock = [0.0, 0.0]
            for t in range(self.tasks):
                d = int(program.task_device[t])
                whole = self._cost(self.truth, t, d)
                gap = self.truth.dispatch_s.get(KINDS[DEVICES[d]], 0.0)
                start = clock[d] + gap
                finish = start + (whole - gap) * float(np.exp(self.noise * self.rng.standard_normal()))
                begin = float(program.op_start_s[t])
                rows.append(
                    {
                        **{"op": t, "repeat": repeat, "kind": "kernel", "task": f"t{t}", "kernel": KERNELS[t % 3]},
                        **{"variant": "v", "data": "", "rank": d + 1, "node": "n0", "device": DEVICES[d]},
                        **{"lane": DEVICES[d], "source": "", "target": "", "size_bytes": 0},
                        "planned_start_s": begin,
                        "planned_finish_s": begin + float(program.op_duration_s[t]),
                        **{"ready_s": clock[d], "start_s": start, "finish_s": finish, "origin": "virtual"},
                    }
                )
                clock[d] = finish
            makespans.append(max(clock))
        return makespans, pl.DataFrame(rows, schema=TRACE)
