"""Random graphs on a small cluster, planned by a tiny list scheduler; kernels are never run."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from heterotask_core.graph import TaskGraph
from heterotask_core.kernel import Kernel, Variant
from heterotask_core.planning.from_graph import build_problem
from heterotask_core.planning.schedule import Schedule
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform
from heterotask_core.profiling.costs import CostModel
from heterotask_core.program.lower import lower

NODES = ("n0", "n1", "n2")


def _kernel(name, **roles):
    variants = tuple(
        Variant(
            f"v-{kind}",
            kind,
            f"{__name__}:nothing",
            scratch_bytes=lambda params, shapes: 300 * (len(shapes) % 2),
        )
        for kind in ("cpu", "opencl")
    )
    return Kernel(name, __name__, variants=variants, **roles)


def nothing():
    """Stands for an implementation."""


MAKE = _kernel("make", writes=("y",))
MAP = _kernel("map", reads=("x",), writes=("y",))
JOIN = _kernel("join", reads=("xs",), updates=("y",))
BUMP = _kernel("bump", updates=("y",))


class Costs(CostModel):
    """Fixed costs in place of a profile."""

    def task_s(self, key, variant, device, **_):
        return 1e-3

    def link(self, link):
        return 1e-4, 1e7


def platform(n_nodes):
    memories, devices, links = [], [], []
    for node in NODES[:n_nodes]:
        memories += [Memory(node, node), Memory(f"{node}.gpu", node, alignment_bytes=512)]
        devices += [Device(f"{node}.cpu{i}", "cpu", node, node, "cpu", core_ids=(i,)) for i in range(2)]
        devices.append(Device(f"{node}.gpu", "opencl", node, f"{node}.gpu", "gpu"))
        # Up and down share a bus: a capacity lane over two issue lanes.
        links += [
            Link(node, f"{node}.gpu", "host_to_device", 1e-4, 1e7, (f"{node}.bus",)),
            Link(f"{node}.gpu", node, "device_to_host", 1e-4, 1e7, (f"{node}.bus",)),
        ]
    for a in NODES[:n_nodes]:
        links += [Link(a, b, "network", 1e-4, 1e7) for b in NODES[:n_nodes] if b != a]
    nodes = tuple(Node(node, "localhost") for node in NODES[:n_nodes])
    return Platform(nodes=nodes, memories=tuple(memories), devices=tuple(devices), links=tuple(links))


def random_graph(rng, n_tasks):
    graph = TaskGraph("random")
    alive = []
    for i in range(n_tasks):
        kernel = rng.choice((MAKE, MAP, JOIN, BUMP)) if len(alive) > 2 else MAKE
        fresh = None
        if kernel in (MAKE, MAP):
            fresh = graph.data(f"d{i}", shape=(rng.choice((0, 1, 100, 1000, 3000)),), dtype="uint8")
        if kernel is MAKE:
            graph.add(kernel, writes={"y": fresh})
        elif kernel is MAP:
            graph.add(kernel, reads={"x": rng.choice(alive)}, writes={"y": fresh})
        elif kernel is JOIN:
            target, *sources = rng.sample(alive, 3)
            graph.add(kernel, reads={"xs": sources}, updates={"y": target})
        else:
            graph.add(kernel, updates={"y": rng.choice(alive)})
        if fresh is not None:
            alive.append(fresh)
    return graph


def list_schedule(problem, platform, rng):
    """Place tasks in program order on random devices; every hop takes the first free time of its lanes."""
    memory_node = problem.memory_nodes
    host = {name: m for m, name in enumerate(problem.memory_names) if name == memory_node[m]}
    link = {(int(s), int(t)): k for k, (s, t) in enumerate(zip(problem.link_source, problem.link_target, strict=True))}
    free, there, hops, start, finish, chosen = {}, {}, [], [], [], []

    def fetch(version, memory):
        if (version, memory) in there:
            return there[version, memory]
        home = next(m for v, m in there if v == version)
        path = [home, host[memory_node[home]], host[memory_node[memory]], memory]
        for a, b in pairwise(path):
            if a == b or (version, b) in there:
                continue
            k = link[a, b]
            lanes = problem.link_lanes[problem.link_lane_ptr[k] : problem.link_lane_ptr[k + 1]].tolist()
            begin = max([there[version, a], *(free.get(lane, 0.0) for lane in lanes)])
            end = begin + 1e-4 + float(problem.version_size_bytes[version]) / 1e7
            free.update(dict.fromkeys(lanes, end))
            there[version, b] = end
            hops.append((begin, end, version, k))
        return there[version, memory]

    for t in range(problem.n_tasks):
        device = rng.randrange(problem.n_devices)
        memory = int(problem.device_memory[device])
        inputs = problem.input_versions[problem.input_ptr[t] : problem.input_ptr[t + 1]].tolist()
        begin = max([free.get(("device", device), 0.0), *(fetch(v, memory) for v in inputs)])
        end = begin + rng.choice((1e-4, 1e-3, 3e-3))
        free["device", device] = end
        for v in problem.output_versions[problem.output_ptr[t] : problem.output_ptr[t + 1]].tolist():
            there[v, memory] = end
        chosen.append(device)
        start.append(begin)
        finish.append(end)
    hops.sort()
    columns = list(zip(*hops, strict=True)) or [(), (), (), ()]
    task_device = np.array(chosen, np.int32)
    return Schedule(
        planner="test",
        seed=0,
        evaluations=1,
        task_device=task_device,
        task_variant=problem.cost_variant[problem.task_class, task_device],
        task_start_s=np.array(start),
        task_finish_s=np.array(finish),
        transfer_version=np.array(columns[2], np.int32),
        transfer_link=np.array(columns[3], np.int32),
        transfer_start_s=np.array(columns[0], np.float64),
        transfer_finish_s=np.array(columns[1], np.float64),
        makespan_s=max(finish),
        lower_bound_s=0.0,
    )


def random_program(seed, *, n_tasks=14, n_nodes=2):
    rng = random.Random(seed)
    graph, machine = random_graph(rng, n_tasks), platform(n_nodes)
    problem = build_problem(graph, machine, Costs({}, {}))
    schedule = list_schedule(problem, machine, rng)
    return lower(graph, machine, problem, schedule), schedule
