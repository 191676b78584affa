"""Packing: nothing overlaps that lives at the same time, and the peak stays near the live bytes; eviction."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_cases import MAKE, MAP, Costs, platform

from heterotask_core.errors import ProgramError
from heterotask_core.graph import TaskGraph
from heterotask_core.planning.base import Budget
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.registry import planner
from heterotask_core.planning.schedule import Buffers
from heterotask_core.program import lower as lower_module
from heterotask_core.program.buffers import Slot, pack, peak_live, successions
from heterotask_core.program.lower import lower
from heterotask_core.program.model import OpKind
from heterotask_core.program.verify import verify

CAPACITY_BYTES = 13_000
"""Four of the largest items of a random graph."""


@st.composite
def slot_lists(draw):
    slots = []
    for _ in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 40))
        accesses = (first, *range(first + 1, first + draw(st.integers(1, 8))))
        slots.append(
            Slot(draw(st.integers(0, 1)), draw(st.integers(0, 900)), accesses, float(first), float(accesses[-1] + 1))
        )
    return slots


def apart(a, b):
    return a.accesses[-1] < b.accesses[0] and a.free_s <= b.start_s


@settings(max_examples=150, deadline=None)
@given(slot_lists(), st.sampled_from([1, 64]), st.sampled_from([0, 1024]))
def test_slots_that_live_together_lie_apart(slots, alignment, limit):
    units, limits = np.array([alignment, 256]), np.array([limit, 0])
    offsets, sizes = pack(slots, units, 2, limits)
    for i, a in enumerate(slots):
        end = offsets[i] + a.size_bytes
        assert offsets[i] % units[a.memory] == 0
        assert end <= sizes[a.memory]
        if limit and a.memory == 0 and a.size_bytes:
            assert offsets[i] // limit == (end - 1) // limit
        for j, b in enumerate(slots[:i]):
            if a.memory == b.memory and a.size_bytes and b.size_bytes and not apart(a, b) and not apart(b, a):
                assert end <= offsets[j] or offsets[j] + b.size_bytes <= offsets[i]
    for m in range(2):
        mine = [s for s in slots if s.memory == m]
        live = peak_live(*(np.array([getattr(s, f) for s in mine]) for f in ("size_bytes", "start_s", "free_s")))
        assert sizes[m] >= live


@settings(max_examples=100, deadline=None)
@given(slot_lists())
def test_successions_name_the_last_tenant_of_every_byte(slots):
    offsets, _ = pack(slots, np.array([1, 1]), 2)
    expected = []
    holder = defaultdict(dict)
    for s in sorted(range(len(slots)), key=lambda i: (slots[i].accesses[0], i)):
        span = range(offsets[s], offsets[s] + slots[s].size_bytes)
        held = holder[slots[s].memory]
        expected += [(s, e) for e in dict.fromkeys(held[b] for b in span if b in held)]
        held.update(dict.fromkeys(span, s))
    assert successions(slots, offsets, 2) == expected


def test_staggered_lifetimes_pack_without_loss():
    # First fit in order of time leaves a hole: small, large, then a larger one in place of both.
    slots = [
        Slot(0, 100, (0, 1), 0.0, 2.0),
        Slot(0, 300, (1, 5), 1.0, 6.0),
        Slot(0, 200, (3, 5), 3.0, 6.0),
        Slot(0, 400, (7, 8), 7.0, 9.0),
    ]
    _, sizes = pack(slots, np.array([1]), 1)
    assert sizes.tolist() == [500]


def tight_case():
    """One GPU makes eight items and reads all of them twice; it holds four."""
    machine = platform(1)
    memories = tuple(replace(m, capacity_bytes=CAPACITY_BYTES) if m.name == "n0.gpu" else m for m in machine.memories)
    devices = tuple(replace(d, core_ids=(0,)) for d in machine.devices)
    machine = replace(machine, memories=memories, devices=devices)
    graph = TaskGraph("tight")
    made = [graph.data(f"d{i}", shape=(3000,), dtype="uint8") for i in range(8)]
    for item in made:
        graph.add(MAKE, writes={"y": item}, on=("n0.gpu",))
    for turn in range(2):
        for item in made:
            out = graph.data(f"{item.name}.{turn}", shape=(100,), dtype="uint8")
            graph.add(MAP, reads={"x": item}, writes={"y": out}, on=("n0.gpu",))
    problem = build_problem(graph, machine, Costs({}, {}))
    return graph, machine, problem, planner("peft").plan(problem, budget=Budget(evaluations=0))


def test_evicted_data_are_written_back_and_fetched_again():
    graph, machine, problem, schedule = tight_case()
    program = lower(graph, machine, problem, schedule)
    verify(program)
    host, gpu = program.memory_names.index("n0"), program.memory_names.index("n0.gpu")
    assert program.memory_size_bytes[gpu] <= CAPACITY_BYTES
    stays = defaultdict(list)
    for op in np.flatnonzero(program.op_kind == OpKind.COPY).tolist():
        target = int(program.op_target[op])
        stays[int(program.residency_memory[target]), int(program.residency_version[target])].append(target)
    out = {version for memory, version in stays if memory == host}
    back = {version for memory, version in stays if memory == gpu}
    # Nobody but the GPU reads: what went out was written back, and all of it returned, each time as another stay.
    assert len(out) >= 4
    assert back == out
    assert any(len(set(stays[gpu, version])) > 1 for version in back)


def test_offsets_of_the_schedule_count_where_packing_anew_does_not_fit(monkeypatch):
    graph, machine, problem, schedule = tight_case()
    assert len(schedule.buffers.memory)

    def wasteful(slots, alignment_bytes, n_memories, max_allocation_bytes=None):
        """Every slot beside all others."""
        offsets, sizes = np.zeros(len(slots), np.int64), np.zeros(n_memories, np.int64)
        for i, slot in enumerate(slots):
            unit = int(alignment_bytes[slot.memory])
            offsets[i] = -(-sizes[slot.memory] // unit) * unit
            sizes[slot.memory] = offsets[i] + slot.size_bytes
        return offsets, sizes

    monkeypatch.setattr(lower_module, "pack", wasteful)
    program = lower(graph, machine, problem, schedule)
    verify(program)
    assert 0 < program.memory_size_bytes[program.memory_names.index("n0.gpu")] <= CAPACITY_BYTES
    with pytest.raises(ProgramError, match=r"memory 'n0.gpu' needs \d+ bytes .* has 13000; plan with smaller tiles"):
        lower(graph, machine, problem, replace(schedule, buffers=Buffers.empty()))
