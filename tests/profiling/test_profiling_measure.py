"""Profiles: real inputs, everything wanted is timed once, reused, and timed again when stale."""

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import profiling_kernels as pk
import psutil
import pytest

from heterotask_core.errors import ProfileError, StoreError
from heterotask_core.graph import TaskGraph
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.capture import capture_inputs
from heterotask_core.profiling.costs import CostModel
from heterotask_core.profiling.given import import_timings
from heterotask_core.profiling.measure import profile, stored_profile
from heterotask_core.store import Store
from heterotask_core.tables import LINK_SAMPLES, LINKS, TIMING_SAMPLES, TIMINGS, check_table

BUDGET_S = 0.2
CORE = min(os.sched_getaffinity(0))


def platform(*, cpus: int = 1, model: str = "Xeon", opencl: bool = False, nodes: int = 1) -> Platform:
    names = [f"n{i}" for i in range(nodes)]
    memories = [Memory(n, n) for n in names]
    devices = [Device(f"{n}.cpu{i}", "cpu", n, n, model, (CORE,)) for n in names for i in range(cpus)]
    links = [Link(a, b, "network", 1.0, 1.0) for a in names for b in names if a != b]
    if opencl:
        memories.append(Memory("n0.cl", "n0"))
        devices.append(Device("n0.cl", "opencl", "n0", "n0.cl", "PoCL", (CORE,), "0:0"))
        links += [Link("n0", "n0.cl", "host_to_device", 1.0, 1.0), Link("n0.cl", "n0", "device_to_host", 1.0, 1.0)]
    return Platform(tuple(Node(n, os.uname().nodename) for n in names), tuple(memories), tuple(devices), tuple(links))


