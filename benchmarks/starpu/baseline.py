"""The baseline as StarPU's authors would have it: calibrated models, priorities, every scheduler, a tuned beta."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from build import build
from job import Setting, Starpu

POLICIES = ("lws", "dmda", "dmdas", "dmdar", "heteroprio")
PLAIN = Setting("dmdas")
"""Quoted beside the best."""
CALIBRATING = Setting("dmda")
ENOUGH = 10
"""Samples a class and device without which StarPU does not use its model (STARPU_CALIBRATE_MINIMUM)."""
MOST_PROCESSES = 3
BETA = (0.05, 20.0)
"""Weight of predicted transfers against computation in dmda and its kin; StarPU's default is 1."""


def calibrate(starpu: Starpu, folder: Path) -> Starpu:
    """Run until StarPU has a model of every class on every device kind; return it with times for priorities.

    A class that StarPU has not tried often enough after a few processes stays without time, as it would in use.
    """
    expected: dict[str, dict[str, float]] = {}
    # Models are files of one process at a time, and nodes are equal: one node learns for all.
    alone = replace(starpu, ranks=[], binary=build())
    for _ in range(MOST_PROCESSES):
        answer = alone.run(CALIBRATING, folder, repeats=ENOUGH + 2, calibrate=1, models=True)
        expected = answer["expected"]
        if not any(math.isnan(value) for value in expected["cpu"].values()):
            break
    known = {kind: {k: v for k, v in times.items() if v > 0} for kind, times in expected.items()}
    return replace(starpu, seconds=known["cpu"], speedup=_speedup(known["cpu"], known.get("opencl", {})))


def _speedup(cpu: dict[str, float], opencl: dict[str, float]) -> dict[str, float]:
    """Return kernel → median of CPU time over OpenCL time of its classes."""
    ratios: dict[str, list[float]] = {}
    for key in cpu.keys() & opencl.keys():
        ratios.setdefault(json.loads(key)[1], []).append(cpu[key] / opencl[key])
    return {kernel: statistics.median(values) for kernel, values in ratios.items()}


def tuned(starpu: Starpu, folder: Path, *, measurements: int, progress: Callable[[str], None]) -> Setting:
    """Return ``dmdas`` with the beta at which scikit-optimize's posterior mean of the log makespan is smallest.

    The optimiser, its acquisition and the number of measured runs are those of our calibration.
    """
    from skopt import Optimizer
    from skopt.space import Real

    low, high = math.log(BETA[0]), math.log(BETA[1])
    search = Optimizer([Real(low, high)], n_initial_points=max(2, measurements // 3), random_state=0)
    found = None
    for k in range(measurements):
        point = search.ask()
        setting = Setting(PLAIN.policy, beta=math.exp(point[0]))
        answer = starpu.run(setting, folder, repeats=4)
        makespan_s = statistics.median(answer["makespan_s"][1:])
        progress(f"beta {setting.beta:.3g}: {makespan_s * 1e3:.1f} ms ({k + 1} of {measurements})")
        found = search.tell(point, math.log(makespan_s))
    assert found is not None
    model = found.models[-1] if found.models else None
    if model is None:
        return Setting(PLAIN.policy, beta=math.exp(found.x[0]))
    grid = [[low + (high - low) * k / 100] for k in range(101)]
    means = model.predict(search.space.transform(grid))
    return Setting(PLAIN.policy, beta=math.exp(min(zip(means, grid, strict=True))[1][0]))
