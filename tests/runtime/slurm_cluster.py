"""A real Slurm on this machine: munged, slurmctld and two slurmd that pretend to be two nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol")
NODES = ("n0", "n1")


def missing() -> str:
    """Why no cluster can be started here; empty if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "needs root to start munged and slurmd"


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, each process of the tests others.

    They are below those that outgoing connections and ``bind(0)`` get, so that they are still free when Slurm starts.
    """
    ports: list[int] = []
    for port in range(20_000 + os.getpid() * 8 % 10_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no {count} free ports")


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Yield the environment in which Slurm's commands reach the cluster; it ends with the block."""
    # Socket paths are limited to 107 bytes: not under pytest's folder.
    folder = Path(tempfile.mkdtemp(prefix="heterotask-slurm-"))
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> None:
        with (folder / f"{argv[0]}-{len(daemons)}.out").open("wb") as out:
            daemons.append(subprocess.Popen(argv, stdout=out, stderr=out, env=environment))

    try:
        (folder / "munge").mkdir(mode=0o700)
        (folder / "state").mkdir()
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        (folder / "slurm.conf").write_text(_configuration(folder, _free_ports(3)))
        files = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "seed", "log")]
        start("munged", "--foreground", "--force", f"--socket={folder}/munge/sock", "--num-threads=1", *files)
        wait_until((folder / "munge" / "sock").exists, "munged has not come up")
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)

        def idle() -> bool:
            argv = ["sinfo", "--noheader", "--Node", "--format=%T"]
            states = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False).stdout.split()
            return states == ["idle"] * len(NODES)

        wait_until(idle, "the nodes are not idle")
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _configuration(folder: Path, ports: list[int]) -> str:
    host = socket.gethostname().split(".")[0]
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/sock",
        "SlurmUser=root",
        f"SlurmctldPort={ports[0]}",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "ReturnToService=2",
        "KillWait=5",
    ]
    cores = len(os.sched_getaffinity(0))
    for node, port in zip(NODES, ports[1:], strict=True):
        lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} State=UNKNOWN")
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def wait_until(condition, what: str, timeout_s: float = 60) -> None:
    """Poll; there is nothing to wait on in another program's daemons."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
