"""Time of one PEFT and one HEFT pass over layered DAGs on 56 devices, by size; and time of one search evaluation.

python benchmarks/planner_speed.py [--sizes 1000 10000 100000] [--repeats 3] [--json FILE]

The DAG has layers of width √tasks and in-degree 3; the platform is seven nodes, each with four groups of cores and four
GPUs; every GPU has its links to the host, which share a switch, and nodes are joined by a network. Both ranking and
placing count, compilation does not. Prints the median and the spread of the repeats.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from arguments import Parser, file_to_write, run_program, whole

from heterotask_core.planning.core import arrays
from heterotask_core.planning.listing import Rule, heft_rule, peft_rule, place
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.search import Search, warm_up

NODES, CORE_GROUPS, GPUS = 7, 4, 4
CLASSES = 8
IN_DEGREE = 3
RULES: dict[str, Callable[[Problem], Rule]] = {"peft": peft_rule, "heft": heft_rule}


def layered(n_tasks: int, *, contention: bool, seed: int = 0) -> Problem:
    """Return a layered DAG: every task reads what three tasks of the layer before have written."""
    rng = np.random.default_rng(seed)
    width = max(IN_DEGREE, int(np.sqrt(n_tasks)))
    layer = np.arange(n_tasks) // width
    inputs = []
    for t in range(n_tasks):
        if layer[t] == 0:
            inputs.append(np.zeros(0, np.int64))
            continue
        first = (layer[t] - 1) * width
        inputs.append(first + (t % width + rng.choice(np.arange(-4, 5), IN_DEGREE, replace=False)) % width)
    memories, nodes, devices, kinds, device_memory, ends, lanes = [], [], [], [], [], [], []
    lane_names: list[str] = []

    def lane(name: str) -> int:
        if name not in lane_names:
            lane_names.append(name)
        return lane_names.index(name)

    for node in range(NODES):
        host = len(memories)
        memories.append(f"n{node}.host")
        nodes.append(f"n{node}")
        for g in range(CORE_GROUPS):
            devices.append(f"n{node}.cores{g}")
            kinds.append("cpu")
            device_memory.append(host)
        for g in range(GPUS):
            gpu = len(memories)
            memories.append(f"n{node}.gpu{g}")
            nodes.append(f"n{node}")
            devices.append(f"n{node}.gpu{g}")
            kinds.append("cuda")
            device_memory.append(gpu)
            ends += [(host, gpu), (gpu, host)]
            lanes += [
                [lane(f"n{node}.gpu{g}.in"), lane(f"n{node}.down")],
                [lane(f"n{node}.gpu{g}.out"), lane(f"n{node}.up")],
            ]
    hosts = [i for i, name in enumerate(memories) if name.endswith("host")]
    for a in hosts:
        for b in hosts:
            if a != b:
                ends.append((a, b))
                lanes.append([lane(f"{memories[a]}.send"), lane(f"{memories[b]}.receive")])
    device_lanes = np.array([lane(name) for name in devices], np.int32)
    cpu = rng.uniform(4e-3, 2e-2, CLASSES)
    cost = np.array(
        [[c if k == "cpu" else c / s for k in kinds] for c, s in zip(cpu, rng.uniform(2, 30, CLASSES), strict=True)]
    )
    network = np.array([a in hosts and b in hosts for a, b in ends])
    n_devices, flat = len(devices), np.concatenate(inputs).astype(np.int32)
    ones = np.arange(n_tasks + 1)
    names = tuple(f"t{t}" for t in range(n_tasks))
    return Problem(
        name=f"layered-{n_tasks}",
        contention=contention,
        memory_names=tuple(memories),
        memory_nodes=tuple(nodes),
        memory_capacity_bytes=np.full(len(memories), -1),
        memory_alignment_bytes=np.ones(len(memories), np.int64),
        device_names=tuple(devices),
        device_kinds=tuple(kinds),
        device_memory=np.array(device_memory, np.int32),
        device_lane_ptr=np.arange(n_devices + 1),
        device_lanes=device_lanes,
        link_source=np.array([a for a, _ in ends], np.int32),
        link_target=np.array([b for _, b in ends], np.int32),
        link_latency_s=np.where(network, 5e-6, 1e-5),
        link_bandwidth_bytes_per_s=np.where(network, 1.2e10, 2.2e10),
        link_lane_ptr=np.cumsum([0, *map(len, lanes)]),
        link_lanes=np.array([x for held in lanes for x in held], np.int32),
        lane_names=tuple(lane_names),
        data_names=names,
        version_data=np.arange(n_tasks, dtype=np.int32),
        version_number=np.ones(n_tasks, np.int32),
        version_size_bytes=rng.integers(1 << 18, 1 << 22, n_tasks),
        version_producer=np.arange(n_tasks, dtype=np.int32),
        home_ptr=np.zeros(n_tasks + 1, np.int64),
        home_memories=np.zeros(0, np.int32),
        version_final_memory=np.full(n_tasks, -1, np.int32),
        task_names=names,
        task_class=rng.integers(0, CLASSES, n_tasks).astype(np.int32),
        input_ptr=np.cumsum([0, *map(len, inputs)]),
        input_versions=flat,
        output_ptr=ones,
        output_versions=np.arange(n_tasks, dtype=np.int32),
        output_takes_over=np.full(n_tasks, -1, np.int32),
        after_ptr=np.zeros(n_tasks + 1, np.int64),
        after_tasks=np.zeros(0, np.int32),
        class_names=tuple(f"k{c}" for c in range(CLASSES)),
        class_variants=((),) * CLASSES,
        cost_s=cost,
        cost_variant=np.full((CLASSES, n_devices), -1, np.int32),
        variant_cost_s=tuple(cost[c][None, :] for c in range(CLASSES)),
    )


def pass_s(problem: Problem, make: Callable[[Problem], Rule], repeats: int) -> list[float]:
    """Return the seconds of ranking and placing, each time anew; the core's view is made once, as a planner does."""
    view = arrays(problem)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        place(problem, view, make(problem))
        found.append(time.perf_counter() - began)
    return found