def test_inputs_are_what_the_graph_makes(tmp_path):
    graph = pk.small_graph(4)
    files = capture_inputs(graph, [graph.tasks[1], graph.tasks[4]], tmp_path)
    assert {k: np.load(v).tolist() for k, v in files.items()} == {
        (1, "x", 0): [1.0] * 4,
        (4, "parts", 0): [2.0] * 4,
        (4, "parts", 1): [2.0] * 4,
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
@pytest.mark.parametrize("size", ["64k", "4k"])
def test_without_room_for_the_inputs_the_place_is_named(tmp_path, monkeypatch, size):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        if size == "4k":
            (disk / "fill").write_bytes(bytes(4096))
        monkeypatch.setattr("heterotask_core.profiling.measure._scratch_place", lambda graph: disk)
        with pytest.raises(ProfileError) as caught:
            profile(pk.small_graph(100_000), platform(), Store(tmp_path / "store"), budget_s=BUDGET_S)
        assert str(caught.value) == (
            f"{disk} has no room for the inputs of the kernels to be timed; free space there, or set TMPDIR to a "
            "larger folder"
        )
        assert [p.name for p in disk.iterdir() if p.name != "fill"] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_older_version_survives_an_update(tmp_path):
    graph = TaskGraph("old")
    a, out = graph.data("a", shape=(2,), dtype="float32"), graph.data("out", shape=(1,), dtype="float32")
    graph.add(pk.FILL, writes={"dst": a}, params={"value": 1})
    graph.add(pk.SCALE, name="s1", updates={"x": a}, params={"factor": 2})
    before = graph.add(pk.SAVE, reads={"src": a}, params={"path": "x"})
    graph.add(pk.SCALE, name="s2", updates={"x": a}, params={"factor": 2})
    after = graph.add(pk.TOTAL, reads={"parts": [a]}, writes={"dst": out})
    files = capture_inputs(graph, [before, after], tmp_path)
    assert np.load(files[before.index, "src", 0]).tolist() == [2.0, 2.0]
    assert np.load(files[after.index, "parts", 0]).tolist() == [4.0, 4.0]


def test_only_ancestors_run(tmp_path):
    graph = pk.small_graph(4)
    lost = graph.data("lost", shape=(1,), dtype="float32")
    graph.add(pk.BROKEN, writes={"dst": lost})
    assert len(capture_inputs(graph, graph.tasks[:5], tmp_path)) == 4


def test_a_failing_source_is_named(tmp_path):
    graph = TaskGraph("bad")
    a = graph.data("a", shape=(4,), dtype="float32")
    graph.add(pk.BROKEN, name="source", writes={"dst": a})
    reader = graph.add(pk.SCALE, updates={"x": a}, params={"factor": 2})
    with pytest.raises(ProfileError, match=r"^task 'source': variant 'numpy' failed .* RuntimeError: no luck$"):
        capture_inputs(graph, [reader], tmp_path)


def test_again_measures_what_the_store_has_but_for_given_times(tmp_path):
    graph, store = pk.small_graph(), Store(tmp_path / "store")
    first = profile(graph, platform(cpus=2), store, budget_s=BUDGET_S)
    again = profile(graph, platform(cpus=2), store, budget_s=BUDGET_S, again=True)
    assert (again.measured, again.reused) == (first.measured, 0)
    assert again.fingerprint != first.fingerprint
    assert len(again.busy) == len(first.busy)
    (tmp_path / "known.csv").write_text("kernel,variant,device_kind,median_s\nfill,numpy,cpu,0.25\n")
    import_timings(tmp_path / "known.csv", graph, platform(cpus=2), store)
    mixed = profile(graph, platform(cpus=2), store, budget_s=BUDGET_S, again=True)
    assert (mixed.measured, mixed.reused) == (first.measured - 1, 1)
    assert mixed.timings.filter(pl.col("kernel") == "fill")["median_s"].to_list() == [0.25]


def test_everything_is_timed_once_and_reused(tmp_path):
    store, graph, calls = Store(tmp_path / "s"), pk.small_graph(), []
    first = profile(graph, platform(cpus=2), store, budget_s=BUDGET_S, progress=lambda *done: calls.append(done))
    check_table(first.timings, TIMINGS, what="timings")
    assert (first.measured, first.reused) == (4, 0)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    rows = {r["kernel"]: r for r in first.timings.iter_rows(named=True)}
    assert [(k, r["variant"], r["input_bytes"], r["output_bytes"]) for k, r in rows.items()] == [
        ("fill", "numpy", 0, 256),
        ("scale", "numpy", 256, 256),
        ("total", "numpy", 512, 4),
        ("save", "numpy", 4, 0),
    ]
    # A sink runs once; the others as often as their spread asks for.
    assert rows["save"]["count"] == 1
    assert all(
        rows[k]["count"] >= 3 and 0 < rows[k]["median_s"] <= rows[k]["p95_s"] for k in ("fill", "scale", "total")
    )
    assert not (tmp_path / "sum.npy").exists()

    again = profile(graph, platform(cpus=2), store, budget_s=BUDGET_S)
    assert (again.measured, again.reused, again.fingerprint) == (0, 4, first.fingerprint)
    assert again.timings.equals(first.timings)
    # Another platform with the same model of device shares them.
    other = profile(graph, platform(cpus=1), store, budget_s=BUDGET_S)
    assert (other.measured, other.reused) == (0, 4)
    assert profile(graph, platform(model="other"), store, budget_s=BUDGET_S).measured == 4


def test_a_changed_variant_is_timed_again_and_replaces_the_old(tmp_path, monkeypatch):
    store, graph = Store(tmp_path), pk.small_graph()
    profile(graph, platform(), store, budget_s=BUDGET_S)
    here = platform()
    original = pk.Variant.fingerprint
    monkeypatch.setattr(
        pk.Variant, "fingerprint", lambda v: "new" if v.implementation.endswith(":scale") else original(v)
    )
    again = profile(graph, here, store, budget_s=BUDGET_S)
    assert (again.measured, again.reused) == (1, 3)
    folder = store.find("profiles", here.fingerprint())
    assert folder is not None
    kept = pl.read_parquet(folder / "timings.parquet")
    assert sorted(kept["kernel"]) == ["fill", "save", "scale", "total"]
    assert kept.filter(kernel="scale")["variant_fingerprint"].to_list() == [
        r["variant_fingerprint"] for r in again.timings.iter_rows(named=True) if r["kernel"] == "scale"
    ]
    samples = check_table(pl.read_parquet(folder / "samples.parquet"), TIMING_SAMPLES, what="samples")
    assert samples.filter("cold").group_by("kernel").len().sort("kernel").rows() == [
        ("fill", 1),
        ("save", 1),
        ("scale", 1),
        ("total", 1),
    ]


def test_a_failing_variant_is_named_and_the_rest_is_kept(tmp_path):
    store, graph = Store(tmp_path), pk.small_graph()
    lost = graph.data("lost", shape=(1,), dtype="float32")
    graph.add(pk.BROKEN, name="lost", writes={"dst": lost})
    with pytest.raises(
        ProfileError,
        match=r"^kernel 'broken', variant 'numpy' failed on n0.cpu0 \(task 'lost'\): RuntimeError: no luck$",
    ):
        profile(graph, platform(), store, budget_s=BUDGET_S)
    assert profile(pk.small_graph(), platform(), store, budget_s=BUDGET_S).measured == 0


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (pk.HANG, r"no answer from n0.cpu0 within 2 s"),
        (pk.CRASH, r"timing on n0.cpu0 \(Xeon\) ended with exit code 3: no message"),
    ],
)
def test_a_kernel_that_hangs_or_ends_its_process_is_named_and_the_others_are_timed(tmp_path, kernel, reason):
    store, graph = Store(tmp_path), TaskGraph("stuck")
    lost, fine = (graph.data(name, shape=(8,), dtype="float32") for name in ("lost", "fine"))
    graph.add(kernel, name="stuck", writes={"dst": lost})
    graph.add(pk.FILL, name="fine", writes={"dst": fine}, params={"value": 1})
    with pytest.raises(
        ProfileError,
        match=rf"^kernel '{kernel.name}', variant 'numpy' failed on n0.cpu0 \(task 'stuck'\): {reason}$",
    ):
        profile(graph, platform(), store, budget_s=BUDGET_S, kernel_limit_s=2.0)
    folder = store.find("profiles", platform().fingerprint())
    assert folder is not None
    assert pl.read_parquet(folder / "timings.parquet")["kernel"].to_list() == ["fill"]


