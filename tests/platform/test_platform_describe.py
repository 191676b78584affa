"""Platform files: a round trip, and what is refused with which words."""

from pathlib import Path

import pytest

from heterotask_core.errors import PlatformError
from heterotask_core.platform.describe import FORMAT, read_platform, write_platform
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform

PLATFORM = Platform(
    (Node("n0", "here", (0,)), Node("n1", "here")),
    (Memory("n0", "n0"), Memory("n1", "n1", 2**30), Memory("n0.gpu", "n0", 2**20, 128, 2**19, 100)),
    (
        Device("n0.cpu0", "cpu", "n0", "n0", "Xeon", (0, 1)),
        Device("n0.gpu", "emulated", "n0", "n0.gpu", "H100", (1,), emulates="cuda", driver="12"),
    ),
    (Link("n0", "n1", "network", 1e-5, 1e9, ("a", "b")), Link("n0", "n0.gpu", "host_to_device", 0.0, 2e9)),
    {"cpu": "Xeon"},
)


def test_a_platform_survives_the_file(tmp_path: Path):
    write_platform(PLATFORM, tmp_path / "p.yaml")
    assert read_platform(tmp_path / "p.yaml") == PLATFORM
    assert read_platform(tmp_path / "p.yaml").fingerprint() == PLATFORM.fingerprint()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FORMAT, "other/1", "the first key must be `format: heterotask-platform/1`"),
        ("links:", "wires:", "unknown key 'wires'; known: devices, format, links, memories, meta, nodes"),
        ("kind: emulated", "kind: fpga", "devices[1].kind: Input should be 'cpu', 'opencl', 'cuda' or 'emulated'"),
        ("model: H100", "modell: H100", "devices[1]: unknown key 'modell'"),
        ("memory: n0.gpu", "memory: n7", "device 'n0.gpu': memory 'n7' is not defined; there are n0, n1, n0.gpu"),
        ("name: n0.gpu", "name: n0.cpu0", "devices has 'n0.cpu0' twice; names must differ"),
        ("target: n1", "target: n9", "links[0].target 'n9' is not defined"),
        ("bandwidth_bytes_per_s: 2000000000.0", "bandwidth_bytes_per_s: 0", "links[1]: latency must be"),
        ("capacity_bytes: 1048576", "capacity_bytes: -1", "memory 'n0.gpu': capacity must be ≥ 0"),
        ("format", "{format", "is no YAML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str):
    path = tmp_path / "p.yaml"
    write_platform(PLATFORM, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(PlatformError) as caught:
        read_platform(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(PlatformError, match=r"none\.yaml cannot be read \(No such file or directory\)"):
        read_platform(tmp_path / "none.yaml")
