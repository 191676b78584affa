"""``heteroprio``: buckets of equal tasks; every kind of worker starts with what it is comparatively best at.

Agullo, Bramas, Coulaud, Darve, Messner & Takahashi, "Task-based FMM for heterogeneous architectures" (CCPE 2016),
with the order of buckets found from the costs as in Flint, Paillat & Bramas (2022): by how much faster a kind runs a
class of tasks than the fastest other kind. A slower kind leaves a bucket alone as long as it holds fewer tasks than
the faster workers get through while it would run one.
"""

from __future__ import annotations

from bisect import insort

from heterotask_core.planning.policies.base import View

NEVER = float("inf")


class HeteroPrio:
    """Buckets by task class, sorted by priority inside."""

    def __init__(self, view: View) -> None:
        self.view = view
        machine = view.machine
        kinds = machine.problem.device_kinds
        classes = sorted(set(machine.task_class))
        members: dict[str, list[int]] = {}
        for w in machine.workers:
            members.setdefault(kinds[w], []).append(w)
        best = {
            kind: {c: min(machine.cost_s[c][w] for w in workers) for c in classes} for kind, workers in members.items()
        }
        self.kind = kinds
        self.buckets: dict[int, list[int]] = {c: [] for c in classes}
        self.order: dict[str, list[int]] = {}
        self.reserve: dict[tuple[str, int], float] = {}
        for kind in members:
            advantage: dict[int, float] = {}
            for c in classes:
                own = best[kind][c]
                if own == NEVER:
                    continue
                other = min((best[k][c] for k in members if k != kind), default=NEVER)
                advantage[c] = NEVER if other == NEVER else other / max(own, 1e-300)
                faster = [k for k in members if k != kind and best[k][c] < own]
                self.reserve[kind, c] = sum(len(members[k]) * own / max(best[k][c], 1e-300) for k in faster)
            self.order[kind] = sorted(advantage, key=lambda c: (-advantage[c], c))

    def push(self, task: int, released_by: int | None) -> None:
        """Put a task into its bucket."""
        insort(self.buckets[self.view.machine.task_class[task]], task, key=lambda t: -self.view.priority[t])

    def pop(self, worker: int) -> int | None:
        """Return the first task of the first bucket that the worker's kind may touch."""
        kind = self.kind[worker]
        for c in self.order[kind]:
            bucket = self.buckets[c]
            if len(bucket) <= self.reserve[kind, c] and self.reserve[kind, c] > 0.0:
                continue
            for i, task in enumerate(bucket):
                if self.view.able(task, worker):
                    return bucket.pop(i)
        return None

    def started(self, task: int, worker: int) -> None:
        """Nothing is predicted."""

    def finished(self, task: int, worker: int) -> None:
        """Nothing is predicted."""


def heteroprio(view: View) -> HeteroPrio:
    """Return the policy ``heteroprio``."""
    return HeteroPrio(view)