@pytest.mark.parametrize(
    ("what", "again"),
    [
        ("nothing", []),
        ("kernel source", ["scale"]),
        ("driver", ["fill", "save", "scale", "total"]),
        ("package version", ["fill", "save", "scale", "total"]),
        ("device model", ["fill", "save", "scale", "total"]),
        ("cores", ["fill", "save", "scale", "total"]),
        ("params", ["scale"]),
        ("shapes", ["fill", "scale", "total"]),
    ],
)
def test_each_part_of_a_fingerprint_decides_what_is_timed_again(tmp_path, monkeypatch, what, again):
    def there(**changes):
        here = platform()
        return dataclasses.replace(here, devices=(dataclasses.replace(here.devices[0], **changes),))

    file = tmp_path / "times.csv"
    rows = "".join(f"{kernel},numpy,cpu,1\n" for kernel in ("fill", "scale", "total", "save"))
    file.write_text("kernel,variant,device_kind,median_s\n" + rows)
    store = Store(tmp_path / "s")
    import_timings(file, pk.small_graph(), there(), store)
    graph, here = pk.small_graph(), there()
    original = pk.Variant.fingerprint
    if what == "kernel source":
        monkeypatch.setattr(
            pk.Variant, "fingerprint", lambda v: "new" if v.implementation.endswith(":scale") else original(v)
        )
    elif what == "package version":
        monkeypatch.setattr("heterotask_core.profiling.items._version", lambda module: "99")
    elif what == "params":
        graph.tasks[1].params["factor"] = graph.tasks[3].params["factor"] = 3
    elif what == "shapes":
        graph = pk.small_graph(128)
    else:
        here = {
            "nothing": there(),
            "driver": there(driver="2"),
            "device model": there(model="Other"),
            "cores": there(core_ids=(CORE, CORE + 1)),
        }[what]
    _, missing = stored_profile(graph, here, store)
    assert sorted({text.partition("/")[0] for text in missing}) == again


