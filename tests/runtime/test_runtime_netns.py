"""Two separate hosts (network namespaces with clocks 1,000 s apart): transfers, bandwidth, clocks, discovery, death."""

from __future__ import annotations

import network_hosts
import numpy as np
import pytest
from hand_program import SLOT_BYTES, Builder, there_and_back
from runtime_kernels import DIE, FILL

from heterotask_core.doctor import _transport
from heterotask_core.errors import ExecutionError
from heterotask_core.platform.cluster import ask_hosts, merge
from heterotask_core.program.model import OpKind
from heterotask_core.runtime.job import execute
from heterotask_core.runtime.launch.local import find_mpiexec
from heterotask_core.runtime.launch.template import TemplateLauncher

_MISSING = network_hosts.missing()
pytestmark = [pytest.mark.netns, pytest.mark.mpi, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]
RATE_BYTES_PER_S = 1e9 / 8


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    with network_hosts.hosts(tmp_path_factory.mktemp("hosts"), rate="1gbit") as found:
        yield found


@pytest.fixture
def launcher(two_hosts):
    return TemplateLauncher(two_hosts.launcher(find_mpiexec()))


def _builder(two_hosts) -> Builder:
    first, second = two_hosts.addresses
    return Builder([("c0", "cpu", "n0"), ("c1", "cpu", "n1")], hosts={"n0": first, "n1": second})


def test_chain_across_hosts_on_one_clock(two_hosts, launcher, tmp_path):
    """20 items there, doubled, and back; the second host's clock is 1,000 s ahead, and nothing precedes its cause."""
    b = _builder(two_hosts)
    expected = there_and_back(b)
    program = b.build()
    result = execute(program, b.platform, output_dir=tmp_path, repeats=2, launcher=launcher)
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), expected)
    clock = result.clocks["n1"]
    assert clock.offset_s == pytest.approx(network_hosts.CLOCK_AHEAD_S[1], abs=clock.error_s + 1e-6)
    assert 0.0 < clock.error_s < 0.1
    slack_s = 2 * clock.error_s
    # A transfer ends with the later look at it: on a busy machine the sender's may come after the next op has begun.
    transfers = program.op_kind == OpKind.TRANSFER
    cause_s = np.where(transfers, result.start_s, result.finish_s)
    for op in range(program.n_ops):
        for dep in program.dep_ops[program.dep_ptr[op] : program.dep_ptr[op + 1]]:
            assert (cause_s[:, dep] <= result.start_s[:, op] + slack_s).all()
    assert max(result.makespan_s) < 60.0


def test_traffic_is_limited_by_the_hosts_interface(two_hosts, launcher, tmp_path):
    """4,000 slots through 1 Gbit/s cannot be faster than the wire: it is no shared memory."""
    b = _builder(two_hosts)
    x = b.slot("n0")
    filled = b.task("c0", FILL, {"output": x}, params={"value": 1})
    count = 4000
    for _ in range(count):
        b.transfer(x, b.slot("n1", 0), [filled])
    result = execute(b.build(), b.platform, output_dir=tmp_path, launcher=launcher)
    took_s = float(result.finish_s[0].max() - result.finish_s[0, filled])
    burst_bytes = 256 * 1024
    assert took_s >= (count * SLOT_BYTES - burst_bytes) / RATE_BYTES_PER_S


def test_hosts_are_discovered_through_the_launcher(two_hosts, launcher):
    platform = merge(two_hosts.addresses, ask_hosts(two_hosts.addresses, "cpu:1", 1, launcher))
    assert [(n.name, n.host) for n in platform.nodes] == list(zip(("n0", "n1"), two_hosts.addresses, strict=True))
    assert [d.name for d in platform.devices] == ["n0.cpu0", "n1.cpu0"]
    assert {(x.source, x.target) for x in platform.links} == {("n0", "n1"), ("n1", "n0")}


def test_doctor_finds_that_hosts_talk_over_a_slow_wire(two_hosts, monkeypatch):
    monkeypatch.setenv("HETEROTASK_LAUNCHER", two_hosts.launcher(find_mpiexec()))
    (finding,) = _transport(two_hosts.addresses)
    assert not finding.ok
    assert "tcp/e0" in finding.detail
    assert float(finding.detail.split("; ")[1].split(" GB/s")[0]) < 0.2


def test_rank_that_dies_on_another_host_is_named(two_hosts, launcher, tmp_path):
    b = _builder(two_hosts)
    x, there, y, back = b.slot("n0"), b.slot("n1", 0), b.slot("n1"), b.slot("n0", 1)
    first = b.task("c0", FILL, {"output": x}, params={"value": 0})
    bad = b.task("c1", DIE, {"input": there, "output": y}, [b.transfer(x, there, [first])])
    b.transfer(y, back, [bad])
    # MPI over TCP ends the dead rank's peers within milliseconds: its agent may be seen first.
    message = r"rank 3 \(device 'c1', node 'n1'\)( was)? running task 'die1' \(variant 'plain' of kernel 'die'\)"
    with pytest.raises(ExecutionError, match=message):
        execute(b.build(), b.platform, output_dir=tmp_path, launcher=launcher)
    assert list(tmp_path.glob(".heterotask-job-*")) == []
