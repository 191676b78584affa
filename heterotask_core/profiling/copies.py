"""Timing copies between arena and device, alone and together with other work of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from heterotask_core.profiling.timing import Prepared, wait
from heterotask_core.runtime.devices.base import DEVICE_TO_HOST, HOST_TO_DEVICE, Backend, Event

SAMPLES = 9
LARGE_BYTES = 16 << 20
LARGE_SAMPLES = 4
WARM_UPS = 2
PAIR_SAMPLES = 5


def time_copies(backend: Backend, direction: str, size_bytes: int) -> list[float]:
    """Return seconds of copies ``in`` (arena to device) or ``out``; the first ones (map, allocate) are left out."""
    samples = []
    for _ in range(WARM_UPS + (LARGE_SAMPLES if size_bytes >= LARGE_BYTES else SAMPLES)):
        started = time.monotonic()
        wait(_copy(backend, direction, size_bytes))
        samples.append(time.monotonic() - started)
    return samples[WARM_UPS:]


def time_pairs(backend: Backend, size_bytes: int, work: Prepared | None) -> list[tuple[str, str, float, float, float]]:
    """Return (first, second, first alone, second alone, both at once) in seconds for every two lanes of a device.

    Lanes are "in", "out" (copies of about ``size_bytes``) and, if there is ``work`` to do, "compute". Copies are
    repeated until they take about as long as the kernel: only things of similar length can hide behind each other.
    """
    starts: dict[str, Callable[[], list[Event]]] = {
        "in": lambda: [_copy(backend, "in", size_bytes)],
        "out": lambda: [_copy(backend, "out", size_bytes, behind=True)],
    }
    if work is not None:
        kernel_s, copy_s = _median(lambda: [work.launch()]), _median(starts["in"])
        calls = max(1, min(50, round(copy_s / kernel_s)))
        starts["compute"] = lambda: [work.launch() for _ in range(calls)]
        copies = max(1, min(50, round(kernel_s / copy_s)))
        starts["in"] = lambda: [_copy(backend, "in", size_bytes) for _ in range(copies)]
        starts["out"] = lambda: [_copy(backend, "out", size_bytes, behind=True) for _ in range(copies)]
    alone = {name: _median(start) for name, start in starts.items()}
    found = []
    for first, second in (("in", "out"), ("compute", "in"), ("compute", "out")):
        if first in starts and second in starts:
            together = _median(_both(starts[first], starts[second]))
            found.append((first, second, alone[first], alone[second], together))
    return found


def _both(first: Callable[[], list[Event]], second: Callable[[], list[Event]]) -> Callable[[], list[Event]]:
    return lambda: [*first(), *second()]


def _median(start: Callable[[], Sequence[Event]]) -> float:
    samples = []
    for _ in range(1 + PAIR_SAMPLES):
        started = time.monotonic()
        for event in start():
            wait(event)
        samples.append(time.monotonic() - started)
    return float(np.median(samples[1:]))


def _copy(backend: Backend, direction: str, size_bytes: int, *, behind: bool = False) -> Event:
    # Copies out go to another place than copies in come from, or the two could not overlap for that alone.
    offset = size_bytes if behind else 0
    if direction == "in":
        return backend.copy_in(offset, offset, size_bytes, (), HOST_TO_DEVICE)
    return backend.copy_out(offset, offset, size_bytes, (), DEVICE_TO_HOST)
