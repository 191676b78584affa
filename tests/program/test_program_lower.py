from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from program_cases import random_program

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import LaneKind
from heterotask_core.program.verify import verify
from heterotask_core.simulate import simulate

SEEDS = st.integers(0, 10**6)
CASE = settings(max_examples=60, deadline=None)


def lanes(program):
    for kind, a, b in zip(program.lane_kinds, program.lane_ptr, program.lane_ptr[1:], strict=False):
        yield LaneKind(kind), program.lane_ops[a:b].tolist()


def deps(program, op):
    return program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]].tolist()


def ancestors(program, op):
    """All ops that enforced edges put before ``op``, by search."""
    before = {i: deps(program, i) for i in range(program.n_ops)}
    for kind, ops in lanes(program):
        if kind in (LaneKind.COMPUTE, LaneKind.HOST_TO_DEVICE, LaneKind.DEVICE_TO_HOST):
            for a, b in pairwise(ops):
                before[b] = [*before[b], a]
    found, stack = set(), list(before[op])
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            stack += before[i]
    return found


def drop(program, edge):
    op = int(np.searchsorted(program.dep_ptr, edge, side="right")) - 1
    ptr = program.dep_ptr.copy()
    ptr[op + 1 :] -= 1
    mutant = replace(
        program, dep_ptr=ptr, dep_ops=np.delete(program.dep_ops, edge), dep_kinds=np.delete(program.dep_kinds, edge)
    )
    return mutant, op, int(program.dep_ops[edge])


@CASE
@given(SEEDS, st.integers(1, 3))
@example(91164, 1)  # a copied update of a copied update
def test_lowered_programs_verify(seed, n_nodes):
    program, _ = random_program(seed, n_nodes=n_nodes)
    verify(program)


@CASE
@given(SEEDS, st.integers(1, 3))
def test_simulation_is_the_longest_path(seed, n_nodes):
    program, _ = random_program(seed, n_nodes=n_nodes)
    durations = np.random.default_rng(seed).uniform(0.0, 1e-3, program.n_ops)
    start = [0.0] * program.n_ops
    for _ in range(program.n_ops):
        for i in range(program.n_ops):
            start[i] = max([start[i], *(start[d] + durations[d] for d in deps(program, i))])
        for kind, ops in lanes(program):
            posted = kind in (LaneKind.SEND, LaneKind.RECEIVE)
            for a, b in pairwise(ops):
                start[b] = max(start[b], start[a] + (0.0 if posted else durations[a]))
            for a, b in zip(ops, ops[16:], strict=False):
                start[b] = max(start[b], start[a] + durations[a])
    result = simulate(program, durations)
    np.testing.assert_allclose(result.start_s, start, rtol=0, atol=1e-12)
    kernels = program.op_task >= 0
    first, last = result.start_s[kernels].min(), result.finish_s[kernels].max()
    assert result.makespan_s == pytest.approx(last - first, abs=1e-15)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
@example(32)  # an update of an empty item
@example(141)  # a reader of an update that needed a copy
def test_a_dropped_dependency_is_rejected_or_redundant(seed):
    program, _ = random_program(seed)
    for edge in range(len(program.dep_ops)):
        mutant, op, before = drop(program, edge)
        try:
            verify(mutant)
        except ProgramError:
            continue
        assert before in ancestors(mutant, op)


def test_every_dependency_stays_on_a_node():
    program, _ = random_program(3, n_tasks=40, n_nodes=3)
    node = [set() for _ in range(program.n_ops)]
    for rank, a, b in zip(program.lane_rank, program.lane_ptr, program.lane_ptr[1:], strict=False):
        if rank >= 0:
            for op in program.lane_ops[a:b].tolist():
                node[op].add(program.ranks[rank].node)
    assert all(node[op] & node[d] for op in range(program.n_ops) for d in deps(program, op))
