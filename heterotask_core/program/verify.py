"""Check a program before it is launched: it cannot deadlock, and no op touches bytes that are not its own yet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import I64, LaneKind, OpKind, Program
from heterotask_core.program.reach import Reach
from heterotask_core.program.tenants import ByteMap

_META = ("version_producer", "argument_taken", "after", "alignment_bytes", "capacity_bytes", "max_allocation_bytes")


def verify(program: Program) -> None:
    """Raise :class:`ProgramError`, naming ops and bytes, unless every rule of DESIGN §1 holds.

    Indices are in range; ops stand on lanes of the devices whose memories they touch; order and dependencies are
    acyclic; every op is reached by the writers of what it reads; two tenants of intersecting bytes (scratch too) are
    ordered by enforced edges; ranges are aligned, inside their memory and inside one allocation; no memory needs more
    than its capacity; lanes belong to one rank; only transfers cross nodes; the receive order of each pair of nodes
    is its send order. Takes time and memory in proportion to ops × lanes.
    """
    missing = set(_META) - program.meta.keys()
    if missing:
        raise ProgramError(f"program {program.name!r} says nothing of {', '.join(sorted(missing))}; plan again")
    _ranges(program)
    _lanes(program)
    _places(program)
    reach = Reach(program)
    _pairs(program)
    _nodes(program)
    accesses = _accesses(program)
    demands = _Demands()
    _after(program, demands)
    _residency(program, accesses, demands)
    _tenants(program, reach, accesses, demands)
    demands.check(program, reach)


class _Demands:
    """Pairs of ops of which the first must be complete before the second starts; checked all at once."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._after: list[int] = []
        self._why: list[str] = []

    def add(self, before: int, after: int, why: str) -> None:
        """Demand an order; ``why`` says with ``{before}`` and ``{after}`` what is wrong without it."""
        self._before.append(before)
        self._after.append(after)
        self._why.append(why)

    def check(self, program: Program, reach: Reach) -> None:
        """Raise :class:`ProgramError` for the first demand that no path of enforced edges meets."""
        met = reach.ordered(np.array(self._before, np.int64), np.array(self._after, np.int64))
        if not met.all():
            q = int(np.argmin(met))
            before, after = op_name(program, self._before[q]), op_name(program, self._after[q])
            raise ProgramError(f"{self._why[q].format(before=before, after=after)}; plan again")


def op_name(program: Program, op: int) -> str:
    """Return how people call an op."""
    if program.op_kind[op] == OpKind.KERNEL:
        return f"op {op} (task {program.task_names[program.op_task[op]]!r})"
    residency = program.op_target[op]
    item = program.item_names[program.version_item[program.residency_version[residency]]]
    return f"op {op} ({OpKind(program.op_kind[op]).name.lower()} of {item!r})"


