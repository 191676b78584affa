"""The platform of several hosts: every one is asked through the launcher, and the answers are put together.

The hosts are those of ``--hosts`` (or ``HETEROTASK_HOSTS``), else the nodes of the Slurm allocation, else this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from heterotask_core.errors import LaunchError, PlatformError
from heterotask_core.platform.discover import NOMINAL, discover
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.runtime.launch.base import Launcher, clean_environment, is_here, this_host
from heterotask_core.runtime.launch.choose import choose_launcher

HOSTS_VARIABLE = "HETEROTASK_HOSTS"
MARK = "heterotask-platforms "
"""Before the line of JSON in which rank 0 prints all answers."""
_TIMEOUT_S = 180.0


def find_platform(devices: str = "", *, nodes: int = 1) -> Platform:
    """Return the platform of all hosts for a specification of each; ``nodes``: virtual nodes of each.

    A YAML file says itself which hosts there are.

    Raises:
        PlatformError: the specification fits a host badly, or a host cannot be asked.
        LaunchError: the launcher is missing or unknown.
    """
    if devices.endswith((".yaml", ".yml")):
        return discover(devices, nodes=nodes)
    hosts = allocated_hosts()
    if all(is_here(host) for host in hosts):
        return discover(devices, nodes=nodes)
    return merge(hosts, ask_hosts(hosts, devices, nodes, choose_launcher(hosts=hosts)))


def allocated_hosts() -> list[str]:
    """Return the hosts to use, in order; raises :class:`PlatformError` for one that is named twice."""
    named = [host.strip() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip()]
    for host in named:
        if named.count(host) > 1:
            raise PlatformError(f"hosts {','.join(named)}: {host} is named twice; for virtual nodes use --nodes")
    if named:
        return named
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) < 2 or not nodes:
        return [this_host()]
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PlatformError(
            f"cannot list the hosts of the allocation {nodes!r} ({error}); name them with --hosts"
        ) from None
    return done.stdout.split()


def ask_hosts(hosts: Sequence[str], devices: str, nodes: int, launcher: Launcher) -> list[Platform]:
    """Return what every host discovers about itself, one process on each."""
    argv = [sys.executable, "-m", "mpi4py", "-m", "heterotask_core.platform.host_report", str(nodes), devices]
    command = launcher.command(n_ranks=len(hosts), argv=argv, hosts=hosts)
    environment = clean_environment(os.environ, python_path=[str(Path(p).resolve()) for p in sys.path])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise PlatformError(
            f"asking {', '.join(hosts)} took more than {_TIMEOUT_S:.0f} s; see `heterotask doctor`"
        ) from None
    except OSError as error:
        raise LaunchError(f"cannot ask {', '.join(hosts)}: {error}") from error
    for line in done.stdout.splitlines():
        if MARK in line:
            answers = json.loads(line[line.index(MARK) + len(MARK) :])
            break
    else:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise PlatformError(
            f"hosts {', '.join(hosts)} did not answer (exit code {done.returncode}); the launcher says: {said[-1]}"
        )
    if len(answers) != len(hosts):
        raise PlatformError(
            f"{len(hosts)} hosts asked, {len(answers)} answered; the launcher's MPI is not the one of mpi4py "
            "(with Slurm, srun needs --mpi=pmi2)"
        )
    for host, answer in zip(hosts, answers, strict=True):
        if "error" in answer:
            raise PlatformError(f"host {host}: {answer['error']}")
    return [from_json(answer) for answer in answers]


def merge(hosts: Sequence[str], platforms: Sequence[Platform]) -> Platform:
    """Return one platform of the nodes of all hosts, renumbered, with a network link between every two of them."""
    parts: dict[str, list[Any]] = {"nodes": [], "memories": [], "devices": [], "links": []}
    count = 0
    for host, platform in zip(hosts, platforms, strict=True):
        names = {node.name: f"n{count + i}" for i, node in enumerate(platform.nodes)}
        count += len(platform.nodes)

        def new(name: str, names: dict[str, str] = names) -> str:
            head, dot, rest = name.partition(".")
            return names[head] + dot + rest

        parts["nodes"] += [replace(n, name=new(n.name), host=host) for n in platform.nodes]
        parts["memories"] += [replace(m, name=new(m.name), node=new(m.node)) for m in platform.memories]
        parts["devices"] += [
            replace(d, name=new(d.name), node=new(d.node), memory=new(d.memory)) for d in platform.devices
        ]
        parts["links"] += [
            replace(x, source=new(x.source), target=new(x.target), lanes=tuple(map(new, x.lanes)))
            for x in platform.links
            if x.kind != "network"
        ]
    for a in parts["nodes"]:
        for b in parts["nodes"]:
            if a is not b:
                lanes = (f"{a.name}.send", f"{b.name}.receive")
                parts["links"].append(Link(a.name, b.name, "network", *NOMINAL["network"], lanes))
    meta = {"hosts": {host: dict(platform.meta) for host, platform in zip(hosts, platforms, strict=True)}}
    return Platform(**{name: tuple(part) for name, part in parts.items()}, meta=meta)


def to_json(platform: Platform) -> dict[str, Any]:
    """Return a platform as JSON values."""
    return asdict(platform)


def from_json(value: dict[str, Any]) -> Platform:
    """Return the platform of :func:`to_json`."""
    return Platform(
        nodes=tuple(Node(**{**n, "agent_cores": tuple(n["agent_cores"])}) for n in value["nodes"]),
        memories=tuple(Memory(**m) for m in value["memories"]),
        devices=tuple(Device(**{**d, "core_ids": tuple(d["core_ids"])}) for d in value["devices"]),
        links=tuple(Link(**{**x, "lanes": tuple(x["lanes"])}) for x in value["links"]),
        meta=value["meta"],
    )
