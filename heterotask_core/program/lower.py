"""Schedule → program: residencies, offsets, reuse edges, lanes (DESIGN §1, §5)."""

from __future__ import annotations

import gc
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from heterotask_core.errors import ProgramError
from heterotask_core.graph import Argument, TaskGraph
from heterotask_core.kernel import OutputPath
from heterotask_core.planning.blocking import blocks, held_lanes
from heterotask_core.planning.memory import SCRATCH
from heterotask_core.planning.problem import I32, I64, Problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Platform
from heterotask_core.program.buffers import Slot, pack, successions
from heterotask_core.program.model import DependencyKind, KernelCall, LaneKind, OpKind, Program, RankRole

MEMORY_COPY_BANDWIDTH_BYTES_PER_S = 5e9
"""Assumed for copies inside one memory, which only an update beside other readers needs."""


@dataclass
class _Op:
    kind: OpKind
    task: int
    source: int
    target: int
    start_s: float
    finish_s: float
    lanes: list[str]
    data: set[int] = field(default_factory=set)
    reuse: set[int] = field(default_factory=set)


@dataclass
class _Residency:
    memory: int
    version: int
    size_bytes: int
    writer: int
    """Op that writes it first: for an update that cannot take over the copy, else ``completed_by``."""
    completed_by: int
    """Op that its readers wait for."""
    ready_s: float
    slot: int = -1
    readers: list[int] = field(default_factory=list)


