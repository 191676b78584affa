"""Arena and slab peaks over peak live bytes, for the plans of a folder of instances.

python benchmarks/buffers.py FOLDER [--planner NAME] [--evaluations N] [--match PATTERN] [--limit MiB]

Live bytes are those of residencies from the planned start of their first write to the planned end of their last
access: no packing needs less. ``loss`` is what the packed peak is above that, summed over the memories of an instance;
``worst`` is the largest of one memory that holds at least ``--limit`` MiB. ``first fit`` is the loss of placing slots
at the first gap in order of first access, without the other rules. What cannot be read or planned is told and left out.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from statistics import median

import numpy as np
from arguments import Parser, among, folder_to_read, number, run_program, whole
from planner import entries, files

from heterotask_core.errors import InfeasiblePlanError
from heterotask_core.planning.base import Budget
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.registry import PLANNERS, planner
from heterotask_core.planning.schedule import Schedule
from heterotask_core.program import buffers
from heterotask_core.program.buffers import Slot, pack, peak_live


def slots_of(problem: Problem, schedule: Schedule) -> list[Slot]:
    """Return the residencies of a schedule as slots; an update that is the last to read its version takes its slot."""
    events = [(s, f, t, -1) for t, (s, f) in enumerate(zip(schedule.task_start_s, schedule.task_finish_s, strict=True))]
    events += [
        (s, f, problem.n_tasks + x, x)
        for x, (s, f) in enumerate(zip(schedule.transfer_start_s, schedule.transfer_finish_s, strict=True))
    ]
    events.sort()
    last = len(events) + 1
    tolerance_s = 1e-9 * (1 + schedule.makespan_s)
    stays: list[tuple[int, int, float, list[int], list[float]]] = []
    """Memory, version, ready, accesses (1 + place of the event; 0: at home from the start), their times."""
    held: dict[tuple[int, int], list[int]] = defaultdict(list)

    def fill(version: int, memory: int, ready_s: float, place: int, start_s: float, finish_s: float) -> int:
        stays.append((memory, version, ready_s, [place], [start_s, finish_s]))
        held[version, memory].append(len(stays) - 1)
        return len(stays) - 1

    for v in range(problem.n_versions):
        for m in problem.home_memories[problem.home_ptr[v] : problem.home_ptr[v + 1]].tolist():
            fill(v, m, 0.0, 0, 0.0, 0.0)
    made: list[dict[int, int]] = []
    for place, (start_s, finish_s, t, x) in enumerate(events, 1):
        found = {}
        if x < 0:
            memory = int(problem.device_memory[schedule.task_device[t]])
            for v in problem.output_versions[problem.output_ptr[t] : problem.output_ptr[t + 1]].tolist():
                found[v] = fill(v, memory, finish_s, place, start_s, finish_s)
        else:
            target = int(problem.link_target[schedule.transfer_link[x]])
            fill(int(schedule.transfer_version[x]), target, finish_s, place, start_s, finish_s)
        made.append(found)
    taken: dict[int, int] = {}
    for place, (start_s, finish_s, t, x) in enumerate(events, 1):
        if x < 0:
            memory = int(problem.device_memory[schedule.task_device[t]])
            versions = problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]].tolist()
        else:
            memory = int(problem.link_source[schedule.transfer_link[x]])
            versions = [int(schedule.transfer_version[x])]
        for v in versions:
            ready = [s for s in held[v, memory] if stays[s][2] <= start_s + tolerance_s]
            stay = max(ready, key=lambda s: stays[s][2])
            stays[stay][3].append(place)
            stays[stay][4].append(finish_s)
            if x < 0:
                span = slice(problem.output_ptr[t], problem.output_ptr[t + 1])
                for new, old in zip(problem.output_versions[span], problem.output_takes_over[span], strict=True):
                    if old == v:
                        taken[made[place - 1][int(new)]] = stay
    owner = list(range(len(stays)))
    for new, old in taken.items():
        if stays[old][3][-1] == stays[new][3][0]:
            owner[new] = owner[old]
            stays[owner[old]][3].extend(stays[new][3])
            stays[owner[old]][4].extend(stays[new][4])
    kept = []
    for s, (memory, v, _, places, times) in enumerate(stays):
        if owner[s] == s:
            if int(problem.version_final_memory[v]) == memory:
                places.append(last)
                times.append(schedule.makespan_s)
            size = int(np.ceil(problem.version_size_bytes[v]))
            kept.append(Slot(memory, size, tuple(sorted(set(places))), times[0], max(times)))
    return kept


def losses(problem: Problem, slots: list[Slot]) -> dict[int, tuple[int, int]]:
    """Return memory → (packed peak, peak live bytes rounded up to the alignment of offsets)."""
    _, sizes = pack(slots, problem.memory_alignment_bytes, problem.n_memories)
    found = {}
    for m, unit in enumerate(problem.memory_alignment_bytes.tolist()):
        mine = [s for s in slots if s.memory == m and s.size_bytes]
        if mine:
            size = np.array([-(-s.size_bytes // unit) * unit for s in mine], np.int64)
            start_s, free_s = np.array([s.start_s for s in mine]), np.array([s.free_s for s in mine])
            found[m] = int(sizes[m]), peak_live(size, start_s, free_s)
    return found


def main() -> None:
    """Print a line an instance."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=folder_to_read)
    parser.add_argument("--planner", type=among(PLANNERS), default="peft")
    parser.add_argument("--evaluations", type=whole(0), default=0)
    parser.add_argument("--match", default="*.json*")
    parser.add_argument("--limit", type=number(), default=1.0)
    options = parser.parse_args()
    paths = files(options.folder, options.match)
    print(
        f"{'instance':45} {'slots':>7} {'live MiB':>9} {'loss %':>7} {'worst %':>8} {'first fit %':>11} {'pack s':>7}"
    )
    all_losses = []
    for entry in entries(paths):
        problem = entry.problem
        try:
            schedule = planner(options.planner).plan(problem, budget=Budget(evaluations=options.evaluations))
        except InfeasiblePlanError as error:
            print(f"{problem.name:45} {error}")
            continue
        slots = slots_of(problem, schedule)
        began_s = time.perf_counter()
        found = losses(problem, slots)
        spent_s = time.perf_counter() - began_s
        near, buffers.NEAR_LIVE = buffers.NEAR_LIVE, np.inf
        plain = losses(problem, slots)
        buffers.NEAR_LIVE = near
        live = sum(peak for _, peak in found.values())
        loss = 100 * (sum(size for size, _ in found.values()) / live - 1) if live else 0.0
        naive = 100 * (sum(size for size, _ in plain.values()) / live - 1) if live else 0.0
        large = [100 * (size / peak - 1) for size, peak in found.values() if peak >= options.limit * 2**20]
        worst = max(large, default=0.0)
        all_losses.append(loss)
        figures = f"{live / 2**20:9.1f} {loss:7.2f} {worst:8.2f} {naive:11.2f} {spent_s:7.2f}"
        print(f"{problem.name:45} {len(slots):7} {figures}", flush=True)
    if not all_losses:
        raise InfeasiblePlanError("no instance could be planned; the table says why")
    print(f"{len(all_losses)} plans: loss median {median(all_losses):.2f} %, largest {max(all_losses):.2f} %")


if __name__ == "__main__":
    run_program(main)