def _ranges(program: Program) -> None:
    """Every index points at something, and every CSR pointer runs from 0 to the end of its array."""
    n, tasks, residencies = program.n_ops, len(program.task_names), len(program.residency_memory)
    for name, values, low, high in (
        ("dep_ops", program.dep_ops, 0, n),
        ("lane_ops", program.lane_ops, 0, n),
        ("op_task", program.op_task, -1, tasks),
        ("op_source", program.op_source, -1, residencies),
        ("op_target", program.op_target, -1, residencies),
        ("residency_memory", program.residency_memory, 0, len(program.memory_names)),
        ("residency_version", program.residency_version, 0, len(program.version_item)),
        ("version_item", program.version_item, 0, len(program.item_names)),
        ("task_device", program.task_device, 0, len(program.device_names)),
        ("task_call", program.task_call, 0, len(program.calls)),
        ("argument_residency", program.argument_residency, 0, residencies),
        ("argument_role", program.argument_role, 0, len(program.role_names)),
        ("argument_taken", np.asarray(program.meta["argument_taken"], np.int64), -1, residencies),
    ):
        if len(values) and (values.min() < low or values.max() >= high):
            raise ProgramError(f"program {program.name!r}: {name} points outside {low} to {high - 1}; plan again")
    for name, ptr, rows, flat in (
        ("dep_ptr", program.dep_ptr, n, program.dep_ops),
        ("lane_ptr", program.lane_ptr, len(program.lane_names), program.lane_ops),
        ("argument_ptr", program.argument_ptr, tasks, program.argument_residency),
    ):
        if len(ptr) != rows + 1 or ptr[0] != 0 or ptr[-1] != len(flat) or (np.diff(ptr) < 0).any():
            raise ProgramError(f"program {program.name!r}: {name} does not divide {len(flat)} entries; plan again")
    times = np.concatenate([program.op_duration_s, program.op_start_s])
    if not np.isfinite(times).all() or (program.op_duration_s < 0).any():
        raise ProgramError(f"program {program.name!r}: a planned time is not finite or negative; plan again")
    kernels = program.op_kind == OpKind.KERNEL
    if (kernels != (program.op_task >= 0)).any() or len(np.unique(program.op_task[kernels])) != tasks != kernels.sum():
        raise ProgramError(f"program {program.name!r}: not every task is exactly one op; plan again")
    if (kernels != (program.op_source < 0)).any() or (kernels != (program.op_target < 0)).any():
        raise ProgramError(f"program {program.name!r}: a copy lacks its source or its target; plan again")


def _places(program: Program) -> None:
    """A kernel computes in its device's memory; a copy stays with one device; a transfer joins two arenas."""
    home = _device_memories(program)
    device = {name: d for d, name in enumerate(program.device_names)}
    arena = {node: m for m, node in enumerate(program.memory_nodes) if program.memory_names[m] == node}
    for k, rank in enumerate(program.lane_rank.tolist()):
        if rank < 0:
            continue
        role, kind = program.ranks[rank], LaneKind(program.lane_kinds[k])
        for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist():
            what = OpKind(program.op_kind[op])
            if what == OpKind.TRANSFER:
                end = int((program.op_source if kind == LaneKind.SEND else program.op_target)[op])
                memories = {int(program.residency_memory[end])}
                right = kind in (LaneKind.SEND, LaneKind.RECEIVE) and memories == {arena[role.node]}
            else:
                task = int(program.op_task[op])
                if what == OpKind.KERNEL:
                    span = slice(program.argument_ptr[task], program.argument_ptr[task + 1])
                    memories = set(program.residency_memory[program.argument_residency[span]].tolist())
                else:
                    ends = [int(program.op_source[op]), int(program.op_target[op])]
                    memories = set(program.residency_memory[ends].tolist())
                own = device.get(role.device or "", -1)
                allowed = {home[own]} if what == OpKind.KERNEL else {home[own], arena[role.node]}
                right = own >= 0 and memories <= allowed and kind not in (LaneKind.SEND, LaneKind.RECEIVE)
                right = right and (what == OpKind.COPY or int(program.task_device[task]) == own)
            if not right:
                names = ", ".join(program.memory_names[m] for m in sorted(memories)) or "none"
                raise ProgramError(
                    f"{op_name(program, op)} stands on lane {program.lane_names[k]!r} but uses memory {names}; "
                    "plan again"
                )


def _lanes(program: Program) -> None:
    seen: dict[int, int] = defaultdict(int)
    for k, name in enumerate(program.lane_names):
        kind, rank = LaneKind(program.lane_kinds[k]), int(program.lane_rank[k])
        fits = rank < 0 if kind == LaneKind.CAPACITY else 0 <= rank < len(program.ranks)
        if fits and rank >= 0:
            # Agents carry the network, devices compute and copy.
            fits = (program.ranks[rank].device is None) == (kind in (LaneKind.SEND, LaneKind.RECEIVE))
        if not fits:
            raise ProgramError(f"lane {name!r} belongs to rank {rank}, which cannot own it; plan again")
        if kind != LaneKind.CAPACITY:
            for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]:
                seen[int(op)] += 1
    for op in range(program.n_ops):
        expected = 2 if program.op_kind[op] == OpKind.TRANSFER else 1
        if seen[op] != expected:
            raise ProgramError(f"{op_name(program, op)} stands on {seen[op]} issue lanes, not {expected}; plan again")


