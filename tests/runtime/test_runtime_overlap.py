"""What runs at the same time, what is never copied, what is never allocated."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hand_program import SLOT_BYTES, Builder
from overlap_kernels import COMPUTE, GOT, MEMORY, PUT
from runtime_kernels import FILL, NOTHING, STORE, TWICE

from heterotask_core.program.model import LaneKind, OpKind, Program, RankRole
from heterotask_core.runtime.arena import Counters, NodeMemory
from heterotask_core.runtime.context import Context, JobSpec, counters_file
from heterotask_core.runtime.device_rank import DeviceRole
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.loop import WINDOW, Loop
from heterotask_core.runtime.rank import share_cores
from heterotask_core.runtime.walker import Walker


class OneRank:
    """A communicator of which only the rank is asked."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def _context(program: Program, folder: Path, rank: int, *, repeats: int = 1) -> Context:
    spec = JobSpec(output_dir=str(folder), repeats=repeats, arenas={}, devices={})
    node = program.ranks[rank].node
    Counters(counters_file(folder, program, node), len(program.lane_names), create=True)
    size = int(program.memory_size_bytes[program.memory_names.index(node)])
    memory = NodeMemory(folder / "memory", size, program.n_ops, create=True)
    return Context(folder, program, spec, OneRank(rank), memory)


class StubEngine:
    """A device that holds its running ops until every lane has one, or for a few looks; then all of them end."""

    chains = True
    blocking = ()
    last = ()
    sleeps = True

    def __init__(self, n_lanes: int, patience: int = 3) -> None:
        self.n_lanes, self.patience = n_lanes, patience
        self.flying: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.together: list[list[int]] = []
        self.events: list[tuple[str, int]] = []
        self.looks = 0

    def issue(self, lane, op, after):
        assert all(("issue", other) in self.events for other in after)
        self.events.append(("issue", op))
        self.flying.setdefault(lane, []).append((op, after))

    def completed(self):
        self.looks += 1
        runs = [
            (lane, ops[0][0])
            for lane, ops in sorted(self.flying.items())
            if ops and all(("done", other) in self.events for other in ops[0][1])
        ]
        if len(runs) < self.n_lanes and self.looks < self.patience:
            return []
        self.looks = 0
        self.together.append([op for _, op in runs])
        self.events += [("done", op) for _, op in runs]
        for lane, _ in runs:
            del self.flying[lane][0]
        return [(lane, op, 1.0, 2.0) for lane, op in runs]


def _pipeline(n: int) -> tuple[Builder, list[tuple[int, int, int]]]:
    """``n`` independent items copied in, computed, copied out of a device with memory of its own."""
    b = Builder([("c0", "cpu", "n0"), ("g0", "opencl", "n0")])
    stages = []
    for _ in range(n):
        version = len(b.versions)
        x = b.slot("n0")
        there, made = b.slot("g0", version), b.slot("g0")
        back = b.slot("n0", version + 1)
        into = b.copy("g0", x, there, LaneKind.HOST_TO_DEVICE)
        computed = b.task("g0", TWICE, {"input": there, "output": made}, [into])
        stages.append((into, computed, b.copy("g0", made, back, LaneKind.DEVICE_TO_HOST, [computed])))
    return b, stages


def test_copies_in_compute_and_copies_out_fly_together_and_inputs_are_fetched_ahead(tmp_path):
    b, stages = _pipeline(WINDOW + 4)
    program = b.build()
    context = _context(program, tmp_path, rank=2)
    engine = StubEngine(3, patience=100)
    loop = Loop(context, engine, sleep_s=1e-5, poll=lambda: None)
    context.begin(0)
    assert loop.run(0)
    assert sorted(op for what, op in engine.events if what == "done") == list(range(program.n_ops))
    # The next input is on its way before the item before it is computed.
    for (_, computed, _), (into, _, _) in itertools.pairwise(stages):
        assert engine.events.index(("issue", into)) < engine.events.index(("done", computed))
    # Every item is computed while another comes in and a third goes out.
    assert sum(len(ops) == 3 for ops in engine.together) >= len(stages) - 2
    # As many as a lane may have are issued before anything is complete, and no more.
    first = engine.events[: engine.events.index(("done", stages[0][0]))]
    assert [op for _, op in first] == [op for stage in stages[:WINDOW] for op in stage]
    assert context.memory.seen(program.n_ops - 1, 1)
    assert context.counters.total() == 2 * program.n_ops


