"""Builds small programs op by op, without planner and lowering."""

from __future__ import annotations

import numpy as np
from runtime_kernels import ADD, FILL, STORE, TWICE

from heterotask_core.platform.model import Device, Memory, Node, Platform
from heterotask_core.program.model import DependencyKind, KernelCall, LaneKind, OpKind, Program, RankRole

COUNT = 1000
"""Every data item is a float64 vector of this length."""
SLOT_BYTES = 8192


def make_platform(devices, hosts=None):
    """``devices``: (name, kind, node), in the order of the nodes; ``hosts``: node → host."""
    nodes = list(dict.fromkeys(node for _, _, node in devices))
    memories = [Memory(n, n) for n in nodes]
    memories += [Memory(name, node) for name, kind, node in devices if kind != "cpu"]
    return Platform(
        nodes=tuple(Node(n, (hosts or {}).get(n, "localhost")) for n in nodes),
        memories=tuple(memories),
        devices=tuple(
            Device(name, kind, node, node if kind == "cpu" else name, "test", core_ids=(i % 2,))
            for i, (name, kind, node) in enumerate(devices)
        ),
        links=(),
    )


class Builder:
    """Collects residencies, lanes and ops; every residency has a slot of its own."""

    def __init__(self, devices, hosts=None):
        self.platform = make_platform(devices, hosts)
        self.memories = [m.name for m in self.platform.memories]
        self.ranks = []
        for node in self.platform.nodes:
            self.ranks.append(RankRole(node.name, None))
            self.ranks += [
                RankRole(node.name, d.name, d.core_ids) for d in self.platform.devices if d.node == node.name
            ]
        self.used = dict.fromkeys(self.memories, 0)
        self.residencies, self.versions, self.lanes, self.ops, self.tasks, self.calls = [], [], {}, [], [], []
        self.roles = []

    def slot(self, memory, version=None):
        """A residency of a new version, or of one that exists."""
        if version is None:
            version = len(self.versions)
            self.versions.append(f"item{version}")
        self.residencies.append((self.memories.index(memory), version, self.used[memory]))
        self.used[memory] += SLOT_BYTES
        return len(self.residencies) - 1

    def _op(self, kind, lanes, after, task=-1, source=-1, target=-1):
        self.ops.append((kind, task, source, target, tuple(after)))
        for rank, lane_kind in lanes:
            self.lanes.setdefault((rank, lane_kind), []).append(len(self.ops) - 1)
        return len(self.ops) - 1

    def task(self, device, kernel, roles, after=(), params=None, scratch=(-1, 0)):
        """``roles``: role → residency or list of residencies."""
        rank = next(i for i, r in enumerate(self.ranks) if r.device == device)
        kind = self.platform.device(device).kind
        variant = next(v for v in kernel.variants if v.device_kind == kind)
        self.calls.append(KernelCall(kernel.module, kernel.name, variant.name, variant.fingerprint(), params or {}))
        self.tasks.append((f"{kernel.name}{len(self.tasks)}", device, roles, scratch))
        return self._op(OpKind.KERNEL, [(rank, LaneKind.COMPUTE)], after, task=len(self.tasks) - 1)

    def copy(self, device, source, target, lane_kind, after=()):
        rank = next(i for i, r in enumerate(self.ranks) if r.device == device)
        return self._op(OpKind.COPY, [(rank, lane_kind)], after, source=source, target=target)

    def transfer(self, source, target, after=()):
        nodes = [self.platform.memories[self.residencies[r][0]].node for r in (source, target)]
        agents = [next(i for i, r in enumerate(self.ranks) if r.node == n and r.device is None) for n in nodes]
        lanes = [(agents[0], LaneKind.SEND), (agents[1], LaneKind.RECEIVE)]
        return self._op(OpKind.TRANSFER, lanes, after, source=source, target=target)

    def build(self):
        arguments, ptr, role_names = [], [0], []
        for _, _, roles, _ in self.tasks:
            for role, bound in roles.items():
                if role not in role_names:
                    role_names.append(role)
                for residency in bound if isinstance(bound, list) else [bound]:
                    arguments.append((residency, role_names.index(role), isinstance(bound, list)))
            ptr.append(len(arguments))
        devices = [d.name for d in self.platform.devices]
        deps = [dep for op in self.ops for dep in op[4]]
        columns = np.array(arguments, dtype=np.int64).reshape(-1, 3).T
        memory, version, offset = np.array(self.residencies).T
        n = len(self.ops)
        return Program(
            name="hand",
            graph_fingerprint="",
            platform_fingerprint=self.platform.fingerprint(),
            ranks=tuple(self.ranks),
            memory_names=tuple(self.memories),
            memory_nodes=tuple(m.node for m in self.platform.memories),
            memory_size_bytes=np.array([self.used[m] for m in self.memories], np.int64),
            residency_memory=memory.astype(np.int32),
            residency_version=version.astype(np.int32),
            residency_offset_bytes=offset.astype(np.int64),
            residency_size_bytes=np.full(len(memory), SLOT_BYTES, np.int64),
            version_item=np.arange(len(self.versions), dtype=np.int32),
            version_number=np.zeros(len(self.versions), np.int32),
            item_names=tuple(self.versions),
            item_shapes=((COUNT,),) * len(self.versions),
            item_dtypes=("float64",) * len(self.versions),
            op_kind=np.array([op[0] for op in self.ops], np.int8),
            op_task=np.array([op[1] for op in self.ops], np.int32),
            op_source=np.array([op[2] for op in self.ops], np.int32),
            op_target=np.array([op[3] for op in self.ops], np.int32),
            op_duration_s=np.full(n, 1e-3),
            op_start_s=np.arange(n) * 1e-3,
            dep_ptr=np.cumsum([0, *(len(op[4]) for op in self.ops)]).astype(np.int64),
            dep_ops=np.array(deps, np.int32),
            dep_kinds=np.full(len(deps), DependencyKind.DATA, np.int8),
            lane_names=tuple(f"{rank}:{kind.name}" for rank, kind in self.lanes),
            lane_kinds=np.array([kind for _, kind in self.lanes], np.int8),
            lane_rank=np.array([rank for rank, _ in self.lanes], np.int32),
            lane_ptr=np.cumsum([0, *(len(ops) for ops in self.lanes.values())]).astype(np.int64),
            lane_ops=np.array([op for ops in self.lanes.values() for op in ops], np.int32),
            task_names=tuple(t[0] for t in self.tasks),
            task_device=np.array([devices.index(t[1]) for t in self.tasks], np.int32),
            device_names=tuple(devices),
            device_kinds=tuple(d.kind for d in self.platform.devices),
            task_call=np.arange(len(self.tasks), dtype=np.int32),
            calls=tuple(self.calls),
            argument_ptr=np.array(ptr, np.int64),
            argument_residency=columns[0].astype(np.int32),
            argument_role=columns[1].astype(np.int32),
            argument_is_list=columns[2].astype(np.int8),
            role_names=tuple(role_names),
            task_scratch_offset_bytes=np.array([t[3][0] for t in self.tasks], np.int64),
            task_scratch_bytes=np.array([t[3][1] for t in self.tasks], np.int64),
        )


def there_and_back(b):
    """Add 20 items made on ``c0`` of ``n0``, doubled on ``c1`` of ``n1``, and added; return what ``sum.npy`` must be.

    More transfers both ways than one lane's window, and each slot filled anew in every repeat.
    """
    back = []
    for i in range(20):
        x, there = b.slot("n0"), b.slot("n1", i * 2)
        y, here = b.slot("n1"), b.slot("n0", i * 2 + 1)
        filled = b.task("c0", FILL, {"output": x}, params={"value": i})
        sent = b.transfer(x, there, [filled])
        doubled = b.task("c1", TWICE, {"input": there, "output": y}, [sent])
        back.append((b.transfer(y, here, [doubled]), here))
    total = b.slot("n0")
    added = b.task("c0", ADD, {"parts": [h for _, h in back], "output": total}, [op for op, _ in back])
    b.task("c0", STORE, {"input": total}, [added], params={"path": {"output": "sum.npy"}})
    return sum(2 * (np.arange(COUNT) + float(i)) + 1 for i in range(20))
