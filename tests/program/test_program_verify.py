"""What the verifier refuses beside missing edges, and that it copes with large programs."""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import random_program
from test_program_mutation import enforced, reaches

from heterotask_core.errors import ProgramError
from heterotask_core.program import reach as reach_module
from heterotask_core.program.model import LaneKind, OpKind
from heterotask_core.program.reach import Reach
from heterotask_core.program.tenants import ByteMap
from heterotask_core.program.verify import verify


@pytest.fixture(scope="module")
def program():
    found, _ = random_program(3, n_tasks=30, n_nodes=2)
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([1 << 28, 1]))
def test_reach_equals_search(seed, n_nodes, block_bytes):
    program, _ = random_program(seed, n_nodes=n_nodes)
    before = enforced(program)
    pairs = np.array([(a, b) for a in range(program.n_ops) for b in range(program.n_ops)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach_module, "BLOCK_BYTES", block_bytes)
        found = Reach(program).ordered(pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [reaches(before, a, b) for a, b in pairs.tolist()]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=30))
def test_byte_map_equals_a_table_of_bytes(ranges):
    table, found = [None] * 50, ByteMap()
    for tenant, (start, length) in enumerate(ranges):
        expected = list(dict.fromkeys(t for t in table[start : start + length] if t is not None))
        assert found.take(start, start + length, tenant) == expected
        table[start : start + length] = [tenant] * length


def _with(program, name, index, value):
    array = getattr(program, name).copy()
    array[index] = value
    return replace(program, **{name: array})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: _with(p, "dep_ops", 0, p.n_ops), "dep_ops points outside"),
        (lambda p: _with(p, "residency_memory", 0, 99), "residency_memory points outside"),
        (lambda p: _with(p, "argument_residency", 0, -5), "argument_residency points outside"),
        (lambda p: _with(p, "lane_ptr", -1, p.n_ops + 100), "lane_ptr does not divide"),
        (lambda p: _with(p, "op_duration_s", 0, np.nan), "not finite or negative"),
        (lambda p: _with(p, "op_task", 0, -1), "not every task is exactly one op"),
        (lambda p: _with(p, "task_device", 0, (p.task_device[0] + 1) % 3), "stands on lane"),
        (lambda p: _with(p, "residency_offset_bytes", 0, 1), "is not aligned"),
        (lambda p: replace(p, memory_size_bytes=p.memory_size_bytes // 4), "lie outside"),
        (lambda p: replace(p, meta={**p.meta, "capacity_bytes": [10] * 4}), "needs .* bytes and has 10"),
        (lambda p: replace(p, meta={**p.meta, "max_allocation_bytes": [512] * 4}), "lie in two allocations"),
        (lambda p: replace(p, meta={}), "says nothing of after, alignment_bytes"),
        (lambda p: _with(p, "lane_rank", 0, 1 - p.lane_rank[0]), r"which cannot own it"),
    ],
)
def test_a_corrupted_program_is_refused(program, change, message):
    with pytest.raises(ProgramError, match=message):
        verify(change(program))


def test_receives_in_another_order_are_refused(program):
    for k, kind in enumerate(program.lane_kinds):
        a, b = program.lane_ptr[k], program.lane_ptr[k + 1]
        if kind == LaneKind.RECEIVE and b - a > 1:
            ops = program.lane_ops.copy()
            ops[a], ops[a + 1] = ops[a + 1], ops[a]
            with pytest.raises(ProgramError, match=r"different orders|cycle"):
                verify(replace(program, lane_ops=ops))
            return
    pytest.fail("the program receives too little")


@pytest.mark.slow
def test_a_hundred_thousand_ops_verify_in_bounded_memory():
    program, _ = random_program(1, n_tasks=40_000, n_nodes=3)
    assert program.n_ops > 60_000
    assert (program.op_kind == OpKind.TRANSFER).any()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verify(program)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