def test_a_blocking_op_is_issued_once_all_that_it_waits_for_is_complete(tmp_path):
    """Else what has ended would be published only when it has ended too."""
    b, stages = _pipeline(4)
    (into, computed, out), (_, after, _), *_ = stages
    b.ops[after] = (*b.ops[after][:4], (*b.ops[after][4], into, out))
    context = _context(b.build(), tmp_path, rank=2)
    engine = StubEngine(3, patience=100)
    engine.blocking = {after}
    context.begin(0)
    assert Loop(context, engine, sleep_s=1e-5, poll=lambda: None).run(0)
    issued = engine.events.index(("issue", after))
    assert {op for what, op in engine.events[:issued] if what == "done"} >= {into, computed, out, stages[1][0]}
    # Others go ahead: inputs of later tasks, not the tasks of its own lane.
    assert ("issue", stages[3][0]) in engine.events[:issued]
    assert ("issue", stages[2][1]) not in engine.events[:issued]


def test_what_computes_on_the_rank_s_core_is_issued_when_the_copies_before_it_have_ended(tmp_path):
    """Else the rank would see them end, and tell others, only when it gets its core back."""
    b, stages = _pipeline(WINDOW)
    context = _context(b.build(), tmp_path, rank=2)
    engine = StubEngine(3)
    engine.last = {computed for _, computed, _ in stages}
    context.begin(0)
    assert Loop(context, engine, sleep_s=1e-5, poll=lambda: None).run(0)
    assert sorted(op for what, op in engine.events if what == "done") == list(range(3 * len(stages)))
    flying: set[int] = set()
    for what, op in engine.events:
        if what == "done":
            flying.remove(op)
            continue
        assert op not in engine.last or flying <= engine.last
        flying.add(op)


def test_an_aborted_epoch_is_left_at_once(tmp_path):
    b, _ = _pipeline(3)
    context = _context(b.build(), tmp_path, rank=2)
    context.begin(0)
    context.memory.abort(1)
    assert not Loop(context, StubEngine(3), sleep_s=1e-5, poll=lambda: None).run(0)


