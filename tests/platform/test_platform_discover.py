"""Discovery: specifications, the layout of nodes and links, and what is refused."""

import json
import os
import subprocess

import pytest

from heterotask_core.errors import PlatformError
from heterotask_core.platform.accelerators import opencl_fault
from heterotask_core.platform.discover import Accelerator, Request, assemble, discover, parse_devices
from heterotask_core.platform.model import Device, Memory, Node

GPUS = [Accelerator("A100", f"0000:0{i}", "12", 2**30, 256, 2**29) for i in range(2)]


def layout(spec: str, nodes: int = 1, cores: int = 4):
    return assemble(
        parse_devices(spec), nodes=nodes, cores=list(range(cores)), cpu_model="Xeon", host="h", found={"cuda": GPUS}
    )


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("cpu:2", [Request("cpu", 2)]),
        ("cpu", [Request("cpu", 1)]),
        ("cpu:2x4", [Request("cpu", 2, 4)]),
        ("cpu:1, opencl:1", [Request("cpu", 1), Request("opencl", 1)]),
        ("cpu:0,cuda:2", [Request("cuda", 2)]),
    ],
)
def test_specifications(text, requests):
    assert parse_devices(text) == requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu:1", "unknown kind 'gpu'; known: cpu, opencl, cuda"),
        ("cpu:two", "'cpu:two' is not KIND:COUNT"),
        ("cpu:1,", "'' is not KIND:COUNT"),
        ("cpu:0", "no device is left"),
        ("cpu:1,cpu:2", "cpu is given twice"),
        ("cuda:1x2", "only cpu devices are groups of cores"),
        ("cpu:1x0", "a group needs at least 1 core"),
    ],
)
def test_wrong_specifications_are_refused_in_one_line(text, message):
    with pytest.raises(PlatformError) as caught:
        parse_devices(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_nodes_with_gpus():
    platform = layout("cpu:1x2,cuda:1", nodes=2)
    assert platform.nodes == (Node("n0", "h", (0,)), Node("n1", "h", (0,)))
    assert platform.memories == (
        Memory("n0", "n0"),
        Memory("n0.cuda0", "n0", 2**30, 256, 2**29),
        Memory("n1", "n1"),
        Memory("n1.cuda0", "n1", 2**30, 256, 2**29),
    )
    # Four cores for six wanted: the last groups share.
    assert platform.devices == (
        Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (0, 1)),
        Device("n0.cuda0", "cuda", "n0", "n0.cuda0", "A100", (2,), "0000:00", driver="12"),
        Device("n1.cpu0", "cpu", "n1", "n1", "Xeon", (0, 3)),
        Device("n1.cuda0", "cuda", "n1", "n1.cuda0", "A100", (1,), "0000:01", driver="12"),
    )
    assert [(x.source, x.target, x.kind, x.lanes) for x in platform.links] == [
        ("n0", "n0.cuda0", "host_to_device", ("n0.cuda0.h2d",)),
        ("n0.cuda0", "n0", "device_to_host", ("n0.cuda0.d2h",)),
        ("n1", "n1.cuda0", "host_to_device", ("n1.cuda0.h2d",)),
        ("n1.cuda0", "n1", "device_to_host", ("n1.cuda0.d2h",)),
        ("n0", "n1", "network", ("n0.send", "n1.receive")),
        ("n1", "n0", "network", ("n1.send", "n0.receive")),
    ]


def test_too_few_devices_or_cores():
    with pytest.raises(PlatformError, match=r"^4 cuda devices asked for \(2 a node\), 2 present; ask for fewer"):
        layout("cuda:2", nodes=2)
    with pytest.raises(PlatformError, match="cpu groups of 8 cores asked for, but this process may use 4"):
        layout("cpu:1x8")
    assert len(layout("cpu:64").devices) == 64
    with pytest.raises(PlatformError, match="CPU devices of 65 cores asked for, but this process may use 4, each"):
        layout("cpu:65")


def test_default_uses_the_cores_that_this_process_may_use():
    platform = discover()
    allowed = len(os.sched_getaffinity(0))
    assert len(platform.devices) == max(1, min(16, allowed if allowed <= 2 else allowed - 2))
    assert {d.kind for d in platform.devices} == {"cpu"}
    assert discover().fingerprint() == platform.fingerprint()


def test_no_nodes_are_refused():
    with pytest.raises(PlatformError, match="0 nodes asked for; there must be at least 1"):
        discover("cpu:1", nodes=0)


def test_opencl_devices_are_found_without_importing_the_driver_here():
    pytest.importorskip("pyopencl", reason="needs PyOpenCL").get_platforms()
    before = os.sched_getaffinity(0)
    platform = discover("cpu:1,opencl:1")
    assert [d.kind for d in platform.devices] == ["cpu", "opencl"]
    assert platform.devices[1].selector.count(":") == 1
    assert platform.memories[1].capacity_bytes > 0
    assert os.sched_getaffinity(0) == before
    with pytest.raises(PlatformError, match=r"^99 opencl devices asked for"):
        discover("opencl:99")


def test_a_device_that_cannot_compile_is_left_out_and_named_where_it_is_missed(monkeypatch):
    pytest.importorskip("pyopencl", reason="needs PyOpenCL")
    facts = {"driver": "3", "memory_bytes": 2**30, "alignment_bytes": 256, "max_allocation_bytes": 2**29}
    answer = [{"model": "old", "selector": "0:0", **facts, "fault": "error: unknown target CPU 'generic'"}]
    answer.append({"model": "new", "selector": "1:0", **facts, "fault": ""})
    done = subprocess.CompletedProcess([], 0, json.dumps(answer), "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert [d.selector for d in discover("opencl:1").devices] == ["1:0"]
    with pytest.raises(
        PlatformError,
        match=r"^2 opencl devices asked for, 1 usable: old cannot compile kernels \(error: unknown target CPU 'gen",
    ):
        discover("opencl:2")


def test_real_devices_are_those_that_compile():
    cl = pytest.importorskip("pyopencl", reason="needs PyOpenCL")
    faults = {
        f"{p}:{d}": opencl_fault(device)
        for p, where in enumerate(cl.get_platforms())
        for d, device in enumerate(where.get_devices())
    }
    usable = [selector for selector, fault in faults.items() if not fault]
    found = discover(f"opencl:{len(usable)}") if usable else None
    assert [d.selector for d in found.devices if d.kind == "opencl"] == usable if found else not usable


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        PlatformError,
        match=r"^1 cuda devices asked for, but cupy is not installed; pip install 'heterotask\[cuda\]'$",
    ):
        discover("cpu:1,cuda:1")