class _Lowering:
    def __init__(self, graph: TaskGraph, platform: Platform, problem: Problem, schedule: Schedule) -> None:
        self.graph, self.platform, self.problem, self.schedule = graph, platform, problem, schedule
        self.ops: list[_Op] = []
        self.residencies: list[_Residency] = []
        self.held: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.bound: dict[tuple[int, int], int] = {}
        """(task, version made or read) → residency."""

    def fill(self, version: int, memory: int, writer: int) -> int:
        size = int(self.problem.version_size_bytes[version])
        self.residencies.append(_Residency(memory, version, size, writer, writer, self.ops[writer].finish_s))
        index = len(self.residencies) - 1
        self.held[version, memory].append(index)
        return index

    def held_at(self, version: int, memory: int, time_s: float, what: str) -> int:
        """The latest stay of a version in a memory that is filled by ``time_s``."""
        tolerance = 1e-9 + 1e-9 * self.schedule.makespan_s
        stays = [r for r in self.held[version, memory] if self.residencies[r].ready_s <= time_s + tolerance]
        if not stays:
            item = self.graph.versions[version].item.name
            raise ProgramError(
                f"{what} reads {item!r} in {self.problem.memory_names[memory]} at {time_s:.6g} s, where the schedule "
                "has no copy of it; the schedule is invalid, plan again"
            )
        return max(stays, key=lambda r: self.residencies[r].ready_s)

    def make_ops(self) -> None:
        problem, schedule = self.problem, self.schedule
        events = [
            (float(schedule.task_start_s[t]), float(schedule.task_finish_s[t]), t, -1) for t in range(problem.n_tasks)
        ]
        events += [
            (float(schedule.transfer_start_s[x]), float(schedule.transfer_finish_s[x]), problem.n_tasks + x, x)
            for x in range(len(schedule.transfer_version))
        ]
        for start_s, finish_s, t, x in sorted(events):
            if x < 0:
                lane = f"{problem.device_names[schedule.task_device[t]]}.compute"
                self.ops.append(_Op(OpKind.KERNEL, t, -1, -1, start_s, finish_s, [lane]))
            else:
                link = self.platform.links[schedule.transfer_link[x]]
                lanes, kind = self.link_lanes(link.source, link.target)
                self.ops.append(_Op(kind, -1, -1, -1, start_s, finish_s, lanes))
            self.ops[-1].data = set()
            op = len(self.ops) - 1
            if x < 0:
                memory = int(problem.device_memory[schedule.task_device[t]])
                for argument in self.graph.tasks[t].arguments:
                    if argument.makes is not None:
                        self.bound[t, argument.makes.index] = self.fill(argument.makes.index, memory, op)
            else:
                target = int(problem.link_target[schedule.transfer_link[x]])
                self.ops[op].target = self.fill(int(schedule.transfer_version[x]), target, op)
                self.ops[op].source = x
        for op, record in enumerate(list(self.ops)):
            if record.kind == OpKind.KERNEL:
                task = self.graph.tasks[record.task]
                memory = int(problem.device_memory[schedule.task_device[record.task]])
                for version in task.inputs:
                    stay = self.held_at(version.index, memory, record.start_s, f"task {task.name!r}")
                    self.read(op, stay)
                    self.bound[record.task, version.index] = stay
            else:
                x = record.source
                source = int(problem.link_source[schedule.transfer_link[x]])
                stay = self.held_at(int(schedule.transfer_version[x]), source, record.start_s, "a transfer")
                record.source = stay
                self.read(op, stay)
        kernel_op = {o.task: i for i, o in enumerate(self.ops) if o.kind == OpKind.KERNEL}
        for task in self.graph:
            self.ops[kernel_op[task.index]].data |= {kernel_op[p] for p in task.after}
            node = self.platform.devices[schedule.task_device[task.index]].node
            for p in task.after:
                if self.platform.devices[schedule.task_device[p]].node != node:
                    raise ProgramError(
                        f"task {task.name!r} on node {node!r} comes after task {self.graph.tasks[p].name!r} on another "
                        "node and takes no data of it, so nothing can tell it; pass a data item from one to the other"
                    )

    def read(self, op: int, stay: int) -> None:
        self.residencies[stay].readers.append(op)
        if self.residencies[stay].writer != op:
            self.ops[op].data.add(self.residencies[stay].writer)

    def link_lanes(self, source: str, target: str) -> tuple[list[str], OpKind]:
        nodes = {n.name for n in self.platform.nodes}
        if source in nodes and target in nodes:
            return [f"{source}.send", f"{target}.receive"], OpKind.TRANSFER
        devices = {d.memory: d for d in self.platform.devices if d.memory != d.node}
        if source in nodes and target in devices and devices[target].node == source:
            return [f"{devices[target].name}.host_to_device"], OpKind.COPY
        if target in nodes and source in devices and devices[source].node == target:
            return [f"{devices[source].name}.device_to_host"], OpKind.COPY
        raise ProgramError(
            f"the schedule uses the link {source} → {target}, which no rank drives; only links of a node with its "
            "devices and with other nodes can be executed"
        )

    def take_over(self) -> None:
        """Give an updated version the slot of the one it replaces, or a planned copy of it."""
        for r in self.residencies:
            r.slot = -1
        slots = 0
        for op in range(len(self.ops)):
            record = self.ops[op]
            if record.kind != OpKind.KERNEL:
                continue
            for argument in self.graph.tasks[record.task].arguments:
                if argument.makes is None or argument.reads is None:
                    continue
                old = self.bound[record.task, argument.reads.index]
                new = self.bound[record.task, argument.makes.index]
                others = [o for o in self.residencies[old].readers if o != op]
                if all(o < op and self.ops[o].finish_s <= record.start_s for o in others):
                    if self.residencies[old].slot < 0:
                        self.residencies[old].slot, slots = slots, slots + 1
                    self.residencies[new].slot = self.residencies[old].slot
                    if self.residencies[old].size_bytes > 0:
                        record.reuse |= set(others)
                else:
                    self.copy_before(op, old, new)
        for r in self.residencies:
            if r.slot < 0:
                r.slot, slots = slots, slots + 1

    def copy_before(self, op: int, old: int, new: int) -> None:
        record, size = self.ops[op], self.residencies[new].size_bytes
        start_s = max(self.residencies[old].ready_s, record.start_s - size / MEMORY_COPY_BANDWIDTH_BYTES_PER_S)
        finish_s = start_s + size / MEMORY_COPY_BANDWIDTH_BYTES_PER_S
        copy = _Op(OpKind.COPY, -1, old, new, start_s, finish_s, list(record.lanes))
        self.ops.append(copy)
        index = len(self.ops) - 1
        # The old stay may itself be a copied update: its value is there when its task, not its copy, is done.
        complete = self.residencies[old].completed_by
        copy.data = {complete}
        self.residencies[old].readers = [index if o == op else o for o in self.residencies[old].readers]
        self.residencies[new].writer = index
        record.data.discard(complete)
        record.data.add(index)
        self.residencies[new].readers.append(op)

    def sequence(self) -> list[int]:
        """A topological order of all ops by planned start; lanes follow it, so the program cannot deadlock."""
        waiting = [len(o.data | o.reuse) for o in self.ops]
        followers: dict[int, list[int]] = defaultdict(list)
        for i, o in enumerate(self.ops):
            for d in o.data | o.reuse:
                followers[d].append(i)
        heap = [(o.start_s, o.finish_s, i) for i, o in enumerate(self.ops) if not waiting[i]]
        heapq.heapify(heap)
        order: list[int] = []
        while heap:
            i = heapq.heappop(heap)[2]
            order.append(i)
            for f in followers[i]:
                waiting[f] -= 1
                if not waiting[f]:
                    heapq.heappush(heap, (self.ops[f].start_s, self.ops[f].finish_s, f))
        if len(order) != len(self.ops):
            raise ProgramError("the schedule orders ops in a cycle; it is invalid, plan again")
        return order

    def renumber(self, order: list[int]) -> None:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.ops = [self.ops[i] for i in order]
        for o in self.ops:
            o.data = {int(place[d]) for d in o.data}
            o.reuse = {int(place[d]) for d in o.reuse}
        for r in self.residencies:
            r.writer = int(place[r.writer])
            r.readers = sorted({int(place[i]) for i in r.readers})

    def place_slots(self) -> tuple[I64, I64, dict[int, int]]:
        """Pack all slots and the scratch buffers; add reuse edges; return offsets, memory sizes, scratch offsets.

        Where packing needs more than a memory has, the offsets count that were planned with the schedule.
        """
        problem = self.problem
        n_slots = 1 + max((r.slot for r in self.residencies), default=-1)
        accesses: list[set[int]] = [set() for _ in range(n_slots)]
        size, memory = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.int64)
        stays: list[list[_Residency]] = [[] for _ in range(n_slots)]
        for r in self.residencies:
            accesses[r.slot] |= {r.writer, *r.readers}
            size[r.slot], memory[r.slot] = r.size_bytes, r.memory
            stays[r.slot].append(r)
        slots = [self.slot(int(memory[s]), int(size[s]), accesses[s]) for s in range(n_slots)]
        scratch_of: dict[int, int] = {}
        scratch = problem.class_scratch_bytes
        for i, o in enumerate(self.ops):
            if o.kind == OpKind.KERNEL and scratch is not None:
                device = int(self.schedule.task_device[o.task])
                needs = int(scratch[problem.task_class[o.task], device])
                if needs:
                    scratch_of[o.task] = len(slots)
                    slots.append(self.slot(int(problem.device_memory[device]), needs, [i]))
                    stays.append([])
        limit = np.array([m.slab_bytes for m in self.platform.memories], np.int64)
        offsets, peaks = pack(slots, problem.memory_alignment_bytes, problem.n_memories, limit)
        for m, capacity in enumerate(problem.memory_capacity_bytes.tolist()):
            if 0 <= capacity < peaks[m]:
                planned = _Planned(problem, self.schedule).offsets(m, slots, stays)
                if planned is None:
                    raise ProgramError(
                        f"memory {problem.memory_names[m]!r} needs {peaks[m]} bytes with gaps between buffers and has "
                        f"{capacity}; plan with smaller tiles or another device"
                    )
                for s, offset in planned.items():
                    offsets[s] = offset
                peaks[m] = max(offset + slots[s].size_bytes for s, offset in planned.items())
        for later, earlier in successions(slots, offsets, problem.n_memories):
            self.ops[slots[later].accesses[0]].reuse |= self.last_accesses(slots[earlier], stays[earlier])
        return offsets, peaks, scratch_of

    def order_blocking(self) -> None:
        """Let a task that keeps its rank busy wait for the copies of that rank that are planned before it."""
        last: dict[str, int] = {}
        for i, o in enumerate(self.ops):
            if o.kind == OpKind.COPY:
                last[o.lanes[0]] = i
            elif o.kind == OpKind.KERNEL and blocks(self.problem, o.task, int(self.schedule.task_device[o.task])):
                name = self.problem.device_names[self.schedule.task_device[o.task]]
                o.reuse |= {last[x] for x in (f"{name}.host_to_device", f"{name}.device_to_host") if x in last}

    def slot(self, memory: int, size_bytes: int, accesses: Iterable[int]) -> Slot:
        ordered = tuple(sorted(accesses))
        return Slot(memory, size_bytes, ordered, self.ops[ordered[0]].start_s, self.until(ordered))

    def last_accesses(self, slot: Slot, stays: list[_Residency]) -> set[int]:
        """Accesses of a slot that imply the others: the last of each lane of kernels and copies, and all transfers.

        A transfer that filled the slot is implied by whoever read what it brought.
        """
        last: dict[str, int] = {}
        implied = {r.writer for r in stays if r.readers}
        transfers = set()
        for i in slot.accesses:
            if self.ops[i].kind == OpKind.TRANSFER:
                if i not in implied:
                    transfers.add(i)
            else:
                last[self.ops[i].lanes[0]] = i
        return transfers | set(last.values())

    def until(self, accesses: Iterable[int]) -> float:
        return max(self.ops[i].finish_s for i in accesses)

    def program(self) -> Program:
        problem, schedule, platform = self.problem, self.schedule, self.platform
        self.make_ops()
        self.take_over()
        self.renumber(self.sequence())
        offsets, peaks, scratch_of = self.place_slots()
        self.order_blocking()
        scratch_bytes = np.zeros(problem.n_tasks, np.int64)
        scratch_offset = np.full(problem.n_tasks, -1, np.int64)
        for task, slot in scratch_of.items():
            scratch_offset[task] = offsets[slot]
            device = int(schedule.task_device[task])
            assert problem.class_scratch_bytes is not None
            scratch_bytes[task] = problem.class_scratch_bytes[problem.task_class[task], device]
        ranks, lanes = _ranks(platform), _lanes(platform)
        on_lane: dict[str, list[int]] = {name: [] for name, _, _ in lanes}
        for i, o in enumerate(self.ops):
            for name in o.lanes:
                on_lane[name].append(i)
        for name, members in self.capacity_lanes().items():
            lanes.append((name, LaneKind.CAPACITY, -1))
            on_lane[name] = members
        deps, kinds = [], []
        for i, o in enumerate(self.ops):
            # Several transfers of a lane are in flight: only the order of kernels and copies is one of completion.
            reuse = {d for d in o.reuse - o.data - {i} if o.kind == OpKind.TRANSFER or self.ops[d].lanes != o.lanes}
            deps.append([*sorted(o.data), *sorted(reuse)])
            kinds.append([DependencyKind.DATA] * len(o.data) + [DependencyKind.REUSE] * len(reuse))
        dep_ptr, dep_ops = _csr(deps)
        lane_ptr, lane_ops = _csr([on_lane[name] for name, _, _ in lanes])
        calls, task_call = self.calls()
        roles = sorted({a.role for t in self.graph for a in t.arguments})
        arguments = [
            [self.bound[t.index, (a.makes or a.reads).index] for a in t.arguments]  # type: ignore[union-attr]
            for t in self.graph
        ]
        argument_ptr, argument_residency = _csr(arguments)
        flat = [a for t in self.graph for a in t.arguments]
        slot_of = np.array([r.slot for r in self.residencies], np.int64)
        return Program(
            name=self.graph.name,
            graph_fingerprint=self.graph.fingerprint(),
            platform_fingerprint=platform.fingerprint(),
            ranks=ranks,
            memory_names=problem.memory_names,
            memory_nodes=problem.memory_nodes,
            memory_size_bytes=peaks,
            residency_memory=np.array([r.memory for r in self.residencies], np.int32),
            residency_version=np.array([r.version for r in self.residencies], np.int32),
            residency_offset_bytes=offsets[slot_of] if len(slot_of) else np.zeros(0, np.int64),
            residency_size_bytes=np.array([r.size_bytes for r in self.residencies], np.int64),
            version_item=problem.version_data,
            version_number=problem.version_number,
            item_names=problem.data_names,
            item_shapes=tuple(item.shape for item in self.graph.items),
            item_dtypes=tuple(item.dtype for item in self.graph.items),
            op_kind=np.array([o.kind for o in self.ops], np.int8),
            op_task=np.array([o.task for o in self.ops], np.int32),
            op_source=np.array([o.source for o in self.ops], np.int32),
            op_target=np.array([o.target for o in self.ops], np.int32),
            op_duration_s=np.array([o.finish_s - o.start_s for o in self.ops], np.float64),
            op_start_s=np.array([o.start_s for o in self.ops], np.float64),
            dep_ptr=dep_ptr,
            dep_ops=dep_ops,
            dep_kinds=np.array([k for row in kinds for k in row], np.int8),
            lane_names=tuple(name for name, _, _ in lanes),
            lane_kinds=np.array([kind for _, kind, _ in lanes], np.int8),
            lane_rank=np.array([rank for _, _, rank in lanes], np.int32),
            lane_ptr=lane_ptr,
            lane_ops=lane_ops,
            task_names=problem.task_names,
            task_device=np.asarray(schedule.task_device, np.int32),
            device_names=problem.device_names,
            device_kinds=problem.device_kinds,
            task_call=task_call,
            calls=calls,
            argument_ptr=argument_ptr,
            argument_residency=argument_residency,
            argument_role=np.array([roles.index(a.role) for a in flat], np.int32),
            argument_is_list=np.array([a.is_list for a in flat], np.int8),
            role_names=tuple(roles),
            task_scratch_offset_bytes=scratch_offset,
            task_scratch_bytes=scratch_bytes,
            meta={
                "peak_live_bytes": self.peak_live(),
                "version_producer": problem.version_producer.tolist(),
                "argument_taken": [self.taken(t.index, a) for t in self.graph for a in t.arguments],
                "after": [[other, t.index] for t in self.graph for other in t.after],
                "alignment_bytes": problem.memory_alignment_bytes.tolist(),
                "capacity_bytes": problem.memory_capacity_bytes.tolist(),
                "max_allocation_bytes": [m.slab_bytes for m in platform.memories],
            },
        )

    def taken(self, task: int, argument: Argument) -> int:
        """The residency that an update reads and whose slot it takes over, else −1."""
        if argument.makes is None or argument.reads is None:
            return -1
        old, new = self.bound[task, argument.reads.index], self.bound[task, argument.makes.index]
        return old if self.residencies[old].slot == self.residencies[new].slot else -1

    def capacity_lanes(self) -> dict[str, list[int]]:
        """Lanes of the problem that several issue lanes share (a bus, an engine), with their ops in order."""
        problem = self.problem
        links = {(x.source, x.target): i for i, x in enumerate(self.platform.links)}
        members: dict[int, list[int]] = defaultdict(list)
        names, held = problem.memory_names, held_lanes(problem)
        for i, o in enumerate(self.ops):
            if o.kind == OpKind.KERNEL:
                lanes = held(o.task, int(self.schedule.task_device[o.task]))
            elif self.residencies[o.source].memory != self.residencies[o.target].memory:
                source, target = self.residencies[o.source].memory, self.residencies[o.target].memory
                x = links[names[source], names[target]]
                lanes = problem.link_lanes[problem.link_lane_ptr[x] : problem.link_lane_ptr[x + 1]].tolist()
            else:
                continue
            for lane in lanes:
                members[lane].append(i)
        shared = [k for k, v in members.items() if not set.intersection(*(set(self.ops[i].lanes) for i in v))]
        return {f"{name}.bus": members[k] for name, k in sorted((problem.lane_names[k], k) for k in shared)}

    def calls(self) -> tuple[tuple[KernelCall, ...], I32]:
        known: dict[str, int] = {}
        calls: list[KernelCall] = []
        task_call = np.empty(len(self.graph), np.int32)
        fingerprints: dict[tuple[int, str], str] = {}
        for t in self.graph:
            c = int(self.problem.task_class[t.index])
            v = int(self.schedule.task_variant[t.index])
            if v < 0:
                v = int(self.problem.cost_variant[c, self.schedule.task_device[t.index]])
            variant = self.problem.class_variants[c][v]
            params = {k: {"output": x.name} if isinstance(x, OutputPath) else x for k, x in t.params.items()}
            mark = (id(t.kernel), variant)
            if mark not in fingerprints:
                fingerprints[mark] = t.kernel.variant(variant).fingerprint()
            call = KernelCall(t.kernel.module, t.kernel.name, variant, fingerprints[mark], params)
            key = repr((call.module, call.kernel, variant, sorted(params.items())))
            if key not in known:
                known[key] = len(calls)
                calls.append(call)
            task_call[t.index] = known[key]
        return tuple(calls), task_call

    def peak_live(self) -> dict[str, int]:
        """Largest sum of live bytes a memory, which no packing can beat."""
        events: list[list[tuple[float, int]]] = [[] for _ in self.problem.memory_names]
        for r in self.residencies:
            events[r.memory].append((self.ops[r.writer].start_s, r.size_bytes))
            events[r.memory].append((self.until([r.writer, *r.readers]), -r.size_bytes))
        return {
            name: max(accumulate((size for _, size in sorted(events[m])), initial=0))
            for m, name in enumerate(self.problem.memory_names)
        }


