"""Task granularity: makespans of both sides against tile size, down to tasks of a few microseconds.

    python benchmarks/starpu/sweep.py [--app heat] [--devices cpu:2] [--tiles 512 256 128 64] [--rounds 5]

The same problem is cut into smaller and smaller tiles. Printed are the median task of the most frequent kernel, both
sides' makespans (StarPU's best scheduler at that tile) and what they have in common: the ratio at equal tiles, and with
each side at its own best tile. Where the makespan rises again, a runtime's own work has begun to dominate.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from build import install
from cases import OURS, Case, parse_nodes
from checks import devices_of_both, run_case_program, shared

from heterotask_core.apps import find_application, param_text, parse_params

PROBLEMS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "heat": ("tile", {"size": 1024, "steps": 20}, (512, 256, 128, 64)),
    "cholesky": ("tile", {"size": 2048}, (512, 256, 128, 64)),
    "kmeans": ("block", {"picture": "china", "iterations": 10}, (131_072, 32_768, 8_192, 2_048)),
    "canny": ("tile", {"size": 1024}, (512, 256, 128, 64)),
    "mosaic": ("tile", {"size": 512, "count": 24}, (512, 256, 128)),
}
"""Application → the parameter that says how large a tile is, the others, and its values."""


def frequent_task_s(case: Case) -> float:
    """Return the median seconds, over classes, of the kernel with the most tasks, by StarPU's calibration."""
    counts = Counter(task.kernel.name for task in case.ours.workflow.graph)
    kernel = counts.most_common(1)[0][0]
    return statistics.median(s for key, s in case.starpu.seconds.items() if json.loads(key)[1] == kernel)


def main() -> int:
    """Print a line a tile size."""
    parser = shared.Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--app", default="heat", choices=list(PROBLEMS))
    parser.add_argument("--devices", type=devices_of_both, default="cpu:2")
    parser.add_argument("--tiles", type=shared.whole(), nargs="+")
    parser.add_argument("--rounds", type=shared.whole(), default=5)
    arguments = parser.parse_args()
    name, params, tiles = PROBLEMS[arguments.app]
    app = find_application(arguments.app)
    for tile in arguments.tiles or tiles:
        parse_params(app, [param_text(app, key, value) for key, value in {**params, name: tile}.items()])
    install(mpi=parse_nodes(arguments.devices)[0] > 1)
    best: dict[str, float] = {}
    print(f"{arguments.app} {params} on {arguments.devices}; milliseconds, medians")
    print(f"{name:>8} {'tasks':>7} {'task us':>8} {OURS:>11} {'StarPU':>8} {'its best':>11} {'ours/it':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for tile in arguments.tiles or tiles:
            case = Case(arguments.app, {**params, name: tile}, arguments.devices, Path(folder) / str(tile), 0)
            case.prepare(print)
            times = [{label: case.several(label)[0] for label in case.sides} for _ in range(arguments.rounds)]
            case.check()
            spans = {label: statistics.median(each[label] for each in times) for label in case.sides}
            label = min((x for x in spans if x != OURS), key=lambda x: spans[x])
            for side, value in ((OURS, spans[OURS]), ("StarPU", spans[label])):
                best[side] = min(best.get(side, value), value)
            print(
                f"{tile:8} {len(case.ours.workflow.graph):7} {frequent_task_s(case) * 1e6:8.1f} "
                f"{spans[OURS] * 1e3:11.1f} {spans[label] * 1e3:8.1f} {label:>11} {spans[OURS] / spans[label]:8.3f}",
                flush=True,
            )
    ours_s, starpu_s = best[OURS], best["StarPU"]
    print(f"each at its own best: {ours_s * 1e3:.1f} and {starpu_s * 1e3:.1f}, ratio {ours_s / starpu_s:.3f}")
    return 0


if __name__ == "__main__":
    run_case_program(main)
