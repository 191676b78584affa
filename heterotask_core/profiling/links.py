"""Links of a platform: run the measurements and fit them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from heterotask_core.errors import ProfileError
from heterotask_core.platform.model import Link, Platform
from heterotask_core.profiling.samples import fit_link
from heterotask_core.runtime.launch.base import clean_environment
from heterotask_core.runtime.launch.local import LocalLauncher
from heterotask_core.tables import LINK_SAMPLES, LINKS

PINGPONG_TIMEOUT_S = 120.0
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POCL_MAX_PTHREAD_COUNT",
)

Samples = dict[int, list[float]]
"""Size in bytes → seconds."""


def child_environment(cores: int) -> dict[str, str]:
    """Return this process's environment and import path for a child that computes with ``cores`` threads."""
    cleaned = clean_environment(os.environ, python_path=[entry or str(Path.cwd()) for entry in sys.path])
    return cleaned | dict.fromkeys(THREAD_VARIABLES, str(max(1, cores)))


def measure_network(platform: Platform, folder: Path) -> dict[tuple[str, str], Samples]:
    """Return samples of every network link whose ends share a host; raises :class:`ProfileError`.

    Virtual nodes of one host are alike: the first pair is measured, both ways at once, and stands for all.
    """
    nodes = {n.name: n for n in platform.nodes}
    wanted = [x for x in platform.links if x.kind == "network" and nodes[x.source].host == nodes[x.target].host]
    if not wanted:
        return {}
    out = folder / "pingpong.json"
    cores = [",".join(map(str, nodes[name].agent_cores)) or "-" for name in (wanted[0].source, wanted[0].target)]
    argv = [sys.executable, "-m", "mpi4py", "-m", "heterotask_core.profiling.pingpong", *cores, str(out)]
    command = LocalLauncher().command(n_ranks=2, argv=argv)
    try:
        done = subprocess.run(
            command, env=child_environment(1), capture_output=True, text=True, timeout=PINGPONG_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProfileError(
            f"timing messages between {wanted[0].source} and {wanted[0].target} took more than "
            f"{PINGPONG_TIMEOUT_S:.0f} s; see `heterotask doctor`"
        ) from None
    if done.returncode or not out.exists():
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProfileError(
            f"timing messages between {wanted[0].source} and {wanted[0].target} failed: {reason}; "
            "see `heterotask doctor`"
        )
    samples = {int(size): [float(s) for s in values] for size, values in json.loads(out.read_text())}
    return {(x.source, x.target): samples for x in wanted}


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