class _Planned:
    """The buffers of a schedule as offsets of slots: what fits by construction where packing anew does not."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self._alignment = problem.memory_alignment_bytes
        self._tolerance_s = 1e-9 + 1e-9 * schedule.makespan_s
        buffers = schedule.buffers
        self._rows: dict[tuple[int, int], list[tuple[float, float, int, int]]] = defaultdict(list)
        for i in range(len(buffers.memory)):
            self._rows[int(buffers.memory[i]), int(buffers.version[i])].append(
                (
                    float(buffers.alloc_s[i]),
                    float(buffers.free_s[i]),
                    int(buffers.offset_bytes[i]),
                    int(buffers.size_bytes[i]),
                )
            )

    def offsets(self, memory: int, slots: list[Slot], stays: list[list[_Residency]]) -> dict[int, int] | None:
        """Return slot → offset for all slots of ``memory``, or None where the schedule does not say them all."""
        found: dict[int, int] = {}
        for s, slot in enumerate(slots):
            if slot.memory != memory or slot.size_bytes == 0:
                continue
            wanted = [(r.version, r.ready_s) for r in stays[s]] or [(SCRATCH, (slot.start_s + slot.free_s) / 2)]
            offsets = {self._offset(memory, version, slot.size_bytes, at_s) for version, at_s in wanted}
            offset = offsets.pop()
            if offsets or offset is None:
                return None
            found[s] = offset
        members = list(found)
        mine = [slots[s] for s in members]
        pairs = successions([replace(x, memory=0) for x in mine], np.array([found[s] for s in members], np.int64), 1)
        apart = all(mine[earlier].accesses[-1] < mine[later].accesses[0] for later, earlier in pairs)
        return found if apart else None

    def _offset(self, memory: int, version: int, size_bytes: int, at_s: float) -> int | None:
        rows = self._rows[memory, version]
        inside = [
            r for r in rows if r[3] == size_bytes and r[0] - self._tolerance_s <= at_s <= r[1] + self._tolerance_s
        ]
        return inside[0][2] if len({r[2] for r in inside}) == 1 else None


def lower(graph: TaskGraph, platform: Platform, problem: Problem, schedule: Schedule) -> Program:
    """Return the program that carries out ``schedule``.

    Tasks, versions, devices, memories and links of ``problem`` stand in the order of ``graph`` and ``platform``.
    Raises :class:`ProgramError` when the schedule reads what is not there.
    """
    with _collector_paused():
        return _Lowering(graph, platform, problem, schedule).program()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the collector of cycles: it would walk millions of new objects again and again and free none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _ranks(platform: Platform) -> tuple[RankRole, ...]:
    ranks: list[RankRole] = []
    for node in platform.nodes:
        ranks.append(RankRole(node.name, None, node.agent_cores))
        ranks += [RankRole(d.node, d.name, d.core_ids) for d in platform.devices if d.node == node.name]
    return tuple(ranks)


def _lanes(platform: Platform) -> list[tuple[str, LaneKind, int]]:
    ranks = _ranks(platform)
    lanes: list[tuple[str, LaneKind, int]] = []
    by_name: Mapping[str, Any] = {d.name: d for d in platform.devices}
    for r, role in enumerate(ranks):
        if role.device is not None:
            lanes.append((f"{role.device}.compute", LaneKind.COMPUTE, r))
            if by_name[role.device].memory != role.node:
                lanes.append((f"{role.device}.host_to_device", LaneKind.HOST_TO_DEVICE, r))
                lanes.append((f"{role.device}.device_to_host", LaneKind.DEVICE_TO_HOST, r))
        elif len(platform.nodes) > 1:
            lanes.append((f"{role.node}.send", LaneKind.SEND, r))
            lanes.append((f"{role.node}.receive", LaneKind.RECEIVE, r))
    return lanes


def _csr(rows: Iterable[Iterable[int]]) -> tuple[I64, I32]:
    lists = [list(row) for row in rows]
    ptr = np.zeros(len(lists) + 1, np.int64)
    ptr[1:] = np.cumsum([len(row) for row in lists])
    return ptr, np.array([x for row in lists for x in row], np.int32)