def evaluation_s(problem: Problem, evaluations: int) -> float:
    """Return the mean seconds of an evaluation in the local search, from PEFT's plan on."""
    view = arrays(problem)
    first = place(problem, view, peft_rule(problem))
    search = Search(problem, view, seed=0)
    current = search.begin(first.order, search.groups[first.device])
    search.run(current, 1, 0.0)
    began = time.perf_counter()
    search.run(current, evaluations, 0.0)
    return (time.perf_counter() - began) / evaluations


def main() -> None:
    """Print a line a size and platform."""
    parser = Parser(description=__doc__)
    parser.add_argument("--sizes", type=whole(), nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=whole(), default=3)
    parser.add_argument("--evaluations", type=whole(), default=100)
    parser.add_argument("--json", type=file_to_write)
    options = parser.parse_args()
    warm_up()
    pass_s(layered(30, contention=True), peft_rule, 1)
    pass_s(layered(30, contention=True), heft_rule, 1)
    rows = []
    print(f"{'tasks':>8} {'lanes':>6} {'PEFT s (min..max)':>26} {'HEFT s (min..max)':>26} {'evaluation us':>14}")
    for n in options.sizes:
        for contention in (False, True):
            problem = layered(n, contention=contention)
            times = {name: pass_s(problem, make, options.repeats) for name, make in RULES.items()}
            each_s = evaluation_s(problem, options.evaluations)
            text = [f"{statistics.median(x):9.3f} ({min(x):6.3f}..{max(x):6.3f})" for x in times.values()]
            print(
                f"{n:8} {'yes' if contention else 'no':>6} {text[0]:>26} {text[1]:>26} {each_s * 1e6:14.1f}", flush=True
            )
            rows.append({"tasks": n, "contention": contention, "pass_s": times, "evaluation_s": each_s})
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    run_program(main)
