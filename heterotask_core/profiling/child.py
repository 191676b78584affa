"""Time variants and copies on one device, in a process of its own: ``python -m heterotask_core.profiling.child JOB``.

JOB is a JSON file (see :mod:`heterotask_core.profiling.measure` and :mod:`~heterotask_core.profiling.busy`). Answers
are JSON lines on stdout, orders JSON lines on stdin; whatever kernels print goes to stderr. The process pins itself
before it imports NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from heterotask_core.profiling.memory import Placed, Sweep
    from heterotask_core.runtime.devices.base import Backend

PAIR_BYTES = 4 << 20
LEAST_SHARE = 0.25
"""Of its equal share of the budget, what an item has when others have taken too long."""


def main(path: str) -> None:
    """Do the job and exit."""
    job = json.loads(Path(path).read_text())
    if job["core_ids"]:
        os.sched_setaffinity(0, job["core_ids"])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    from heterotask_core.profiling.memory import Sweep, open_arena, place
    from heterotask_core.runtime.devices.base import open_backend

    placed = [place(item) for item in job["items"]]
    copied = [*job["link_sizes_bytes"], 2 * PAIR_BYTES] if job["link_sizes_bytes"] else [0]
    size = max([p.end_bytes for p in placed] + copied)
    arena = open_arena(size)
    backend = open_backend(
        job["kind"], selector=job["selector"], arena=arena, memory_bytes=arena.nbytes, cores=job["cores"]
    )
    worker = _Worker(job, placed, backend, arena, Sweep(placed), answers)
    try:
        if job["windows"]:
            worker.windows()
        else:
            worker.items()
            worker.links()
    finally:
        backend.close()


class _Worker:
    def __init__(
        self, job: dict[str, Any], placed: list[Placed], backend: Backend, arena: Any, sweep: Sweep, answers: TextIO
    ) -> None:
        self.job, self.placed, self.backend, self.arena = job, placed, backend, arena
        self.sweep, self.answers = sweep, answers

    def say(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self.answers)

    def prepare(self, i: int) -> Any:
        from heterotask_core.profiling.timing import Prepared

        job = self.job
        return Prepared(job["items"][i], self.placed[i], self.backend, self.arena, self.sweep, Path(job["output_dir"]))

    def items(self) -> None:
        """Time every item by itself; say before each that it starts, so that a hanging one is known."""
        import numpy as np

        from heterotask_core.profiling.timing import time_item

        fastest: dict[str, float] = {}
        first: dict[str, str] = {}
        classes: dict[str, list[int]] = {}
        for i, item in enumerate(self.job["items"]):
            if not item["companion"]:
                classes.setdefault(item["class"], []).append(i)
        left = sum(map(len, classes.values())) + self.job["items_after"]
        for key, members in classes.items():
            # The variant that won the kernel's last class goes first: then the others need few samples.
            for i in sorted(members, key=lambda i: self.job["items"][i]["variant"] != first.get(self.kernel(i))):
                item = self.job["items"][i]
                self.say(started=i)
                # Other load may stretch a slice to twice its length; all together must end in time, as far as a
                # late start and long compilations leave some.
                share_s = (self.job["end_s"] - time.monotonic()) / (2 * left)
                slice_s = max(LEAST_SHARE * self.job["slice_s"], min(self.job["slice_s"], share_s))
                left -= 1
                try:
                    answer = time_item(
                        self.prepare(i),
                        sink=item["sink"],
                        slice_s=slice_s,
                        rival_s=fastest.get(key),
                        cores=self.job["cores"],
                    )
                    median_s = float(np.median(answer["samples"]))
                    if median_s < fastest.get(key, np.inf):
                        fastest[key], first[self.kernel(i)] = median_s, item["variant"]
                    self.say(item=i, **answer)
                except Exception as error:
                    self.say(item=i, error=f"{type(error).__name__}: {error}")

    def kernel(self, i: int) -> str:
        """Return the name of an item's kernel."""
        name: str = self.job["items"][i]["kernel"]
        return name

    def links(self) -> None:
        """Time copies by size, then two lanes at once."""
        from heterotask_core.profiling.copies import time_copies, time_pairs

        if not self.job["link_sizes_bytes"]:
            return
        for direction in ("in", "out"):
            for size_bytes in self.job["link_sizes_bytes"]:
                samples = time_copies(self.backend, direction, size_bytes)
                self.say(link=direction, size_bytes=size_bytes, samples=samples)
        companions = [i for i, item in enumerate(self.job["items"]) if item["companion"]]
        work = self.prepare(companions[0]) if companions else None
        for first, second, first_s, second_s, together_s in time_pairs(self.backend, PAIR_BYTES, work):
            self.say(pair=[first, second], first_s=first_s, second_s=second_s, together_s=together_s)

    def windows(self) -> None:
        """Run items in time windows that all devices of the host share; an order names the item and the window."""
        from heterotask_core.profiling.load import account, is_disturbed, stolen_s

        prepared: dict[int, Any] = {}
        for line in sys.stdin:
            order = json.loads(line)
            if "prepare" in order:
                try:
                    i = order["prepare"]
                    prepared = {i: self.prepare(i)}
                    for _ in range(2):
                        prepared[i].once()
                    self.say(ready=i)
                except Exception as error:
                    self.say(error=f"{type(error).__name__}: {error}")
                continue
            samples: list[float] = []
            all_samples: list[float] = []
            undisturbed_s: list[float] = []
            time.sleep(max(0.0, order["start_s"] - time.monotonic()))
            while not all_samples or time.monotonic() < order["end_s"]:
                before = account()
                started, ended = prepared[order["item"]].once()
                # One that the window is too short for is better than none: the others computed during a part of it.
                if not all_samples or (started >= order["start_s"] and ended <= order["end_s"]):
                    took_s, lost_s = ended - started, stolen_s(before, account(), cores=self.job["cores"])
                    all_samples.append(took_s)
                    if lost_s < took_s:
                        undisturbed_s.append(took_s - lost_s)
                    if not is_disturbed(lost_s, took_s):
                        samples.append(took_s)
            if self.job["shares_cores"]:
                # Ranks that share a core take it from each other: that is what there is to measure.
                samples = all_samples
            elif len(samples) < 3 and all_samples:
                # Other load must not pass for what the devices do to each other: the time without what it took, as far
                # as that can be told.
                samples = [min(undisturbed_s)] if undisturbed_s else []
            self.say(samples=samples)


if __name__ == "__main__":
    main(sys.argv[1])
