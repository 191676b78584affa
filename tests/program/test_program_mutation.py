"""Every enforced edge counts: a program with one dropped or reversed is rejected, or the edge was redundant."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from program_cases import random_program

from heterotask_core.errors import ProgramError
from heterotask_core.program.model import LaneKind
from heterotask_core.program.verify import verify

CHAINS = (LaneKind.COMPUTE, LaneKind.HOST_TO_DEVICE, LaneKind.DEVICE_TO_HOST)


def chain_edges(program):
    """(lane, position) of every pair of neighbours on a lane whose ops are complete in order."""
    return [
        (k, p)
        for k in range(len(program.lane_names))
        if program.lane_kinds[k] in CHAINS
        for p in range(program.lane_ptr[k], program.lane_ptr[k + 1] - 1)
    ]


def enforced(program):
    """Op → what it directly waits for: dependencies and the lane's previous op."""
    before = [program.dep_ops[a:b].tolist() for a, b in pairwise(program.dep_ptr.tolist())]
    for _, p in chain_edges(program):
        before[program.lane_ops[p + 1]].append(int(program.lane_ops[p]))
    return before


def reaches(before, first, last):
    """Whether ``first`` precedes ``last`` by enforced edges, by search."""
    stack, seen = [last], {last}
    while stack:
        for op in before[stack.pop()]:
            if op == first:
                return True
            if op not in seen:
                seen.add(op)
                stack.append(op)
    return False


def dropped(program, edge):
    op = int(np.searchsorted(program.dep_ptr, edge, side="right")) - 1
    ptr = program.dep_ptr.copy()
    ptr[op + 1 :] -= 1
    ops, kinds = np.delete(program.dep_ops, edge), np.delete(program.dep_kinds, edge)
    return replace(program, dep_ptr=ptr, dep_ops=ops, dep_kinds=kinds), int(program.dep_ops[edge]), op


def reversed_(program, edge):
    """The earlier op waits for the later one instead."""
    mutant, before, after = dropped(program, edge)
    at = int(mutant.dep_ptr[before + 1])
    ptr = mutant.dep_ptr.copy()
    ptr[before + 1 :] += 1
    ops, kinds = np.insert(mutant.dep_ops, at, after), np.insert(mutant.dep_kinds, at, program.dep_kinds[edge])
    return replace(mutant, dep_ptr=ptr, dep_ops=ops, dep_kinds=kinds), before, after


def swapped(program, position):
    """Two neighbours of a lane change places."""
    ops = program.lane_ops.copy()
    ops[position], ops[position + 1] = ops[position + 1], ops[position]
    return replace(program, lane_ops=ops), int(program.lane_ops[position]), int(program.lane_ops[position + 1])


def rejected(program):
    try:
        verify(program)
    except ProgramError:
        return True
    return False


def check_mutants(seed, *, per_program):
    """Mutate up to ``per_program`` edges of each sort; return how many mutants were rejected and how many passed."""
    rng = random.Random(seed)
    program, _ = random_program(seed, n_tasks=rng.randint(6, 30), n_nodes=rng.randint(1, 3))
    verify(program)
    counts = {True: 0, False: 0}
    edges = range(len(program.dep_ops))
    for edge in rng.sample(edges, min(per_program, len(edges))):
        for mutate in (dropped, reversed_):
            mutant, before, after = mutate(program, edge)
            verdict = rejected(mutant)
            counts[verdict] += 1
            if not verdict and mutate is dropped:
                # What the edge enforced is enforced without it, by other edges.
                assert reaches(enforced(mutant), before, after), (seed, edge)
            elif not verdict and not reaches(enforced(mutant), before, after):
                # Two tenants of a slot may also follow each other the other way round: another sound program.
                check_by_search(mutant)
    pairs = chain_edges(program)
    for _, position in rng.sample(pairs, min(per_program, len(pairs))):
        mutant, before, after = swapped(program, position)
        verdict = rejected(mutant)
        counts[verdict] += 1
        if not verdict:
            # A lane's order may be chosen freely where nothing follows from it: every demand of the program is met
            # in the other order too, which is checked against a search over all pairs.
            check_by_search(mutant)
    return counts


def check_by_search(program):
    """What verify says of data and of shared bytes, with a search instead of clocks, over all pairs."""
    before = enforced(program)
    writers, accesses = {}, {r: set() for r in range(len(program.residency_memory))}
    producer = program.meta["version_producer"]
    for op in range(program.n_ops):
        task = int(program.op_task[op])
        if task < 0:
            writers.setdefault(int(program.op_target[op]), []).append(op)
            accesses[int(program.op_target[op])].add(op)
            accesses[int(program.op_source[op])].add(op)
            continue
        for a in range(program.argument_ptr[task], program.argument_ptr[task + 1]):
            r = int(program.argument_residency[a])
            accesses[r].add(op)
            if producer[program.residency_version[r]] == task:
                writers.setdefault(r, []).append(op)
            if program.meta["argument_taken"][a] >= 0:
                accesses[program.meta["argument_taken"][a]].add(op)
    for r, ops in accesses.items():
        assert all(op in writers[r] or reaches(before, writers[r][-1], op) for op in ops)
    offset, size = program.residency_offset_bytes, program.residency_size_bytes
    for r in accesses:
        for s in accesses:
            apart = offset[r] + size[r] <= offset[s] or offset[s] + size[s] <= offset[r]
            if r == s or apart or program.residency_memory[r] != program.residency_memory[s]:
                continue
            first = all(o == writers[s][0] or reaches(before, o, writers[s][0]) for o in accesses[r])
            second = all(o == writers[r][0] or reaches(before, o, writers[r][0]) for o in accesses[s])
            assert first or second


def test_a_dropped_or_reversed_edge_is_rejected_or_redundant():
    rejections = acceptances = 0
    for seed in range(40):
        counts = check_mutants(seed, per_program=6)
        rejections += counts[True]
        acceptances += counts[False]
    assert rejections > 2 * acceptances > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_edges_of_a_thousand_programs_are_enforced_or_redundant():
    rejections = acceptances = 0
    for seed in range(1000):
        counts = check_mutants(seed, per_program=6)
        rejections += counts[True]
        acceptances += counts[False]
    assert rejections > 2 * acceptances > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_edge_of_some_programs_is_enforced_or_redundant():
    for seed in range(20):
        check_mutants(seed, per_program=10**9)
