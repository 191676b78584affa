"""Task Bench's dependence patterns and a compute-bound kernel, for HeteroTask and for what it is compared with.

Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance", SC 2020.
A graph has ``steps`` rows of ``width`` points; a point takes the outputs of some points of the row before.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from typing import Any

import numba
import numpy as np

from heterotask_core.kernel import Kernel, Variant

RADIX = 5
"""Points that a point takes at most in the patterns nearest, spread and random_nearest."""
PATTERNS = ("stencil_1d", "nearest", "spread", "random_nearest", "fft", "tree", "no_dependencies", "chain")
"""Task Bench's, and ``chain``: one task a row, by turns on two points; its step is the latency one way."""


def points(pattern: str, step: int, width: int) -> range:
    """Return the points of a row: a tree doubles until it is ``width`` wide, a chain has its first or last."""
    if pattern == "chain":
        point = step % 2 * (width - 1)
        return range(point, point + 1)
    return range(min(width, 1 << min(step, 30))) if pattern == "tree" else range(width)


def dependencies(pattern: str, step: int, point: int, width: int) -> list[int]:
    """Return the points of row ``step`` − 1 that ``point`` takes, ascending; none in row 0."""
    if step == 0 or pattern == "no_dependencies":
        return []
    if pattern == "chain":
        return [width - 1 - point]
    nearest = range(max(0, point - (RADIX - 1) // 2), min(width - 1, point + RADIX // 2) + 1)
    if pattern == "stencil_1d":
        return list(range(max(0, point - 1), min(width - 1, point + 1) + 1))
    if pattern == "nearest":
        return list(nearest)
    if pattern == "spread":
        shift = step % RADIX
        return sorted({(point + i * width // RADIX + (shift if i else 0)) % width for i in range(RADIX)})
    if pattern == "random_nearest":
        rng = random.Random(f"{step} {point}")
        return sorted({p for p in nearest if rng.random() < 0.5} | {point})
    if pattern == "fft":
        distance = 1 << (step - 1) % max(1, (width - 1).bit_length())
        return [p for p in (point - distance, point, point + distance) if 0 <= p < width]
    if pattern == "tree":
        return [point // 2 if len(points(pattern, step - 1, width)) < width else point]
    raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(PATTERNS)}")


@numba.njit(cache=True)
def work(value, iterations):
    """Return a float after ``iterations`` dependent multiply-adds; ``value`` must not be known when compiling."""
    for _ in range(iterations):
        value = value * 0.999999 + 1e-6
    return value


# One function an arity: arrays are bound one by one, never through a list.
@numba.njit(cache=True)
def step0(output, iterations):
    """First row: every output says 0."""
    output[:] = 0.0
    output[1] = work(output[0], iterations)


@numba.njit(cache=True)
def step1(in0, output, iterations):
    """Later rows: the outputs' first element counts the rows; −1 where inputs disagree."""
    output[:] = in0[0] + 1.0
    output[1] = work(output[0], iterations)


@numba.njit(cache=True)
def step2(in0, in1, output, iterations):
    """Two inputs."""
    output[:] = in0[0] + 1.0 if in0[0] == in1[0] else -1.0
    output[1] = work(output[0], iterations)


@numba.njit(cache=True)
def step3(in0, in1, in2, output, iterations):
    """Three inputs."""
    output[:] = in0[0] + 1.0 if in0[0] == in1[0] == in2[0] else -1.0
    output[1] = work(output[0], iterations)


@numba.njit(cache=True)
def step4(in0, in1, in2, in3, output, iterations):
    """Four inputs."""
    output[:] = in0[0] + 1.0 if in0[0] == in1[0] == in2[0] == in3[0] else -1.0
    output[1] = work(output[0], iterations)


@numba.njit(cache=True)
def step5(in0, in1, in2, in3, in4, output, iterations):
    """Five inputs."""
    output[:] = in0[0] + 1.0 if in0[0] == in1[0] == in2[0] == in3[0] == in4[0] else -1.0
    output[1] = work(output[0], iterations)


FUNCTIONS = (step0, step1, step2, step3, step4, step5)


def future_task(iterations, doubles, *inputs):
    """Do what the kernels do, for systems that move values themselves."""
    output = np.empty(doubles)
    FUNCTIONS[len(inputs)](*inputs, output, iterations)
    return output


def _kernel(arity: int) -> Kernel:
    return Kernel(
        f"step{arity}",
        __name__,
        reads=tuple(f"in{i}" for i in range(arity)),
        writes=("output",),
        variants=(Variant("numba", "cpu", f"{__name__}:step{arity}", requires=("numba",), warm_up=True),),
    )


STEP0, STEP1, STEP2, STEP3, STEP4, STEP5 = KERNELS = tuple(_kernel(arity) for arity in range(6))


def seconds_per_iteration(processes: int) -> float:
    """Return the kernel's time an iteration while ``processes`` compute at once, as ranks do: the mean of medians."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results = context.SimpleQueue()
    running = [context.Process(target=_time_work, args=(start, results)) for _ in range(processes)]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            raise SystemExit(f"timing the kernel failed: a process ended with exit code {process.exitcode}")
    return statistics.mean(results.get() for _ in running)


def _time_work(start: Any, results: Any) -> None:
    work(1.0, 10)
    start.wait()
    times = []
    for _ in range(50):
        begin_s = time.perf_counter()
        work(1.0, 1_000_000)
        times.append(time.perf_counter() - begin_s)
    results.put(statistics.median(times) / 1_000_000)
