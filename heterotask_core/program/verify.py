"""Check a program before it is launched: it cannot deadlock, and no op touches bytes that are not its own yet."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import I64, LaneKind, OpKind, Program
from heterotask_core.simulate import topological_order


def verify(program: Program) -> None:
    """Raise :class:`ProgramError`, naming ops and bytes, unless every rule of DESIGN §1 holds.

    Lane order and dependencies are acyclic; every op is reached by the writers of what it reads; two tenants of
    intersecting bytes are ordered by enforced edges; ranges are aligned to nothing but lie inside their memory; lanes
    belong to one rank; the receive order of each pair of nodes is its send order.
    """
    topological_order(program)
    _lanes(program)
    _pairs(program)
    reach = _enforced_ancestors(program)
    accesses = _accesses(program)
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
    """Bit sets (Python ints) of the ops that issue-lane order and dependencies put before each op."""
    before: list[list[int]] = [
        program.dep_ops[program.dep_ptr[i] : program.dep_ptr[i + 1]].tolist() for i in range(program.n_ops)
    ]
    for k in range(len(program.lane_names)):
        if program.lane_kinds[k] != LaneKind.CAPACITY:
            ops = program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist()
            for a, b in zip(ops, ops[1:], strict=False):
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
            copied = bool(found[residency][0]) and made
            found[residency][1 if not made or copied else 0].append(op)
    return found


def _producers(program: Program) -> I64:
    """(V,) task that makes each version, from the program's meta."""
    return np.asarray(program.meta["version_producer"], np.int64)


def _residency(program: Program, reach: list[int], accesses: list[tuple[list[int], list[int]]]) -> None:
    for r, (writers, readers) in enumerate(accesses):
        what = program.item_names[program.version_item[program.residency_version[r]]]
        memory = program.memory_names[program.residency_memory[r]]
        if len(writers) != 1:
            raise ProgramError(f"{what!r} in {memory} has {len(writers)} writers, not 1; plan again")
        for op in readers:
            if not reach[op] >> writers[0] & 1:
                raise ProgramError(
                    f"{op_name(program, op)} reads {what!r} in {memory} without waiting for "
                    f"{op_name(program, writers[0])}; plan again"
                )


def _tenants(program: Program, reach: list[int], accesses: list[tuple[list[int], list[int]]]) -> None:
    size = program.memory_size_bytes
    for m, name in enumerate(program.memory_names):
        inside = [
            (int(program.residency_offset_bytes[r]), int(program.residency_size_bytes[r]), r)
            for r in range(len(program.residency_memory))
            if program.residency_memory[r] == m and program.residency_size_bytes[r] > 0
        ]
        inside.sort()
        for i, (offset, length, r) in enumerate(inside):
            if offset < 0 or offset + length > size[m]:
                raise ProgramError(
                    f"bytes {offset} to {offset + length} lie outside {name} ({size[m]} bytes); plan again"
                )
            for other_offset, _, s in inside[i + 1 :]:
                if other_offset >= offset + length:
                    break
                if not _ordered(reach, accesses[r], accesses[s]) and not _ordered(reach, accesses[s], accesses[r]):
                    items = [program.item_names[program.version_item[program.residency_version[x]]] for x in (r, s)]
                    raise ProgramError(
                        f"{items[0]!r} and {items[1]!r} share bytes of {name} and nothing orders them; plan again"
                    )


def _ordered(reach: list[int], first: tuple[list[int], list[int]], second: tuple[list[int], list[int]]) -> bool:
    """Every access of the first tenant comes before (or, for an update, is) the write of the second."""
    write = second[0][0]
    return all(op == write or reach[write] >> op & 1 for op in (*first[0], *first[1]))