def _pairs(program: Program) -> None:
    order: dict[tuple[int, int], dict[LaneKind, list[int]]] = defaultdict(lambda: defaultdict(list))
    for k in range(len(program.lane_names)):
        kind = LaneKind(program.lane_kinds[k])
        if kind in (LaneKind.SEND, LaneKind.RECEIVE):
            for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]]:
                ends = (
                    int(program.residency_memory[program.op_source[op]]),
                    int(program.residency_memory[program.op_target[op]]),
                )
                order[ends][kind].append(int(op))
    for ends, sides in order.items():
        if sides[LaneKind.SEND] != sides[LaneKind.RECEIVE]:
            names = [program.memory_names[m] for m in ends]
            raise ProgramError(
                f"sends and receives from {names[0]} to {names[1]} stand in different orders; plan again"
            )


def _accesses(program: Program) -> list[tuple[list[int], list[int]]]:
    """(writers, readers) of every residency; an update's op writes the new stay and reads the old one."""
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(len(program.residency_memory))]
    kernel_op = _kernel_ops(program)
    producer = _producers(program)
    for op in range(program.n_ops):
        if program.op_kind[op] != OpKind.KERNEL:
            found[program.op_target[op]][0].append(op)
            found[program.op_source[op]][1].append(op)
    for task, op in kernel_op.items():
        for a in range(program.argument_ptr[task], program.argument_ptr[task + 1]):
            residency = int(program.argument_residency[a])
            made = producer[program.residency_version[residency]] == task
            found[residency][0 if made else 1].append(op)
            taken = program.meta["argument_taken"][a]
            if taken >= 0:
                found[taken][1].append(op)
    return found


def _nodes(program: Program) -> None:
    """No dependency crosses nodes: ranks see the completion of their own node's ops only."""
    nodes: list[set[str]] = [set() for _ in range(program.n_ops)]
    for k, rank in enumerate(program.lane_rank.tolist()):
        if rank >= 0:
            for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist():
                nodes[op].add(program.ranks[rank].node)
    for op in range(program.n_ops):
        for d in program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]].tolist():
            if not nodes[op] & nodes[d]:
                raise ProgramError(
                    f"{op_name(program, op)} waits for {op_name(program, d)} on another node; only a transfer can"
                )


def _kernel_ops(program: Program) -> dict[int, int]:
    return {task: op for op, task in enumerate(program.op_task.tolist()) if task >= 0}


def _after(program: Program, demands: _Demands) -> None:
    kernel_op = _kernel_ops(program)
    for earlier, later in program.meta["after"]:
        demands.add(kernel_op[earlier], kernel_op[later], "{after} does not wait for {before}")


def _producers(program: Program) -> I64:
    """(V,) task that makes each version, from the program's meta."""
    return np.asarray(program.meta["version_producer"], np.int64)