@pytest.mark.parametrize("helper", ["1", "0"], ids=["compiled", "python"])
def test_walking_a_lane_again_and_again_allocates_nothing(tmp_path, monkeypatch, helper):
    monkeypatch.setenv("HETEROTASK_NATIVE", helper)
    b = Builder([("c0", "cpu", "n0")])
    previous: list[int] = []
    x = b.slot("n0")
    for _ in range(20):
        previous = [b.task("c0", NOTHING, {"data": x}, previous)]
    repeats = 300
    context = _context(b.build(), tmp_path, rank=1, repeats=repeats)
    calls = []
    walker = Walker(context, 0, [lambda: calls.append(None) or calls.clear()] * 20, sleep_s=1e-5)
    sizes = np.zeros(repeats, np.int64)
    tracemalloc.start()
    for repeat in range(repeats):
        context.begin(repeat)
        assert walker.run(repeat)
        sizes[repeat] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert sizes[-1] - sizes[repeats // 2] < 1000
    assert np.isfinite(context.finish_s).all()
    assert (np.diff(context.finish_s.ravel()) >= 0).all()


@pytest.mark.parametrize("helper", ["1", "0"], ids=["compiled", "python"])
def test_the_call_that_fails_is_named_and_not_published(tmp_path, monkeypatch, helper):
    monkeypatch.setenv("HETEROTASK_NATIVE", helper)
    b = Builder([("c0", "cpu", "n0")])
    x = b.slot("n0")
    for _ in range(3):
        b.task("c0", NOTHING, {"data": x})
    context = _context(b.build(), tmp_path, rank=1)

    def refuse():
        raise ValueError("no such luck")

    walker = Walker(context, 0, [int, refuse, int], sleep_s=1e-5)
    context.begin(0)
    with pytest.raises(ValueError, match="no such luck"):
        walker.run(0)
    assert walker.op == 1
    assert [context.memory.seen(op, 1) for op in range(3)] == [True, False, False]
    assert (context.counters.issued(0), context.counters.done(0)) == (2, 1)


@pytest.mark.parametrize(("spin_s", "gives"), [(0.0, [0, 1, 0]), (20e-6, [0, 0, 0])])
def test_shared_cores_are_given_away_once_what_the_agent_sends_is_made(tmp_path, monkeypatch, spin_s, gives):
    """Else a lane that never waits would keep its core, and the data would lie there."""
    monkeypatch.setenv("HETEROTASK_NATIVE", "0")
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    x, y, there = b.slot("n0"), b.slot("n0"), b.slot("n1", 1)
    b.task("c0", NOTHING, {"data": x})
    made = b.task("c0", NOTHING, {"data": y})
    b.transfer(y, there, [made])
    b.task("c0", NOTHING, {"data": x})
    context = _context(b.build(), tmp_path, rank=1)
    context.spin_s = spin_s
    events = []
    walker = Walker(context, 0, [partial(events.append, i) for i in range(3)], sleep_s=1e-5)
    monkeypatch.setattr(os, "sched_yield", lambda: events.append("yield"))
    context.begin(0)
    assert walker.run(0)
    assert walker._gives.tolist() == gives
    assert events == ([0, 1, "yield", 2] if any(gives) else [0, 1, 2])


def test_an_agent_without_a_core_shares_those_of_its_node(monkeypatch):
    ranks = (RankRole("n0", None), RankRole("n0", "c0", (0,)), RankRole("n1", None), RankRole("n1", "c1", (1, 2, 9)))
    pinned = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores))
    for own in ranks:
        share_cores(own, ranks)
    assert pinned == [{0}, {1, 2}]
    share_cores(RankRole("n0", None, (1,)), ranks)
    share_cores(RankRole("n2", None), ranks)
    assert len(pinned) == 2


