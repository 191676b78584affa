"""A plan for a terminal: how good it is, who is busy, what moves, and a Gantt chart of characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase

import numpy as np

from heterotask_core.planning.bounds import bounds
from heterotask_core.planning.memory import peak_bytes
from heterotask_core.planning.problem import Problem
from heterotask_core.planning.schedule import Schedule

WIDTH = 80
MOST_LANES = 64
MOST_PER_CENT = 1000
"""Per cent above the optimum that are said as such."""
Bar = tuple[str, str, float, float]
"""(lane, kernel, start in seconds, finish in seconds)."""


def plan_lines(problem: Problem, schedule: Schedule) -> Iterable[str]:
    """Yield the summary: makespan and bounds, busy shares by device, bytes by link, peaks by memory."""
    span = schedule.makespan_s
    yield f"{problem.name}: {schedule.planner} makespan {span:.6g} s, {above_text(schedule.above_optimal())}"
    if parts := bounds(problem):
        yield "  lower bounds: " + ", ".join(f"{name} {value:.6g} s" for name, value in parts.items())
    busy = np.zeros(problem.n_devices)
    np.add.at(busy, schedule.task_device, schedule.task_finish_s - schedule.task_start_s)
    count = np.bincount(schedule.task_device, minlength=problem.n_devices)
    for d in np.flatnonzero(count)[:MOST_LANES]:
        yield f"  {problem.device_names[d]:14} busy {100 * busy[d] / max(span, 1e-300):5.1f} %, {count[d]} tasks"
    if (count > 0).sum() > MOST_LANES:
        yield f"  … and {(count > 0).sum() - MOST_LANES} more devices"
    idle = int((count == 0).sum())
    if idle:
        yield f"  {idle} device(s) without a task"
    moved = schedule.link_bytes(problem)
    times = np.zeros(len(moved))
    np.add.at(times, schedule.transfer_link, schedule.transfer_finish_s - schedule.transfer_start_s)
    for x in np.argsort(-moved, kind="stable")[:MOST_LANES]:
        if moved[x] > 0:
            share = 100 * times[x] / max(span, 1e-300)
            yield f"  {link_name(problem, x)}: {_bytes(moved[x])} moved, busy {share:.1f} %"
    yield f"  {_bytes(moved.sum())} moved in {len(schedule.transfer_version)} transfers"
    for m in np.unique(schedule.buffers.memory):
        live, end = peak_bytes(schedule.buffers, int(m))
        capacity = int(problem.memory_capacity_bytes[m])
        name = problem.memory_names[m]
        yield f"  memory {name}: peak {_bytes(live)} in use, up to {_bytes(end)} of {_bytes(capacity)}"


def link_name(problem: Problem, link: int) -> str:
    """Return the ends of a link."""
    return f"{problem.memory_names[problem.link_source[link]]} → {problem.memory_names[problem.link_target[link]]}"


def above_text(above: float | None) -> str:
    """Return how far from optimal a plan can be; as a factor where a percentage would be a long number."""
    if above is None:
        return "no lower bound"
    if above > MOST_PER_CENT / 100:
        return f"at most {1 + above:.3g} times the optimum"
    return "proven optimal" if above <= 1e-6 else f"at most {100 * above:.1f} % above optimal"


def schedule_bars(problem: Problem, schedule: Schedule) -> list[Bar]:
    """Return a bar a task on its device and a bar a transfer on its link, devices first."""
    kernels = [problem.class_names[c].split("#")[0] or "task" for c in problem.task_class]
    tasks = np.argsort(schedule.task_device, kind="stable").tolist()
    moves = np.argsort(schedule.transfer_link, kind="stable").tolist()
    return [
        *(
            (
                problem.device_names[schedule.task_device[t]],
                kernels[t],
                float(schedule.task_start_s[t]),
                float(schedule.task_finish_s[t]),
            )
            for t in tasks
        ),
        *(
            (
                link_name(problem, schedule.transfer_link[i]),
                "copy",
                float(schedule.transfer_start_s[i]),
                float(schedule.transfer_finish_s[i]),
            )
            for i in moves
        ),
    ]


def gantt_lines(bars: Sequence[Bar], *, width: int = WIDTH) -> Iterable[str]:
    """Yield a row a lane in order of appearance: each column shows what ran longest in it, ``.`` where idle."""
    span = max((finish for *_, finish in bars), default=0.0)
    if span <= 0:
        return
    kernels = sorted({kernel for _, kernel, _, _ in bars if kernel != "copy"})
    sign = {kernel: ascii_uppercase[i % 26] for i, kernel in enumerate(kernels)} | {"copy": "="}
    rows: dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {}
    names = [*kernels, "copy"]
    edges = np.linspace(0.0, span, width + 1)
    for lane, kernel, start, finish in bars:
        row = rows.setdefault(lane, np.zeros((len(names), width)))
        row[names.index(kernel)] += np.clip(np.minimum(edges[1:], finish) - np.maximum(edges[:-1], start), 0.0, None)
    label = min(24, max(len(lane) for lane in rows))
    for lane, row in list(rows.items())[:MOST_LANES]:
        most, total = row.argmax(axis=0), row.sum(axis=0)
        cells = [sign[names[k]] if t > 0.25 * span / width else "." for k, t in zip(most, total, strict=True)]
        yield f"{lane[:label]:{label}} |{''.join(cells)}|"
    if len(rows) > MOST_LANES:
        yield f"… and {len(rows) - MOST_LANES} more lanes"
    yield f"{'':{label}}  0 s{f'{span:.4g} s':>{width - 3}}"
    yield "  ".join(f"{sign[k]} {k}" for k in kernels) + "  = transfer"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
