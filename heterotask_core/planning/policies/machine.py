"""What a runtime system knows of the problem: plain lists, and the routes that it predicts to be cheapest."""

from __future__ import annotations

from heterotask_core.planning.core import MAX_HOPS, edges
from heterotask_core.planning.problem import I32, I64, Problem

SHARING = 2.0
"""StarPU's transfer model: every accelerator of the machine is sending and receiving all the time."""


class Machine:
    """The problem as an online runtime sees it; indices are those of :class:`Problem`.

    ``workers`` are the devices in the order in which they ask for work, cores before accelerators. Accelerators
    are devices whose memory no ``cpu`` and no second device shares: they overlap the transfers of the next task with
    the running one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        n = problem.n_tasks
        pointer, target, n_predecessors, _ = edges(problem)
        self.n_tasks = n
        self.successors: list[list[int]] = [target[pointer[t] : pointer[t + 1]].tolist() for t in range(n)]
        self.n_predecessors: list[int] = n_predecessors.tolist()
        self.inputs: list[list[int]] = _rows(problem.input_ptr, problem.input_versions)
        self.outputs: list[list[int]] = _rows(problem.output_ptr, problem.output_versions)
        self.task_class: list[int] = problem.task_class.tolist()
        self.cost_s: list[list[float]] = problem.cost_s.tolist()
        self.size: list[float] = problem.version_size_bytes.astype(float).tolist()
        self.device_memory: list[int] = problem.device_memory.tolist()
        self.device_lanes: list[list[int]] = _rows(problem.device_lane_ptr, problem.device_lanes)
        self.link_source: list[int] = problem.link_source.tolist()
        self.link_target: list[int] = problem.link_target.tolist()
        self.link_lanes: list[list[int]] = _rows(problem.link_lane_ptr, problem.link_lanes)
        self.latency_s: list[float] = problem.link_latency_s.tolist()
        self.bandwidth: list[float] = problem.link_bandwidth_bytes_per_s.tolist()
        hosts = _host_memories(problem)
        self.is_accelerator = [m not in hosts for m in self.device_memory]
        self.workers = sorted(range(problem.n_devices), key=lambda d: (self.is_accelerator[d], d))
        self.sharing = SHARING * max(1, len({m for m in self.device_memory if m not in hosts}))
        self._routes: dict[tuple[int, int, float], tuple[float, tuple[int, ...]] | None] = {}

    def transfer_s(self, link: int, size: float) -> float:
        """Seconds that a transfer takes alone."""
        return self.latency_s[link] + size / self.bandwidth[link]

    def predicted_s(self, link: int, size: float) -> float:
        """Seconds that StarPU's model predicts: fixed shares of the bandwidth, whatever else goes on."""
        return self.latency_s[link] + size / self.bandwidth[link] * self.sharing

    def route(self, source: int, target: int, size: float) -> tuple[float, tuple[int, ...]] | None:
        """Return (predicted seconds, links) of the cheapest route by prediction, a direct link if there is one."""
        key = source, target, size
        if key not in self._routes:
            self._routes[key] = self._find_route(source, target, size)
        return self._routes[key]

    def _find_route(self, source: int, target: int, size: float) -> tuple[float, tuple[int, ...]] | None:
        reached: dict[int, tuple[float, tuple[int, ...]]] = {source: (0.0, ())}
        best = dict(reached)
        for _ in range(MAX_HOPS):
            following: dict[int, tuple[float, tuple[int, ...]]] = {}
            for link, (a, b) in enumerate(zip(self.link_source, self.link_target, strict=True)):
                if a in reached:
                    total = reached[a][0] + self.predicted_s(link, size)
                    if b not in best or total < best[b][0]:
                        best[b] = following[b] = (total, (*reached[a][1], link))
            if target in best:
                return best[target]
            reached = following
        return None

    def feasible(self, task: int, device: int) -> bool:
        """Whether the device can run the task."""
        return self.cost_s[self.task_class[task]][device] < float("inf")


def _rows(pointer: I64, flat: I32) -> list[list[int]]:
    return [[int(x) for x in flat[pointer[i] : pointer[i + 1]]] for i in range(len(pointer) - 1)]


def _host_memories(problem: Problem) -> set[int]:
    """Memories of a node's processors: where ``cpu`` devices or several devices work, else the node's first one."""
    users: dict[int, list[int]] = {}
    for d, m in enumerate(problem.device_memory.tolist()):
        users.setdefault(m, []).append(d)
    hosts = {
        m for m, devices in users.items() if len(devices) > 1 or problem.device_kinds[devices[0]].startswith("cpu")
    }
    for m, node in enumerate(problem.memory_nodes):
        if not any(problem.memory_nodes[h] == node for h in hosts):
            hosts.add(m)
    return hosts


def task_levels(machine: Machine) -> list[int]:
    """Return the number of tasks on the longest path from each task to an exit: StarPU's applications' priority."""
    level = [1] * machine.n_tasks
    for t in range(machine.n_tasks - 1, -1, -1):
        level[t] += max((level[j] for j in machine.successors[t]), default=0)
    return level