def _residency(program: Program, accesses: list[tuple[list[int], list[int]]], demands: _Demands) -> None:
    for r, (writers, readers) in enumerate(accesses):
        what = program.item_names[program.version_item[program.residency_version[r]]]
        memory = program.memory_names[program.residency_memory[r]]
        place = _braces(f"{what!r} in {memory}")
        # An update that cannot take over has two: the copy inside the memory, then the task.
        copied = len(writers) == 2 and program.op_kind[writers[0]] == OpKind.COPY and program.op_task[writers[1]] >= 0
        if len(writers) != 1 and not copied:
            raise ProgramError(f"{what!r} in {memory} has {len(writers)} writers, not 1; plan again")
        if copied:
            demands.add(writers[0], writers[1], f"{{after}} updates {place} without waiting for {{before}}")
        for op in readers:
            demands.add(writers[-1], op, f"{{after}} reads {place} without waiting for {{before}}")


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _tenants(program: Program, reach: Reach, accesses: list[tuple[list[int], list[int]]], demands: _Demands) -> None:
    """Every access of a tenant precedes the first write of the next tenant of any of its bytes, or is that write
    where it takes over the slot. What follows pair by pair, in one topological order, is ordered altogether."""
    size = program.memory_size_bytes
    tenants: list[list[_Tenant]] = [[] for _ in program.memory_names]
    versions, numbers, items = program.residency_version, program.version_number, program.version_item
    for r, (writers, readers) in enumerate(accesses):
        version = int(versions[r])
        what = f"{program.item_names[items[version]]!r} version {numbers[version]}"
        offset, length = int(program.residency_offset_bytes[r]), int(program.residency_size_bytes[r])
        tenants[program.residency_memory[r]].append(_Tenant(offset, length, what, writers[0], (*writers, *readers), r))
    memories = _device_memories(program)
    for op, task in enumerate(program.op_task.tolist()):
        length = int(program.task_scratch_bytes[task]) if task >= 0 else 0
        if length > 0:
            what = f"scratch of {program.task_names[task]!r}"
            offset = int(program.task_scratch_offset_bytes[task])
            tenants[memories[program.task_device[task]]].append(_Tenant(offset, length, what, op, (op,), -1))
    takes = {
        (int(taken), int(new))
        for taken, new in zip(program.meta["argument_taken"], program.argument_residency, strict=True)
        if taken >= 0
    }
    for m, name in enumerate(program.memory_names):
        alignment = int(program.meta["alignment_bytes"][m])
        most = int(program.meta["max_allocation_bytes"][m])
        capacity = int(program.meta["capacity_bytes"][m])
        if 0 <= capacity < size[m]:
            raise ProgramError(
                f"memory {name} needs {size[m]} bytes and has {capacity}; plan with smaller tiles or another device"
            )
        inside = sorted((t for t in tenants[m] if t.size_bytes > 0), key=lambda t: (reach.place[t.write], t.residency))
        holders = ByteMap()
        for i, tenant in enumerate(inside):
            offset, end = tenant.offset_bytes, tenant.offset_bytes + tenant.size_bytes
            if offset < 0 or end > size[m]:
                raise ProgramError(
                    f"{tenant.what}: bytes {offset} to {end} lie outside {name} ({size[m]} bytes); plan again"
                )
            if offset % alignment:
                raise ProgramError(f"{tenant.what}: offset {offset} in {name} is not aligned; plan again")
            if most > 0 and offset // most != (end - 1) // most:
                raise ProgramError(
                    f"{tenant.what}: bytes {offset} to {end} lie in two allocations of {name}, which holds at most "
                    f"{most} bytes in one; plan again"
                )
            for j in holders.take(offset, end, i):
                earlier = inside[j]
                update = (earlier.residency, tenant.residency) in takes and earlier.offset_bytes == offset
                why = _braces(f"{earlier.what} and {tenant.what} share bytes of {name} and nothing orders ")
                for op in earlier.accesses:
                    if not (update and op == tenant.write):
                        demands.add(op, tenant.write, why + "{before} and {after}")


@dataclass(frozen=True, slots=True)
class _Tenant:
    offset_bytes: int
    size_bytes: int
    what: str
    write: int
    accesses: tuple[int, ...]
    residency: int


def _device_memories(program: Program) -> list[int]:
    """Memory of every device: it is called like the device, or like its node."""
    index = {name: m for m, name in enumerate(program.memory_names)}
    node = {role.device: role.node for role in program.ranks}
    return [index[name] if name in index else index[node[name]] for name in program.device_names]