def test_inexact_variants_are_timed_where_the_graph_admits_them(tmp_path):
    graph = pk.small_graph()
    graph.exact = False
    found = profile(graph, platform(), Store(tmp_path), budget_s=BUDGET_S)
    assert found.timings.filter(kernel="scale")["variant"].to_list() == ["numpy", "fast"]


def test_an_opencl_device_and_its_links(tmp_path):
    pytest.importorskip("pyopencl", reason="needs PyOpenCL")
    store, here = Store(tmp_path), platform(opencl=True)
    found = profile(pk.small_graph(), here, store, budget_s=BUDGET_S)
    assert found.timings.filter(kernel="scale").select("variant", "device_model").rows() == [
        ("numpy", "Xeon"),
        ("opencl", "PoCL"),
    ]
    check_table(found.links, LINKS, what="links")
    assert found.links.select("source", "target", "kind").rows() == [
        ("n0", "n0.cl", "host_to_device"),
        ("n0.cl", "n0", "device_to_host"),
    ]
    assert (found.links["latency_s"] < 1.0).all()
    folder = store.find("profiles", here.fingerprint())
    assert folder is not None
    samples = check_table(pl.read_parquet(folder / "link_samples.parquet"), LINK_SAMPLES, what="samples")
    assert samples["size_bytes"].unique().sort().to_list() == [4096 * 4**i for i in range(9)]
    assert profile(pk.small_graph(), here, store, budget_s=BUDGET_S).links.equals(found.links)
    assert CostModel.from_profile(found).link(here.links[0]) == found.links.row(0)[3:5]


@pytest.mark.mpi
def test_messages_between_virtual_nodes_are_timed(tmp_path):
    here = platform(nodes=2)
    found = profile(pk.small_graph(), here, Store(tmp_path), budget_s=BUDGET_S)
    assert found.links.select("source", "target", "kind", "count").rows() == [
        ("n0", "n1", "network", 71),
        ("n1", "n0", "network", 71),
    ]
    assert (found.links["latency_s"] < 1.0).all()
    assert (found.links["bandwidth_bytes_per_s"] > 1e6).all()


def test_a_device_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("pyopencl", reason="needs PyOpenCL")
    here = platform(opencl=True)
    devices = (here.devices[0], dataclasses.replace(here.devices[1], selector="9:9"))
    with pytest.raises(
        ProfileError, match=r"^timing on n0.cl \(PoCL\) ended with exit code 1: .*no OpenCL device '9:9'"
    ):
        profile(pk.small_graph(), dataclasses.replace(here, devices=devices), Store(tmp_path), budget_s=BUDGET_S)


def test_emulated_devices_are_not_measured(tmp_path):
    device = Device("n0.cpu0", "emulated", "n0", "n0", "H100", (0,), emulates="cpu")
    here = Platform((Node("n0", "here"),), (Memory("n0", "n0"),), (device,), ())
    found = profile(pk.small_graph(), here, Store(Path(tmp_path)), budget_s=BUDGET_S)
    assert (found.measured, len(found.timings)) == (0, 0)


def test_no_child_outlives_an_interrupted_profile(tmp_path):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    # Servers of other test modules may be children of this process too.
    before = set(psutil.Process().children())
    with pytest.raises(KeyboardInterrupt) as caught:
        profile(pk.small_graph(), platform(), Store(tmp_path), budget_s=60.0, progress=interrupt)
    assert set(psutil.Process().children()) - before == set()
    assert caught.value.args == ()


def test_a_damaged_profile_is_named_with_its_remedy(tmp_path):
    store, here = Store(tmp_path), platform()
    profile(pk.small_graph(), here, store, budget_s=BUDGET_S)
    (store.folder("profiles", here.fingerprint()) / "timings.parquet").write_text("x")
    with pytest.raises(
        StoreError, match=r"timings.parquet is damaged .* delete its folder and run `heterotask profile`"
    ):
        profile(pk.small_graph(), here, store, budget_s=BUDGET_S)
