"""Fail in every way that the tests know, round after round, and count what is left or said wrongly.

``python benchmarks/failure_matrix.py --rounds 20``, two cases at a time, because much of a case is waiting; exit code
1 unless every count is zero. Needs root for the cases with a full disk (a small tmpfs); without, they are left out and
named.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from arguments import Parser, run_program, whole

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "runtime")]

from failure_cases import CASES, Case, launcher_files, run_case  # noqa: E402


def main() -> int:
    """Run the matrix and print a table."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=whole(), default=1)
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only these")
    parser.add_argument("--jobs", type=whole(), default=2, help="cases at a time")
    arguments = parser.parse_args()
    cases = [case for case in CASES.values() if not arguments.case or case.name in arguments.case]
    if os.geteuid() != 0:
        print("not root: left out:", ", ".join(case.name for case in cases if case.small_disk_bytes))
        cases = [case for case in cases if not case.small_disk_bytes]
        if not cases:
            parser.error("nothing is left of --case; run it as root, or name others")
    # What waits for a limit first, beside what does not.
    cases.sort(key=lambda case: not case.hangs)
    wrong: collections.Counter[str] = collections.Counter()
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    begun_s = time.monotonic()
    for number in range(1, arguments.rounds + 1):
        before = launcher_files()
        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(_timed, cases))
        found = [(case.name, what) for case, (_, all_) in zip(cases, results, strict=True) for what in all_]
        found += [("launcher", f"leak: {path}") for path in sorted(launcher_files() - before)]
        for case, (took_s, _) in zip(cases, results, strict=True):
            seconds[case.name].append(took_s)
        for name, what in found:
            wrong[what.split(":")[0]] += 1
            print(f"round {number}, {name}: {what}", flush=True)
        print(f"round {number} done, {time.monotonic() - begun_s:.0f} s", flush=True)
    print(f"{arguments.rounds} rounds of {len(cases)} cases: {sum(len(s) for s in seconds.values())} failures made")
    for name, values in seconds.items():
        print(f"  {name:20} median {np.median(values):5.1f} s, longest {max(values):5.1f} s (with the next run)")
    for kind in ("leak", "hang", "message", "slow", "store", "next run"):
        print(f"  {kind}: {wrong[kind]}")
    return int(bool(wrong))


def _timed(case: Case) -> tuple[float, list[str]]:
    """Run a case; return its seconds and what was wrong."""
    with tempfile.TemporaryDirectory(prefix="heterotask-matrix-") as folder:
        started_s = time.monotonic()
        found = run_case(case, Path(folder), quick=False)
        return time.monotonic() - started_s, found


if __name__ == "__main__":
    run_program(main)
