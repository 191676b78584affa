"""What emulated ops take: table durations and seeded noise, the same for the simulator and for emulated ranks.

Emulated devices do real work (buffers, copies, messages, the CPU variant's result) in *logical* time: an op starts
at the latest logical end of what it waits for and takes what :class:`OpTimes` says. Makespan and trace of an emulated
run therefore equal :func:`predict` op by op, bit for bit. They are never measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from heterotask_core.errors import PlatformError
from heterotask_core.program.model import F64, DependencyKind, LaneKind, Program

TIMES_FILE = "emulation.npz"
PACE_SHARE = 0.7
"""Of the cores' time, what the tasks of a paced run take of it by default."""
MOST_LAG = 0.05
"""A paced run that is later than this share of its makespan shows no pace."""


@dataclass(frozen=True)
class OpTimes:
    """Seconds of every op in every run, (R, N): ``wait_s`` from ready to start, ``total_s`` from ready to end."""

    total_s: F64
    wait_s: F64

    @staticmethod
    def planned(program: Program, *, runs: int, noise: float = 0.0, seed: int = 0) -> OpTimes:
        """Planned durations times log-normal noise of that relative width, keyed by seed, run and op."""
        total_s = np.tile(program.op_duration_s, (runs, 1))
        for run in range(runs):
            total_s[run] *= np.exp(noise * np.random.default_rng([seed, run]).standard_normal(program.n_ops))
        return OpTimes(total_s, np.zeros_like(total_s))

    def padded(self, runs: int) -> OpTimes:
        """Return times of ``runs`` runs, the first ones again in front of too few."""
        first = np.zeros(runs - len(self.total_s), np.int64)
        rows = np.concatenate([first, np.arange(len(self.total_s))])
        return OpTimes(self.total_s[rows], self.wait_s[rows])


def write_times(folder: Path, program: Program, times: OpTimes) -> None:
    """Put what emulated ranks need beside the program into a job's folder: all times, and a file a node for ends."""
    np.savez(folder / TIMES_FILE, total_s=times.total_s, wait_s=times.wait_s)
    for node in {role.node for role in program.ranks}:
        times_path(folder, node).write_bytes(bytes(8 * max(1, program.n_ops)))


def times_path(folder: Path, node: str) -> Path:
    """Return the file in which the ranks of a node keep the logical end of every op, (N,) float64."""
    return folder / f"times-{node}"


def predict(program: Program, times: OpTimes, run: int) -> tuple[F64, F64]:
    """Return (N,) start and end in seconds of one run, from the first kernel's start: what emulated ranks report."""
    # Ranks import this module too, and most of them never need the simulator's compiler: half a second each.
    from heterotask_core.simulate import simulate

    found = simulate(program, times.total_s[run])
    start_s, finish_s = found.start_s + times.wait_s[run], found.finish_s
    zero_s = start_s[program.op_task >= 0].min(initial=np.inf)
    return (start_s - zero_s, finish_s - zero_s) if np.isfinite(zero_s) else (start_s, finish_s)


def least_dilation(program: Program, work_s: float, cores: int) -> float:
    """Return the smallest dilation at which ``work_s`` of CPU time fit into ``PACE_SHARE`` of so many cores."""
    from heterotask_core.simulate import simulate

    makespan_s = simulate(program).makespan_s
    return work_s / (PACE_SHARE * cores * makespan_s) if makespan_s > 0 else 1.0


def is_emulated(kinds: Iterable[str]) -> bool:
    """Return whether devices of these kinds are emulated; raises :class:`PlatformError` when only some are."""
    found = set(kinds)
    if "emulated" in found and len(found) > 1:
        others = ", ".join(sorted(found - {"emulated"}))
        raise PlatformError(
            f"emulated devices and real ones ({others}) do not mix: their times are not of one kind; make all of them "
            "emulated (CPU devices: kind emulated, emulates cpu)"
        )
    return "emulated" in found


def origin_of(kinds: Iterable[str]) -> str:
    """Return the origin (see ``tables.ORIGINS``) of what devices of these kinds report when they run."""
    return "emulated" if is_emulated(kinds) else "measured"


def with_capacity_order(program: Program) -> tuple[Program, dict[int, list[int]]]:
    """Return the program with the order of capacity lanes enforced, and op → earlier ops that no node of it can see.

    The simulator goes through capacity lanes in planned order. Emulated ranks must do so too: what a node can see is
    added as a dependency, of the rest the logical end has to be sent.

    Raises:
        PlatformError: copies of different nodes share a capacity lane.
    """
    nodes = op_nodes(program)
    extra: dict[int, list[int]] = defaultdict(list)
    remote: dict[int, list[int]] = defaultdict(list)
    for k, kind in enumerate(program.lane_kinds.tolist()):
        if kind != LaneKind.CAPACITY:
            continue
        for a, b in pairwise(program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist()):
            if nodes[a] & nodes[b]:
                extra[b].append(a)
            elif len(nodes[a]) == len(nodes[b]) == 2:
                remote[b].append(a)
            else:
                raise PlatformError(
                    f"lane {program.lane_names[k]!r} is shared by copies inside several nodes, which cannot be "
                    "emulated; give each node a lane of its own"
                )
    rows, kinds = [], []
    for i in range(program.n_ops):
        own = program.dep_ops[program.dep_ptr[i] : program.dep_ptr[i + 1]].tolist()
        more = sorted(set(extra[i]) - set(own))
        rows.append(own + more)
        kinds += program.dep_kinds[program.dep_ptr[i] : program.dep_ptr[i + 1]].tolist()
        kinds += [DependencyKind.REUSE] * len(more)
    ptr = np.zeros(program.n_ops + 1, np.int64)
    ptr[1:] = np.cumsum([len(row) for row in rows])
    ordered = replace(
        program,
        dep_ptr=ptr,
        dep_ops=np.array([d for row in rows for d in row], np.int32),
        dep_kinds=np.array(kinds, np.int8),
    )
    return ordered, dict(remote)


def op_nodes(program: Program) -> list[set[str]]:
    """Return the nodes whose ranks own each op: one, or two of a transfer."""
    nodes: list[set[str]] = [set() for _ in range(program.n_ops)]
    for k, rank in enumerate(program.lane_rank.tolist()):
        if rank >= 0:
            for op in program.lane_ops[program.lane_ptr[k] : program.lane_ptr[k + 1]].tolist():
                nodes[op].add(program.ranks[rank].node)
    return nodes
