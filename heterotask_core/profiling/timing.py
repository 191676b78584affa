"""Timing one variant on the device of this process: cold call, warm-up until stable, samples until precise."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterotask_core.kernel import find_kernel
from heterotask_core.profiling.capture import decode_params
from heterotask_core.profiling.load import account, is_disturbed, stolen_s
from heterotask_core.profiling.memory import Placed, Sweep
from heterotask_core.profiling.samples import median_interval, settled
from heterotask_core.runtime.context import Idle
from heterotask_core.runtime.device_rank import SLEEP_S
from heterotask_core.runtime.devices.base import HOST_TO_DEVICE, Backend, Event, view

MIN_SAMPLES = 6
MAX_SAMPLES = 60
MAX_WARM_UPS = 10
STEADY = 0.05
HOPELESS = 1.5
"""A variant this much slower than another of its task is known well enough after ``MIN_SAMPLES``."""


class Prepared:
    """A variant bound to several sets of its arrays; :meth:`once` times a call on the next set."""

    def __init__(
        self,
        item: Mapping[str, Any],
        placed: Placed,
        backend: Backend,
        arena: npt.NDArray[np.uint8],
        sweep: Sweep,
        output_dir: Path,
    ) -> None:
        """Fill all sets with the captured inputs, bind, and call once: ``cold_s`` covers both, ``first_s`` the call."""
        self._placed, self._backend, self._arena, self._sweep = placed, backend, arena, sweep
        variant = find_kernel(item["module"], item["kernel"]).variant(item["variant"])
        self._pristine = {
            i: np.load(a["file"], allow_pickle=False) for i, a in enumerate(item["arguments"]) if a["file"] is not None
        }
        self._updated = [i for i, a in enumerate(item["arguments"]) if a["updated"]]
        for k in range(len(placed.sets)):
            self._fill(k, list(self._pristine))
        # A folder for each: two variants of a sink must not meet each other's files.
        params = decode_params(dict(item["params"]), Path(tempfile.mkdtemp(dir=output_dir)))
        started = time.monotonic()
        function = variant.load()
        self._launches = [backend.bind(variant, function, placed.sets[0], params, placed.scratch)]
        bound = time.monotonic()
        wait(self._launches[0](()))
        ended = time.monotonic()
        self.cold_s, self.first_s = ended - started, ended - bound
        for arguments in placed.sets[1:]:
            self._launches.append(backend.bind(variant, function, arguments, params, placed.scratch))
        self._next = 1 % len(self._launches)

    def _fill(self, k: int, positions: list[int]) -> None:
        for i in positions:
            argument = self._placed.sets[k][i]
            view(self._arena, argument)[...] = self._pristine[i]
            if self._backend.own_memory and argument.size_bytes:
                offset = argument.offset_bytes
                wait(self._backend.copy_in(offset, offset, argument.size_bytes, (), HOST_TO_DEVICE))

    def launch(self) -> Event:
        """Start a call on the next set; the caller waits for it."""
        k = self._next
        self._next = (k + 1) % len(self._launches)
        return self._launches[k](())

    def once(self) -> tuple[float, float]:
        """Return start and end (CLOCK_MONOTONIC) of a call, from the launch until its completion is seen."""
        k = self._next
        self._fill(k, self._updated)
        self._sweep(self._placed)
        started = time.monotonic()
        wait(self.launch())
        return started, time.monotonic()


def time_item(prepared: Prepared, *, sink: bool, slice_s: float, rival_s: float | None, cores: int) -> dict[str, Any]:
    """Return ``cold_s``, ``warm_ups``, ``samples`` in seconds and which of these were ``disturbed`` by other load.

    Samples are taken until the median's confidence interval is narrow, ``slice_s`` seconds have passed (twice that
    where other load leaves too few), or the variant is clearly slower than another of the same task that takes
    ``rival_s``. A sink runs once only: its sample is that call, loaded and bound before, as ranks do.
    """
    if sink:
        return {"cold_s": prepared.cold_s, "warm_ups": 0, "samples": [prepared.first_s], "disturbed": [False]}
    end_s = time.monotonic() + slice_s
    before = sample(prepared)
    warm_ups = 1
    while warm_ups < MAX_WARM_UPS and time.monotonic() < end_s:
        now = sample(prepared)
        warm_ups += 1
        steady = abs(now - before) <= STEADY * now
        before = now
        if steady:
            break
    samples: list[float] = []
    disturbed: list[bool] = []
    while len(samples) < MAX_SAMPLES:
        earlier = account()
        samples.append(sample(prepared))
        disturbed.append(is_disturbed(stolen_s(earlier, account(), cores=cores), samples[-1]))
        kept = [s for s, bad in zip(samples, disturbed, strict=True) if not bad]
        late_s = time.monotonic() - end_s
        if len(kept) >= MIN_SAMPLES:
            slow = rival_s is not None and median_interval(kept)[0] > HOPELESS * rival_s
            if slow or settled(kept) or late_s > 0.0:
                break
        elif len(samples) >= 3 and late_s > slice_s:
            break
    return {"cold_s": prepared.cold_s, "warm_ups": warm_ups, "samples": samples, "disturbed": disturbed}


def sample(prepared: Prepared) -> float:
    """Return the seconds of one call."""
    started, ended = prepared.once()
    return ended - started


def wait(event: Event) -> None:
    """Wait as a rank's loop does: a driver thread may share the core, and what that costs belongs to the time."""
    idle = Idle(SLEEP_S)
    while not event.query():
        idle.wait()
