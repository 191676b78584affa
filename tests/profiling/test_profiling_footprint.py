"""Footprints: what a graph lets pass between two uses, how arrays are placed for it, and which timings count for it."""

import os

import polars as pl
import profiling_kernels as pk
import pytest

from heterotask_core.graph import TaskGraph, class_key
from heterotask_core.kernel import Kernel, OutputPath, Variant
from heterotask_core.platform.model import Device, Memory, Node, Platform
from heterotask_core.profiling import footprint
from heterotask_core.profiling.compare import compare
from heterotask_core.profiling.footprint import LARGEST_BYTES, SMALLEST_BYTES, class_footprints, task_footprints
from heterotask_core.profiling.given import import_timings
from heterotask_core.profiling.items import wanted_items
from heterotask_core.profiling.measure import profile, stored_profile
from heterotask_core.profiling.memory import SWEEP_BYTES, Sweep, place
from heterotask_core.profiling.records import FILES
from heterotask_core.store import Store

BUDGET_S = 0.2
CORE = min(os.sched_getaffinity(0))
KIB = 1 << 10
COPY = Kernel(
    "copy", pk.__name__, reads=("src",), writes=("dst",), variants=(Variant("numpy", "cpu", f"{pk.__name__}:fill"),)
)


def platform(cpus=1):
    devices = tuple(Device(f"n0.cpu{i}", "cpu", "n0", "n0", "Xeon", (CORE,)) for i in range(cpus))
    return Platform((Node("n0", os.uname().nodename),), (Memory("n0", "n0"),), devices, ())


def back_and_forth(tiles, *, floats=KIB, steps=3):
    """Every tile has two items; a step reads the one and writes the other."""
    graph = TaskGraph("back and forth")
    pairs = [[graph.data(f"{side}{i}", shape=(floats,), dtype="float32") for side in "ab"] for i in range(tiles)]
    for a, _ in pairs:
        graph.add(pk.FILL, writes={"dst": a}, params={"value": 1})
    for k in range(steps):
        for pair in pairs:
            graph.add(COPY, reads={"src": pair[k % 2]}, writes={"dst": pair[1 - k % 2]})
    for pair in pairs:
        graph.add(pk.SAVE, reads={"src": pair[steps % 2]}, params={"path": OutputPath("x.npy")})
    return graph


def test_what_is_read_was_used_a_round_ago_and_what_is_written_lies_where_something_was_just_freed():
    size = 4 * KIB
    found = task_footprints(back_and_forth(8), 1).reshape(-1, 8)
    # All 16 items pass from run to run; of these, nine are alive while a step runs, and it touches two.
    assert (found[0] == 16 * size).all()
    assert (found[1:4] == (9 * size + 2 * size) / 2).all()
    assert (task_footprints(back_and_forth(8), 2).reshape(-1, 8)[1:4] == (9 * size / 2 + 2 * size) / 2).all()


def test_memory_of_another_size_is_not_taken_over():
    graph = TaskGraph("grows")
    a, b = (graph.data(name, shape=(n,), dtype="float32") for name, n in (("a", KIB), ("b", 2 * KIB)))
    graph.add(pk.FILL, writes={"dst": a}, params={"value": 1})
    graph.add(COPY, reads={"src": a}, writes={"dst": b})
    # Alive are 12 KiB, of which 4 are read; 8 are written where nobody wrote since the run before.
    assert task_footprints(graph, 1).tolist() == [12 * KIB, 12 * KIB]


def test_an_update_touches_what_it_reads_only():
    graph = TaskGraph("update")
    a, b = (graph.data(name, shape=(KIB,), dtype="float32") for name in "ab")
    for x in (a, b):
        graph.add(pk.FILL, writes={"dst": x}, params={"value": 1})
    for x in (a, b, a, b):
        graph.add(pk.SCALE, updates={"x": x}, params={"factor": 2})
    # The last versions are read by nobody, so the last task finds its own one alone.
    assert task_footprints(graph, 1)[2:].tolist() == [8 * KIB, 8 * KIB, 8 * KIB, 4 * KIB]


def test_footprints_are_powers_of_two_between_bounds_and_sinks_have_the_smallest():
    graph = back_and_forth(8, floats=256 * KIB)
    keys = {task.kernel.name: class_key(task) for task in graph}
    found = class_footprints(graph, 1)
    # A step's 5.5 MiB are nearer to 4 than to 8 on a logarithmic scale.
    assert [found[keys[name]] for name in ("fill", "copy", "save")] == [16 << 20, 4 << 20, SMALLEST_BYTES]
    assert set(class_footprints(back_and_forth(2, floats=4), 1).values()) == {SMALLEST_BYTES}
    large = back_and_forth(8, floats=256 << 20)
    assert class_footprints(large, 1)[class_key(large.tasks[0])] == LARGEST_BYTES