def _at_once(start_s, finish_s, lanes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether some op of every lane runs at one moment, which can be the start of one of them."""
    return any(
        all(any(start_s[op] <= moment < finish_s[op] for op in ops) for ops in lanes)
        for moment in start_s[list(itertools.chain(*lanes))]
    )


def run_device_rank(folder: Path, repeats: int = 5) -> None:
    """Run a device's rank in this very process, see that nothing is made after loading, and keep the trace."""
    import pyopencl

    b, stages = _pipeline(8)
    made = 2
    # Of a place that no kernel touches.
    b.copy("g0", made, b.slot("g0", b.residencies[made][1]), LaneKind.COMPUTE, [stages[0][1]])
    program = b.build()
    context = _context(program, folder, rank=2, repeats=repeats)
    devices = {"g0": {"kind": "opencl", "selector": "", "memory": "g0", "slab_bytes": "0"}}
    context.spec = replace(context.spec, devices=devices)
    role = DeviceRole(context.spec, "g0", arena=context.memory.arena, memory_bytes=b.used["g0"], cores=1)
    role.load(context)
    parts, buffers = dict(role._backend._parts), []
    pyopencl.Buffer = lambda *given: buffers.append(given)
    for repeat in range(repeats):
        context.begin(repeat)
        assert role.run(repeat)
    assert role._backend._parts == parts
    assert buffers == []
    assert len(parts) == 2 * len(stages) + 1
    role.finish()
    role.close()
    np.savez(folder / "trace.npz", stages=stages, start_s=context.start_s, finish_s=context.finish_s)


def test_opencl_copies_in_and_out_while_it_computes_and_fetches_ahead(tmp_path):
    """By the device's own times; PoCL has a thread for each of its three queues, on however many cores."""
    pytest.importorskip("pyopencl")
    code = (
        f"import hand_program as h; h.COUNT, h.SLOT_BYTES = 1_000_000, 8_000_128\nimport test_runtime_overlap as t; "
        f"from pathlib import Path; t.run_device_rank(Path({str(tmp_path)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p), "POCL_MAX_PTHREAD_COUNT": "3"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    with np.load(tmp_path / "trace.npz") as stored:
        stages, start_s, finish_s = stored["stages"], stored["start_s"], stored["finish_s"]
    assert np.isfinite(finish_s).all()
    into, computed, out = lanes = tuple(map(tuple, stages.T.tolist()))
    assert any(_at_once(start_s[repeat], finish_s[repeat], lanes) for repeat in range(len(start_s)))
    for one, other in itertools.combinations((into, computed, out), 2):
        assert any(_at_once(start_s[repeat], finish_s[repeat], (one, other)) for repeat in range(len(start_s)))
    # The next input is on its way before the item before it is computed.
    assert (start_s[:, into[1:]] < finish_s[:, computed[:-1]]).mean() > 0.5


@pytest.mark.mpi
def test_cpu_tasks_of_a_node_work_on_the_same_bytes(tmp_path):
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n0")])
    x, y = b.slot("n0"), b.slot("n0")
    made = b.task("c0", PUT, {"output": x})
    seen = b.task("c1", GOT, {"input": x, "output": y}, [made])
    b.task("c0", STORE, {"input": y}, [seen], params={"path": {"output": "y.npy"}})
    program = b.build()
    result = execute(program, b.platform, output_dir=tmp_path)
    written = np.load(tmp_path / "y.npy")[:6].astype(np.int64).tolist()
    assert written[:2] == written[3:5]
    assert written[0] != 0
    assert written[2] != written[5]
    assert not (program.op_kind != OpKind.KERNEL).any()
    assert result.arena_peak_bytes == {"n0": SLOT_BYTES + 8 * 1000}


@pytest.mark.mpi
@pytest.mark.parametrize("size_bytes", [SLOT_BYTES, 4 << 20], ids=["eager", "rendezvous"])
def test_transfers_go_on_while_every_worker_computes(tmp_path, monkeypatch, size_bytes):
    """Also above the size from which a message waits for its receiver."""
    monkeypatch.setattr("hand_program.COUNT", size_bytes // 8)
    monkeypatch.setattr("hand_program.SLOT_BYTES", size_bytes)
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    x, there = b.slot("n0"), b.slot("n1", 0)
    busy = [b.slot("n0"), b.slot("n1")]
    filled = b.task("c0", FILL, {"output": x}, params={"value": 1})
    sent = b.transfer(x, there, [filled])
    ends = [
        b.task("c0", COMPUTE, {"output": busy[0]}, [filled], params={"seconds": 0.4}),
        b.task("c1", COMPUTE, {"output": busy[1]}, params={"seconds": 0.5}),
    ]
    result = execute(b.build(), b.platform, output_dir=tmp_path, repeats=2)
    assert (result.finish_s[:, sent] < result.finish_s[:, ends].min(axis=1)).all()


@pytest.mark.mpi
def test_memory_stays_flat_over_a_thousand_repeats(tmp_path):
    b = Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")])
    x, there = b.slot("n0"), b.slot("n1", 0)
    filled = b.task("c0", FILL, {"output": x}, params={"value": 1})
    sent = b.transfer(x, there, [filled])
    b.task("c1", MEMORY, {"data": there}, [sent], params={"path": {"output": "one.txt"}})
    b.task("c0", MEMORY, {"data": x}, [sent], params={"path": {"output": "two.txt"}})
    execute(b.build(), b.platform, output_dir=tmp_path, repeats=1000)
    for name in ("one.txt", "two.txt"):
        sizes = [int(line) for line in (tmp_path / name).read_text().split()]
        assert len(sizes) == 1000
        # The first repeats settle the heap (the file that is opened each time, MPI's pools).
        assert max(sizes[500:]) - sizes[500] <= 128 * 1024
