"""Two hosts made of network namespaces on a bridge: own addresses, a limited bandwidth, and clocks that differ."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLOCK_AHEAD_S = (0, 1000)
"""What each host's monotonic clock is ahead of the machine's."""


def missing() -> str:
    """Why no such hosts can be made here; empty if they can."""
    absent = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    # The processes of pytest-xdist ask at the same time.
    name = f"heterotask-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"network namespaces are not allowed here ({probe.stderr.strip()})"


@dataclass(frozen=True)
class Hosts:
    """``addresses`` of the hosts, ``bridge`` of the machine, ``script`` that Hydra calls like ssh."""

    addresses: tuple[str, ...]
    bridge: str
    script: Path

    def launcher(self, mpiexec: str) -> str:
        """Return the template of a launcher that starts ranks there; messages go over TCP as between real hosts."""
        # MPICH's UCX finds that all this is one machine, unless it is told to use TCP only.
        return (
            f"env UCX_TLS=tcp,self {mpiexec} -launcher ssh -launcher-exec {self.script} -localhost {self.bridge} "
            "-disable-auto-cleanup -hosts {hosts} -n {n} {command}"
        )


@contextmanager
def hosts(folder: Path, *, rate: str) -> Iterator[Hosts]:
    """Yield two hosts whose interfaces send at most ``rate`` (as tc has it); they go with the block."""
    # A name of an interface has 15 characters at most, and the number of a process seven digits. Two processes at the
    # same time have numbers that are close: their networks of 256 addresses differ.
    mark = f"ht{os.getpid()}"
    subnet = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 256}"
    names = [f"{mark}n{i}" for i in range(2)]
    addresses = tuple(f"{subnet}.{i + 1}" for i in range(2))
    script = folder / "start"
    cases = "\n".join(
        f"{address}) name={name}; ahead={ahead};;"
        for address, name, ahead in zip(addresses, names, CLOCK_AHEAD_S, strict=True)
    )
    script.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        f'case $host in\n{cases}\nesac\nexec ip netns exec "$name" unshare --time --monotonic "$ahead" sh -c "$*"\n'
    )
    script.chmod(0o755)
    try:
        _do(f"ip link add {mark}b type bridge")
        _do(f"ip addr add {subnet}.254/24 dev {mark}b")
        _do(f"ip link set {mark}b up")
        for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
            _do(f"ip netns add {name}")
            _do(f"ip link add {mark}v{i} type veth peer name e0 netns {name}")
            _do(f"ip link set {mark}v{i} master {mark}b up")
            _do(f"ip -n {name} addr add {address}/24 dev e0")
            _do(f"ip -n {name} link set e0 up")
            _do(f"ip -n {name} link set lo up")
            _do(f"tc -n {name} qdisc add dev e0 root tbf rate {rate} burst 256kb latency 50ms")
        yield Hosts(addresses, f"{subnet}.254", script)
    finally:
        for i, name in enumerate(names):
            _do(f"ip link del {mark}v{i}", check=False)
            _do(f"ip netns del {name}", check=False)
        _do(f"ip link del {mark}b", check=False)


def _do(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=True)