@pytest.mark.parametrize(
    ("rotate_bytes", "sets", "sweep_bytes"),
    [(0, 1, 0), (8192, 1, 0), (20_000, 3, 0), (16 * 8192, 16, 0), (32 * 8192, 16, 8192), (1 << 40, 16, SWEEP_BYTES)],
)
def test_sets_and_sweep_together_let_the_footprint_pass(rotate_bytes, sets, sweep_bytes):
    arguments = [
        {"role": role, "index": 0, "shape": (2048,), "dtype": "float32", "is_list": False, "updated": True, "file": ""}
        for role in ("x",)
    ]
    item = {
        "module": pk.__name__,
        "kernel": "scale",
        "variant": "numpy",
        "sink": False,
        "params": {},
        "arguments": arguments,
        "rotate_bytes": rotate_bytes,
    }
    placed = place(item)
    assert (len(placed.sets), placed.stride_bytes, placed.sweep_bytes) == (sets, 8192, sweep_bytes)
    assert [s[0].offset_bytes for s in placed.sets] == [8192 * k for k in range(sets)]
    sweep = Sweep([placed])
    sweep(placed)
    assert (sweep._buffer.nbytes, sweep._buffer.all()) == (sweep_bytes, True)


def timed(store):
    """Return kernel and footprint of every timing that the store holds for the platform of one core."""
    folder = store.find("profiles", platform().fingerprint())
    return sorted(pl.read_parquet(folder / "timings.parquet").select("kernel", "footprint_bytes").rows())


def test_a_class_is_timed_for_each_footprint_and_keeps_all(tmp_path, monkeypatch):
    store, graph = Store(tmp_path), pk.small_graph()
    assert profile(graph, platform(), store, budget_s=BUDGET_S).measured == 4
    monkeypatch.setattr(footprint, "SMALLEST_BYTES", 2 * SMALLEST_BYTES)
    assert profile(graph, platform(), store, budget_s=BUDGET_S).measured == 4
    monkeypatch.undo()
    assert profile(graph, platform(), store, budget_s=BUDGET_S).measured == 0
    kernels = ("fill", "save", "scale", "total")
    assert timed(store) == [(kernel, size) for kernel in kernels for size in (SMALLEST_BYTES, 2 * SMALLEST_BYTES)]


def test_a_profile_of_a_version_without_footprints_counts_as_it_did(tmp_path):
    store, graph, here = Store(tmp_path), pk.small_graph(), platform(2)
    first = profile(graph, here, store, budget_s=BUDGET_S)
    folder = store.find("profiles", here.fingerprint())
    for name in ("timings", "samples", "busy"):
        path = folder / FILES[name][0]
        pl.read_parquet(path).drop("footprint_bytes").write_parquet(path)
    again = profile(graph, here, store, budget_s=BUDGET_S)
    assert (again.measured, again.reused) == (0, 4)
    assert again.timings["median_s"].equals(first.timings["median_s"])
    assert set(again.timings["footprint_bytes"]) == {0}
    assert [c.verdict for c in compare(first.timings, again.timings)] == ["same"] * 4
    # Measured anew, they count no more; what was measured while all devices computed is replaced too.
    anew = profile(graph, here, store, budget_s=BUDGET_S, again=True)
    assert set(anew.timings["footprint_bytes"]) == set(anew.busy["footprint_bytes"]) == {SMALLEST_BYTES}
    assert stored_profile(graph, here, store)[0].timings.equals(anew.timings)


def test_measuring_again_keeps_the_slow_downs_on_other_footprints(tmp_path, monkeypatch):
    store, graph, here = Store(tmp_path), pk.small_graph(), platform(2)
    monkeypatch.setattr(footprint, "SMALLEST_BYTES", 2 * SMALLEST_BYTES)
    other = profile(graph, here, store, budget_s=BUDGET_S).busy
    monkeypatch.undo()
    anew = profile(graph, here, store, budget_s=BUDGET_S, again=True).busy
    assert set(anew["footprint_bytes"]) == {SMALLEST_BYTES, 2 * SMALLEST_BYTES}
    assert anew.filter(footprint_bytes=2 * SMALLEST_BYTES).equals(other)


def test_a_given_time_counts_for_every_footprint(tmp_path, monkeypatch):
    store, graph = Store(tmp_path / "store"), pk.small_graph()
    profile(graph, platform(), store, budget_s=BUDGET_S)
    (tmp_path / "times.csv").write_text("kernel,variant,device_kind,median_s\nfill,numpy,cpu,0.25\n")
    import_timings(tmp_path / "times.csv", graph, platform(), store)
    assert timed(store)[0] == ("fill", 0)
    monkeypatch.setattr(footprint, "SMALLEST_BYTES", 2 * SMALLEST_BYTES)
    found, missing = stored_profile(graph, platform(), store)
    assert found.timings.select("kernel", "median_s").rows() == [("fill", 0.25)]
    assert [text.partition("/")[0] for text in missing] == ["scale", "total", "save"]


def test_of_an_imported_profile_the_own_footprint_counts_first(tmp_path, monkeypatch):
    other, graph = Store(tmp_path / "other"), pk.small_graph()
    profile(graph, platform(), other, budget_s=BUDGET_S)
    table = profile(graph, platform(), other, budget_s=BUDGET_S).timings
    double = pl.col("footprint_bytes") * 2
    both = pl.concat([table.with_columns(double, median_s=9.0), table, table.with_columns(double * 2, median_s=9.0)])
    both.write_parquet(tmp_path / "timings.parquet")
    store = Store(tmp_path / "store")
    assert import_timings(tmp_path / "timings.parquet", graph, platform(), store) == 4
    assert stored_profile(graph, platform(), store)[0].timings["median_s"].equals(table["median_s"])
    assert {i.footprint_bytes for i in wanted_items(graph, platform()).values()} == {SMALLEST_BYTES}
