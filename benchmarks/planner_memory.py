"""How near to the live bytes do arenas get? Peak of the packed bytes over the peak of the bytes in use.

    python benchmarks/planner_memory.py FOLDER [--planner heft] [--match "starpu-*"]

plans every instance of the folder (or of HETEROTASK_INSTANCES), lays the copies of each memory out as a program's
buffers are (a slot from the first write to the last access; an update keeps its slot where nobody reads the old version
any more) and prints, for the memory whose ratio is worst, live bytes, packed bytes and their ratio.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from planner import entries

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import planner
from heterotask_core.planning.schedule import Schedule
from heterotask_core.program.buffers import Slot, pack, peak_live

ALIGNMENT = 64
"""Bytes to which offsets are rounded where the memory asks for nothing."""


def slots_of(problem: Problem, schedule: Schedule) -> list[Slot]:
    """Return the slots of all copies; their accesses are numbered by planned start."""
    tasks, n = np.arange(problem.n_tasks), problem.n_tasks
    start_s = np.concatenate([schedule.task_start_s, schedule.transfer_start_s])
    finish_s = np.concatenate([schedule.task_finish_s, schedule.transfer_finish_s])
    ops = np.lexsort((np.arange(len(start_s)), finish_s, start_s))
    # Home copies are there before everything: their loads come first.
    number = np.empty(len(ops), np.int64)
    number[ops] = 1 + np.arange(len(ops))
    stays: dict[tuple[int, int], list[int]] = {}
    owner: dict[tuple[int, int], tuple[int, int]] = {}

    def slot(version: int, memory: int) -> list[int]:
        key = version, memory
        while key in owner:
            key = owner[key]
        return stays.setdefault(key, [])

    for v in range(problem.n_versions):
        for m in problem.home_memories[problem.home_ptr[v] : problem.home_ptr[v + 1]].tolist():
            slot(v, m).append(-1)
    readers: dict[tuple[int, int], float] = {}
    for x in range(len(schedule.transfer_link)):
        key = int(schedule.transfer_version[x]), int(problem.link_source[schedule.transfer_link[x]])
        readers[key] = max(readers.get(key, 0.0), float(schedule.transfer_finish_s[x]))
    for t in tasks.tolist():
        m = int(problem.device_memory[schedule.task_device[t]])
        taken = set(problem.output_takes_over[problem.output_ptr[t] : problem.output_ptr[t + 1]].tolist())
        for v in problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]].tolist():
            if v not in taken:
                readers[v, m] = max(readers.get((v, m), 0.0), float(schedule.task_finish_s[t]))
    for op in ops.tolist():
        if op >= n:
            v, link = int(schedule.transfer_version[op - n]), int(schedule.transfer_link[op - n])
            slot(v, int(problem.link_source[link])).append(op)
            slot(v, int(problem.link_target[link])).append(op)
            continue
        m = int(problem.device_memory[schedule.task_device[op]])
        for v in problem.input_versions[problem.input_ptr[op] : problem.input_ptr[op + 1]].tolist():
            slot(v, m).append(op)
        span = slice(problem.output_ptr[op], problem.output_ptr[op + 1])
        for v, old in zip(
            problem.output_versions[span].tolist(), problem.output_takes_over[span].tolist(), strict=True
        ):
            if old >= 0 and readers.get((old, m), 0.0) <= schedule.task_start_s[op]:
                owner[v, m] = old, m
            slot(v, m).append(op)
    found = []
    for (v, m), accesses in stays.items():
        size = int(-(-float(problem.version_size_bytes[v]) // ALIGNMENT) * ALIGNMENT)
        began = 0.0 if accesses[0] < 0 else float(start_s[accesses[0]])
        ended = max((float(finish_s[op]) for op in accesses if op >= 0), default=0.0)
        found.append(Slot(m, size, tuple(0 if op < 0 else int(number[op]) for op in accesses), began, ended))
    return found


def ratios(problem: Problem, schedule: Schedule) -> list[tuple[float, str, int, int]]:
    """Return (packed over live, memory, live bytes, packed bytes) of every memory in use, worst first."""
    slots = slots_of(problem, schedule)
    _, packed = pack(slots, np.full(problem.n_memories, ALIGNMENT), problem.n_memories)
    rows = []
    for m, name in enumerate(problem.memory_names):
        mine = [s for s in slots if s.memory == m and s.size_bytes > 0]
        if mine:
            sizes = np.array([s.size_bytes for s in mine])
            live = peak_live(sizes, np.array([s.start_s for s in mine]), np.array([s.free_s for s in mine]))
            rows.append((int(packed[m]) / live if live else 1.0, name, live, int(packed[m])))
    return sorted(rows, reverse=True)


def main() -> None:
    """Print a line an instance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("HETEROTASK_INSTANCES"))
    parser.add_argument("--planner", default="heft")
    parser.add_argument("--match", default="*.json*")
    options = parser.parse_args()
    if options.folder is None:
        parser.error("name a folder of instances, or set HETEROTASK_INSTANCES")
    print(f"{'instance':48} {'memory':12} {'live':>14} {'packed':>14} {'ratio':>7}")
    for entry in entries(Path(options.folder), options.match, ()):
        problem = entry.problem
        try:
            schedule = planner(options.planner).plan(problem, budget=Budget(evaluations=200))
        except InfeasiblePlanError as error:
            print(f"{problem.name:48} {error}")
            continue
        ratio, memory, live, packed = max(ratios(problem, schedule), default=(1.0, "-", 0, 0))
        print(f"{problem.name:48} {memory:12} {live:14} {packed:14} {ratio:7.3f}", flush=True)


if __name__ == "__main__":
    main()
