"""StarPU's beta is tuned with as many runs as it may take."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "starpu"))

import baseline
from job import Setting


@dataclass
class Valley:
    """Jobs whose makespan is shortest with beta 4."""

    betas: list[float] = field(default_factory=list)

    def run(self, setting: Setting, folder: Path, *, repeats: int) -> dict[str, Any]:
        self.betas.append(setting.beta)
        return {"makespan_s": [9.0] + [0.1 * math.exp(math.log(setting.beta / 4.0) ** 2)] * (repeats - 1)}


def test_beta_is_found_with_as_many_runs_as_given(tmp_path: Path) -> None:
    valley, told = Valley(), []
    jobs: Any = valley
    found = baseline.tuned(jobs, tmp_path, measurements=10, progress=told.append)
    assert (len(valley.betas), len(told), found.policy) == (10, 10, "dmdas")
    assert all(baseline.BETA[0] <= beta <= baseline.BETA[1] for beta in valley.betas)
    assert 2.0 < found.beta < 8.0


def test_with_few_runs_the_best_of_them_counts(tmp_path: Path) -> None:
    valley = Valley()
    jobs: Any = valley
    found = baseline.tuned(jobs, tmp_path, measurements=1, progress=lambda line: None)
    assert found.beta == valley.betas[0]
