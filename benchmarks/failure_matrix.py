"""Fail in every way that the tests know, round after round, and count what is left or said wrongly.

``python benchmarks/failure_matrix.py --rounds 20``; exit code 1 unless every count is zero. Needs root for the cases
with a full disk (a small tmpfs); without, they are left out and named.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "runtime")]

from failure_cases import CASES, run_case  # noqa: E402


def main() -> int:
    """Run the matrix and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only these")
    arguments = parser.parse_args()
    cases = [case for case in CASES.values() if not arguments.case or case.name in arguments.case]
    if os.geteuid() != 0:
        print("not root: left out:", ", ".join(case.name for case in cases if case.small_disk_bytes))
        cases = [case for case in cases if not case.small_disk_bytes]
    wrong: collections.Counter[str] = collections.Counter()
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    for number in range(arguments.rounds):
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="heterotask-matrix-") as folder:
                started_s = time.monotonic()
                found = run_case(case, Path(folder), quick=False)
                seconds[case.name].append(time.monotonic() - started_s)
            for what in found:
                wrong[what.split(":")[0]] += 1
                print(f"round {number + 1}, {case.name}: {what}", flush=True)
    print(f"{arguments.rounds} rounds of {len(cases)} cases: {sum(len(s) for s in seconds.values())} failures made")
    for name, values in seconds.items():
        print(f"  {name:20} median {np.median(values):5.1f} s, longest {max(values):5.1f} s (with the next run)")
    for kind in ("leak", "hang", "message", "slow", "store", "next run"):
        print(f"  {kind}: {wrong[kind]}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
