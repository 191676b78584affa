"""Links of a platform: run the measurements, fit them, and tell which lanes are one engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from heterotask_core.errors import ProfileError
from heterotask_core.platform.model import Device, Link, Platform
from heterotask_core.profiling.process import child_environment
from heterotask_core.profiling.samples import fit_link
from heterotask_core.runtime.launch.base import is_here
from heterotask_core.runtime.launch.choose import choose_launcher
from heterotask_core.tables import LINK_SAMPLES, LINKS

PINGPONG_TIMEOUT_S = 120.0
SIZES_BYTES = tuple(4096 * 4**i for i in range(9))
"""4 KiB to 256 MiB."""

Samples = dict[int, list[float]]
"""Size in bytes → seconds."""


def link_sizes(device: Device, platform: Platform) -> tuple[int, ...]:
    """Return the sizes that copies of ``device`` are timed with: as far as its memory and the host's allow."""
    memory = next(m for m in platform.memories if m.name == device.memory)
    limits = [x for x in (memory.max_allocation_bytes, memory.capacity_bytes) if x is not None]
    shared = Path("/dev/shm")
    if shared.is_dir():
        limits.append(shutil.disk_usage(shared).free // 4)
    return tuple(size for size in SIZES_BYTES if size <= min(limits, default=size) // 2)


def pair_row(first: str, second: str, first_s: float, second_s: float, together_s: float) -> dict[str, Any]:
    """Return a row of schema PAIRS."""
    return {
        "first": first,
        "second": second,
        "first_s": first_s,
        "second_s": second_s,
        "together_s": together_s,
        "overlap": overlap(first_s, second_s, together_s),
    }


def overlap(first_s: float, second_s: float, together_s: float) -> float:
    """Return the share of the shorter of two that ran beside the longer: 1 side by side, 0 one after the other."""
    hidden = first_s + second_s - together_s
    return min(1.0, max(0.0, hidden / min(first_s, second_s)))


def measure_network(platform: Platform, folder: Path) -> tuple[dict[tuple[str, str], Samples], list[dict[str, Any]]]:
    """Return samples of every network link, and the two ways used at once (schema PAIRS).

    Virtual nodes of one host are alike: the first pair of them is measured and stands for all. So are hosts, whose
    first pair is measured through the launcher. Raises :class:`ProfileError`.
    """
    host_of = {n.name: n.host for n in platform.nodes}
    network = [x for x in platform.links if x.kind == "network"]
    samples: dict[tuple[str, str], Samples] = {}
    pairs: list[dict[str, Any]] = []
    for same in (True, False):
        alike = [x for x in network if (host_of[x.source] == host_of[x.target]) is same]
        if not alike:
            continue
        first = alike[0]
        hosts = (host_of[first.source], host_of[first.target])
        measured, one_s, both_s = _pingpong(platform, first, hosts, folder)
        samples |= {(x.source, x.target): measured for x in alike}
        # The answer message of a round trip has the same size, so one way alone takes half of it.
        pairs += [
            pair_row(f"{x.source}→{x.target}", f"{x.target}→{x.source}", one_s, one_s, both_s)
            for x in alike
            if x.source < x.target
        ]
    return samples, pairs


def _pingpong(platform: Platform, link: Link, hosts: tuple[str, str], folder: Path) -> tuple[Samples, float, float]:
    """Return samples of one link, and seconds of one way alone and of both ways at once."""
    nodes = {n.name: n for n in platform.nodes}
    out = folder / "pingpong.json"
    out.unlink(missing_ok=True)
    cores = [",".join(map(str, nodes[name].agent_cores)) or "-" for name in (link.source, link.target)]
    argv = [sys.executable, "-m", "mpi4py", "-m", "heterotask_core.profiling.pingpong", *cores, str(out)]
    command = choose_launcher(hosts=hosts).command(
        n_ranks=2, argv=argv, hosts=() if all(is_here(host) for host in hosts) else hosts
    )
    what = f"timing messages between {link.source} and {link.target}"
    try:
        done = subprocess.run(
            command, env=child_environment(1), capture_output=True, text=True, timeout=PINGPONG_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProfileError(f"{what} took more than {PINGPONG_TIMEOUT_S:.0f} s; see `heterotask doctor`") from None
    if done.returncode or not out.exists():
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProfileError(f"{what} failed: {reason}; see `heterotask doctor`")
    answer = json.loads(out.read_text())
    measured = {int(size): [float(s) for s in values] for size, values in answer["samples"]}
    return measured, float(answer["one_way_s"]), float(answer["both_ways_s"])


def link_tables(
    links: Sequence[Link], measured: Mapping[tuple[str, str], Samples]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the fitted links (schema LINKS) and their samples (LINK_SAMPLES)."""
    fits, raw = [], []
    for link in links:
        samples = measured.get((link.source, link.target))
        if samples is None:
            continue
        pairs = [(size, s) for size, values in samples.items() for s in values]
        fit = fit_link([p[0] for p in pairs], [p[1] for p in pairs])
        ends = (link.source, link.target, link.kind)
        fits.append((*ends, fit.latency_s, fit.bandwidth_bytes_per_s, fit.residual, len(pairs)))
        raw += [(*ends, size, i, s) for size, values in samples.items() for i, s in enumerate(values)]
    return pl.DataFrame(fits, LINKS, orient="row"), pl.DataFrame(raw, LINK_SAMPLES, orient="row")
