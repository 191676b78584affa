"""Check a program before it is launched: it cannot deadlock, and no op touches bytes that are not its own yet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import I64, LaneKind, OpKind, Program
from heterotask_core.simulate import topological_order


def verify(program: Program) -> None:
    """Raise :class:`ProgramError`, naming ops and bytes, unless every rule of DESIGN §1 holds.

    Lane order and dependencies are acyclic; every op is reached by the writers of what it reads; two tenants of
    intersecting bytes (scratch too) are ordered by enforced edges; ranges are aligned and inside their memory; lanes
    belong to one rank; only transfers cross nodes; the receive order of each pair of nodes is its send order.
    """
    missing = {"version_producer", "argument_taken", "after", "alignment_bytes"} - program.meta.keys()
    if missing:
        raise ProgramError(f"program {program.name!r} says nothing of {', '.join(sorted(missing))}; plan again")
    topological_order(program)
    _lanes(program)
    _pairs(program)
    reach = _enforced_ancestors(program)
    accesses = _accesses(program)
    _nodes(program)
    _after(program, reach)
    _residency(program, reach, accesses)
    _tenants(program, reach, accesses)


def op_name(program: Program, op: int) -> str:
    """Return how people call an op."""
    if program.op_kind[op] == OpKind.KERNEL:
        return f"op {op} (task {program.task_names[program.op_task[op]]!r})"
    residency = program.op_target[op]
    item = program.item_names[program.version_item[program.residency_version[residency]]]
    return f"op {op} ({OpKind(program.op_kind[op]).name.lower()} of {item!r})"


def _lanes(program: Program) -> None:
    seen: dict[int, int] = defaultdict(int)
    for k, name in enumerate(program.lane_names):
        kind, rank = LaneKind(program.lane_kinds[k]), int(program.lane_rank[k])
        if (rank < 0) != (kind == LaneKind.CAPACITY) or rank >= len(program.ranks):
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


def _enforced_ancestors(program: Program) -> list[int]:
    """Bit sets (Python ints) of the ops that are complete before each op starts: by dependencies and lane order.

    Send and receive lanes are left out: several of their transfers are in flight, so their order is that of posting.
    """
    before: list[list[int]] = [
        program.dep_ops[program.dep_ptr[i] : program.dep_ptr[i + 1]].tolist() for i in range(program.n_ops)
    ]
    for k in range(len(program.lane_names)):
        if program.lane_kinds[k] not in (LaneKind.CAPACITY, LaneKind.SEND, LaneKind.RECEIVE):
            ops = program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist()
            for a, b in pairwise(ops):
                before[b].append(a)
    reach = [0] * program.n_ops
    for i in topological_order(program).tolist():
        for b in before[i]:
            reach[i] |= reach[b] | (1 << b)
    return reach


def _accesses(program: Program) -> list[tuple[list[int], list[int]]]:
    """(writers, readers) of every residency; an update's op writes the new stay and reads the old one."""
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(len(program.residency_memory))]
    kernel_op = {int(t): i for i, t in enumerate(program.op_task) if t >= 0}
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


def _after(program: Program, reach: list[int]) -> None:
    kernel_op = {int(t): i for i, t in enumerate(program.op_task) if t >= 0}
    for earlier, later in program.meta["after"]:
        a, b = kernel_op[earlier], kernel_op[later]
        if not reach[b] >> a & 1:
            raise ProgramError(f"{op_name(program, b)} does not wait for {op_name(program, a)}; plan again")


def _producers(program: Program) -> I64:
    """(V,) task that makes each version, from the program's meta."""
    return np.asarray(program.meta["version_producer"], np.int64)


