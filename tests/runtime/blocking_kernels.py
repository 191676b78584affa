"""Kernels that take a given time, on a CPU or in the way of their device's copies."""

from __future__ import annotations

import time

from heterotask_core.kernel import Kernel, Variant


def pause(parts, output, seconds):
    time.sleep(seconds)
    output[:] = 1.0 + sum(part[0] for part in parts)


def _variants(function: str) -> tuple[Variant, ...]:
    path = f"{__name__}:{function}"
    return (Variant("host", "cpu", path), Variant("blocking", "opencl", path, on_host=True, blocking=True))


PAUSE = Kernel("pause", __name__, reads=("parts",), writes=("output",), variants=_variants("pause"))
