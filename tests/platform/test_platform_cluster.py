"""Platforms of several hosts: merged with names of their own, found by variable or allocation, errors with the host."""

from __future__ import annotations

import json

import pytest

from heterotask_core.errors import PlatformError
from heterotask_core.platform.cluster import MARK, allocated_hosts, ask_hosts, from_json, merge, to_json
from heterotask_core.platform.discover import Accelerator, Request, assemble

GPU = Accelerator("H100", "0000:19:00.0", "535", 1 << 30, 256, 1 << 29)


def _host(*requests, nodes=1):
    found = {"cuda": [GPU] * 2}
    return assemble(list(requests), nodes=nodes, cores=[0, 1], cpu_model="Xeon", host="x", found=found)


def test_hosts_keep_their_devices_under_new_names():
    first, second = _host(Request("cpu", 1), nodes=2), _host(Request("cpu", 1), Request("cuda", 1))
    merged = merge(["a", "b"], [first, second])
    assert [(n.name, n.host) for n in merged.nodes] == [("n0", "a"), ("n1", "a"), ("n2", "b")]
    assert [d.name for d in merged.devices] == ["n0.cpu0", "n1.cpu0", "n2.cpu0", "n2.cuda0"]
    assert [m.name for m in merged.memories] == ["n0", "n1", "n2", "n2.cuda0"]
    links = {(x.source, x.target): (x.kind, x.lanes) for x in merged.links}
    assert links["n2", "n2.cuda0"] == ("host_to_device", ("n2.cuda0.h2d",))
    network = {ends: lanes for ends, (kind, lanes) in links.items() if kind == "network"}
    assert len(network) == 6
    assert network["n0", "n2"] == ("n0.send", "n2.receive")
    assert merged.meta["hosts"]["b"]["cpu"] == "Xeon"


def test_a_platform_survives_the_way_from_its_host():
    platform = _host(Request("cpu", 2), Request("cuda", 2))
    assert from_json(json.loads(json.dumps(to_json(platform)))) == platform


def test_hosts_are_those_of_the_variable(monkeypatch):
    monkeypatch.setenv("HETEROTASK_HOSTS", "a, b")
    assert allocated_hosts() == ["a", "b"]
    monkeypatch.setenv("HETEROTASK_HOSTS", "a,a")
    with pytest.raises(PlatformError, match="a is named twice; for virtual nodes use --nodes"):
        allocated_hosts()


def test_allocation_without_scontrol_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("HETEROTASK_HOSTS", raising=False)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[0-1]")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError, match="name them with --hosts"):
        allocated_hosts()


class _Says:
    """A launcher whose ranks print what they are told to."""

    def __init__(self, text: str) -> None:
        self._text = text

    def command(self, *, n_ranks, argv, hosts=()):
        return ["printf", "%s", self._text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("noise\n", "hosts a, b did not answer .*noise"),
        (f"{MARK}[{{}}]", "2 hosts asked, 1 answered.*--mpi=pmi2"),
        (f'{MARK}[{{"error": "no device"}}, {{}}]', "host a: no device"),
    ],
)
def test_hosts_that_do_not_answer_are_named(text, words):
    with pytest.raises(PlatformError, match=words):
        ask_hosts(["a", "b"], "cpu:1", 1, _Says(text))