def _residency(program: Program, reach: list[int], accesses: list[tuple[list[int], list[int]]]) -> None:
    for r, (writers, readers) in enumerate(accesses):
        what = program.item_names[program.version_item[program.residency_version[r]]]
        memory = program.memory_names[program.residency_memory[r]]
        # An update that cannot take over has two: the copy inside the memory, then the task.
        copied = len(writers) == 2 and program.op_kind[writers[0]] == OpKind.COPY and program.op_task[writers[1]] >= 0
        if len(writers) != 1 and not copied:
            raise ProgramError(f"{what!r} in {memory} has {len(writers)} writers, not 1; plan again")
        if copied and not reach[writers[1]] >> writers[0] & 1:
            raise ProgramError(
                f"{op_name(program, writers[1])} updates {what!r} in {memory} without waiting for "
                f"{op_name(program, writers[0])}; plan again"
            )
        for op in readers:
            if not reach[op] >> writers[-1] & 1:
                raise ProgramError(
                    f"{op_name(program, op)} reads {what!r} in {memory} without waiting for "
                    f"{op_name(program, writers[-1])}; plan again"
                )


def _tenants(program: Program, reach: list[int], accesses: list[tuple[list[int], list[int]]]) -> None:
    size = program.memory_size_bytes
    tenants: list[list[_Tenant]] = [[] for _ in program.memory_names]
    for r, (writers, readers) in enumerate(accesses):
        memory = int(program.residency_memory[r])
        version = int(program.residency_version[r])
        what = f"{program.item_names[program.version_item[version]]!r} version {program.version_number[version]}"
        offset, length = int(program.residency_offset_bytes[r]), int(program.residency_size_bytes[r])
        tenants[memory].append(_Tenant(offset, length, what, writers[0], (*writers, *readers), r))
    for op, task in enumerate(program.op_task.tolist()):
        length = int(program.task_scratch_bytes[task]) if task >= 0 else 0
        if length > 0:
            memory = _memory_of(program, task)
            what = f"scratch of {program.task_names[task]!r}"
            offset = int(program.task_scratch_offset_bytes[task])
            tenants[memory].append(_Tenant(offset, length, what, op, (op,), -1))
    takes = {
        (int(taken), int(new))
        for taken, new in zip(program.meta["argument_taken"], program.argument_residency, strict=True)
        if taken >= 0
    }
    for m, name in enumerate(program.memory_names):
        inside = sorted((t for t in tenants[m] if t.size_bytes > 0), key=lambda t: (t.offset_bytes, t.write))
        for i, tenant in enumerate(inside):
            offset, end = tenant.offset_bytes, tenant.offset_bytes + tenant.size_bytes
            if offset < 0 or end > size[m]:
                raise ProgramError(
                    f"{tenant.what}: bytes {offset} to {end} lie outside {name} ({size[m]} bytes); plan again"
                )
            if offset % program.meta["alignment_bytes"][m]:
                raise ProgramError(f"{tenant.what}: offset {offset} in {name} is not aligned; plan again")
            for other in inside[i + 1 :]:
                if other.offset_bytes >= end:
                    break
                if not _ordered(reach, tenant, other, takes) and not _ordered(reach, other, tenant, takes):
                    raise ProgramError(
                        f"{tenant.what} and {other.what} share bytes of {name} and nothing orders "
                        f"{op_name(program, tenant.write)} and {op_name(program, other.write)}; plan again"
                    )


@dataclass(frozen=True, slots=True)
class _Tenant:
    offset_bytes: int
    size_bytes: int
    what: str
    write: int
    accesses: tuple[int, ...]
    residency: int


def _memory_of(program: Program, task: int) -> int:
    """A device's memory is called like the device, or like its node."""
    device = program.device_names[program.task_device[task]]
    node = next(r.node for r in program.ranks if r.device == device)
    return program.memory_names.index(device if device in program.memory_names else node)


def _ordered(reach: list[int], first: _Tenant, second: _Tenant, takes: set[tuple[int, int]]) -> bool:
    """Every access of the first tenant precedes the write of the second, or is it where that takes over the slot."""
    write = second.write
    update = (first.residency, second.residency) in takes and first.offset_bytes == second.offset_bytes
    return all((op == write and update) or reach[write] >> op & 1 for op in first.accesses)
