"""Every finding of the doctor that can be provoked without the hardware in question, with its fix."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterotask_core import doctor
from heterotask_core.errors import PlatformError
from heterotask_core.platform.discover import Accelerator, Request, assemble

GPUS = "0, 00000000:19:00.0, Default, Disabled\n1, 00000000:3B:00.0, {}, Disabled\n"


@pytest.mark.mpi
def test_this_machine_is_examined_and_the_transport_between_two_ranks_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    findings = {f.what: f for f in doctor.diagnose(shared_memory=tmp_path / "none")}
    assert findings["mpiexec"].ok
    assert not findings["shared memory"].ok
    assert "missing" in findings["shared memory"].detail
    transport = findings["transport"]
    assert transport.ok, "two processes of one host may use TCP"
    assert "tcp/" in transport.detail
    assert "GB/s" in transport.detail
    assert {"memlock", "cores", "hyper-threads", "setpriv", "kernel caches", "opencl", "cuda"} <= set(findings)


@pytest.mark.mpi
def test_ranks_that_cannot_be_started_are_told(monkeypatch):
    monkeypatch.setenv("HETEROTASK_LAUNCHER", "nosuch")
    (finding,) = doctor._transport(["here"])
    assert not finding.ok
    assert "unknown launcher 'nosuch'" in finding.detail


def test_mpiexec_that_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor._mpiexec()
    assert (finding.ok, finding.required, finding.fix) == (False, True, "pip install mpich")
    assert "mpiexec is neither beside" in finding.detail


def test_shared_memory_that_is_too_small(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    finding = doctor._shared_memory(tmp_path)
    assert (finding.ok, finding.required, finding.detail) == (False, True, f"0.1 GiB free in {tmp_path}")
    assert "remount,size" in finding.fix
    assert "--shm-size" in finding.fix


def test_a_single_core_and_no_guard_are_warnings(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    monkeypatch.setattr(shutil, "which", lambda _: None)
    cores, guard = doctor._cores(), doctor._guard()
    assert (cores.ok, cores.required, cores.detail) == (False, False, "1 allowed to this process")
    assert "ask for more cores" in cores.fix
    assert (guard.ok, guard.required, guard.detail) == (False, False, "not found")
    assert "install util-linux" in guard.fix


@pytest.mark.parametrize(
    ("check", "package", "extra"),
    [(doctor._opencl, "pyopencl", "heterotask[opencl]"), (doctor._cuda, "cupy", "heterotask[cuda]")],
)
def test_driver_packages_that_are_not_installed(monkeypatch, check, package, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    finding = check()
    assert (finding.ok, finding.required, finding.detail) == (False, False, f"{package} is not installed")
    assert extra in finding.fix


class _OpenClError(Exception):
    pass


@pytest.mark.parametrize(
    ("platforms", "ok", "detail"),
    [
        ([], False, "no device"),
        (_OpenClError("PLATFORM_NOT_FOUND_KHR"), False, "PLATFORM_NOT_FOUND_KHR"),
        ([["Xe"], ["Vega"]], True, "Xe, Vega"),
        ([["old"]], False, "old (cannot compile: unknown target)"),
        ([["old"], ["Vega"]], True, "old (cannot compile: unknown target), Vega"),
    ],
)
def test_opencl_drivers(monkeypatch, platforms, ok, detail):
    def get_platforms():
        if isinstance(platforms, Exception):
            raise platforms
        devices = [[SimpleNamespace(name=name) for name in names] for names in platforms]
        return [SimpleNamespace(get_devices=partial(list, found)) for found in devices]

    fake = SimpleNamespace(get_platforms=get_platforms, Error=_OpenClError)
    monkeypatch.setitem(sys.modules, "pyopencl", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: fake)
    monkeypatch.setattr(doctor, "opencl_fault", lambda device: "unknown target" if device.name == "old" else "")
    finding = doctor._opencl()
    assert (finding.ok, finding.detail) == (ok, detail)
    assert "install an OpenCL driver" in finding.fix


@pytest.mark.parametrize(
    ("devices", "ok", "detail"),
    [(2, True, "2 devices"), (0, False, "0 devices"), (RuntimeError("cudaErrorInsufficientDriver"), False, "Driver")],
)
def test_cuda_drivers(monkeypatch, devices, ok, detail):
    def count():
        if isinstance(devices, Exception):
            raise devices
        return devices

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=RuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    finding = doctor._cuda()
    assert finding.ok is ok
    assert detail in finding.detail
    assert "NVIDIA driver" in finding.fix or "CUDA_VISIBLE_DEVICES" in finding.fix


@pytest.mark.parametrize(("code", "words"), [(0, ["compute mode", "GPU binding"]), (9, ["nvidia-smi"])])
def test_the_gpu_drivers_own_tool_is_asked(tmp_path, monkeypatch, code, words):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{GPUS.format('Prohibited').strip()}'\nexit {code}\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    findings = doctor._gpus()
    assert [f.what for f in findings] == words
    assert not any(f.ok for f in findings)
    assert all(f.fix for f in findings)


@pytest.mark.mpi
def test_hosts_that_cannot_be_named_are_a_finding(monkeypatch):
    def refuse():
        raise PlatformError("HETEROTASK_HOSTS: host 'x' is named twice")

    monkeypatch.setattr("heterotask_core.platform.cluster.allocated_hosts", refuse)
    last = doctor.diagnose()[-1]
    assert (last.what, last.ok, last.required) == ("hosts", False, True)
    assert "named twice" in last.detail


LOG = "[1.0] [a:1:0] ucp_worker.c:1 UCX  INFO    ucp_context_0 {} cfg#1 tag({})  rma({})\n"


def _said(kind: str, names: str) -> str:
    facts = {"latency_s": 2.5e-5, "bytes_per_s": 1.1e8}
    return LOG.format(kind, names, names) + doctor.TRANSPORT_MARK + json.dumps(facts) + "\n"


@pytest.mark.parametrize(
    ("names", "ok"), [("tcp/eth0", False), ("rc_mlx5/mlx5_0:1", True), ("rc_mlx5/mlx5_0:1 tcp/eth0", True)]
)
def test_tcp_between_hosts_is_pointed_out(names, ok):
    finding = doctor.transport_finding(_said("inter-node", names), ("a", "b"), 0)
    assert finding.ok is ok
    assert finding.detail == f"a and b: {', '.join(names.split())}; 0.11 GB/s, 25.0 µs one way"
    assert "UCX_NET_DEVICES" in finding.fix


def test_hosts_that_exchange_nothing():
    finding = doctor.transport_finding("ssh: connect to host b: refused\n", ("a", "b"), 255)
    assert (finding.ok, finding.required) == (False, True)
    assert finding.detail == ("a and b cannot exchange messages (exit code 255): ssh: connect to host b: refused")


def test_memory_lock(monkeypatch):
    assert doctor._memlock(resource.RLIM_INFINITY).detail == "unlimited"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self / "0000:01:00.0"]))
    finding = doctor._memlock(8 << 20)
    assert not finding.ok
    assert finding.detail == "at most 8 MiB can be page-locked"
    assert "ulimit -l" in finding.fix


@pytest.mark.parametrize(("text", "cpus"), [("0-2,5\n", [0, 1, 2, 5]), ("3", [3]), ("\n", [])])
def test_lists_of_cpus(text, cpus):
    assert doctor.parse_cpus(text) == cpus


@pytest.mark.parametrize(("allowed", "ok"), [([0, 1], True), ([0, 1, 2], False)])
def test_hardware_threads_of_one_core(tmp_path, allowed, ok):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    finding = doctor._threads_of_cores(tmp_path, allowed)
    assert finding.ok is ok
    if not ok:
        assert "CPUs 0, 2" in finding.detail


MOUNTS = "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/fast tmpfs rw 0 0\n"


def test_kernel_caches_on_a_network_file_system():
    caches = doctor.kernel_caches({"HOME": "/home/me", "NUMBA_CACHE_DIR": "/home/me/fast/numba"})
    finding = doctor._caches(caches, MOUNTS)
    assert not finding.ok
    assert "/home/me/.cupy/kernel_cache (nfs4)" in finding.detail
    assert "numba" not in finding.detail
    assert "export CUPY_CACHE_DIR=/tmp/$USER/cupy_cache_dir" in finding.fix
    local = {"HOME": "/root", "NUMBA_CACHE_DIR": "/opt"}
    assert doctor._caches(doctor.kernel_caches(local), MOUNTS).ok


@pytest.mark.parametrize(
    ("mode", "visible", "ok"),
    [
        ("Default", None, (True, True)),
        ("Exclusive_Process", "0,1", (True, True)),
        ("Prohibited", None, (False, True)),
        ("Default", "1", (True, False)),
        ("Default", "", (True, False)),
    ],
)
def test_compute_mode_and_binding_of_gpus(mode, visible, ok):
    compute, binding = doctor.gpu_findings(GPUS.format(mode), visible)
    assert (compute.ok, binding.ok) == ok
    assert "00000000:3B:00.0" in binding.detail


def test_unequal_nodes():
    gpu = Accelerator("H100", "0", "535", 1 << 30, 256, 1 << 30)
    plain = assemble([Request("cpu", 2)], nodes=1, cores=[0, 1], cpu_model="Xeon", host="a", found={})
    mixed = assemble(
        [Request("cpu", 2), Request("cuda", 1)],
        nodes=1,
        cores=[0, 1],
        cpu_model="Xeon",
        host="b",
        found={"cuda": [gpu]},
    )
    words = {
        "a": doctor.describe_devices(plain),
        "b": doctor.describe_devices(mixed),
        "c": doctor.describe_devices(plain),
    }
    finding = doctor.nodes_finding(words)
    assert not finding.ok
    assert finding.detail == "a, c: 2 × cpu Xeon; b: 2 × cpu Xeon, 1 × cuda H100 535"
    assert doctor.nodes_finding({"a": words["a"], "c": words["c"]}).ok
