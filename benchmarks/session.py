"""What a session costs a program: from hand-over to the first of 1,000 tasks, and everything but the tasks.

python benchmarks/session.py [--runs N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from arguments import Parser, run_program, whole
from metg import make_platform, make_program, with_iterations

from heterotask_core.runtime.job import execute
from heterotask_core.runtime.session import Session

STEPS = 500
"""Two tasks each."""


def main() -> None:
    """Print a line for one node (two devices) and for two (a device each, and as many transfers as tasks)."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=whole(), default=15)
    options = parser.parse_args()
    for nodes in (1, 2):
        platform = make_platform(nodes)
        program = make_program("stencil_1d", 2, STEPS, 2, platform)
        with tempfile.TemporaryDirectory() as name, Session(platform) as session:
            folder = Path(name)
            session.run(program, output_dir=folder)
            first_ms, rest_ms = [], []
            for iterations in range(options.runs):
                result = session.run(with_iterations(program, iterations), output_dir=folder)
                assert session.first_task_s is not None
                first_ms.append(1e3 * session.first_task_s)
                rest_ms.append(1e3 * (result.completion_s - result.makespan_s[0]))
            alone_ms = 1e3 * execute(program, platform, output_dir=folder).completion_s
        cells = [f"{statistics.median(ms):.1f} ({min(ms):.1f} to {max(ms):.1f})" for ms in (first_ms, rest_ms)]
        print(
            f"{nodes} node(s), {program.n_ops} ops, ms, median (range) of {options.runs}: "
            f"to the first task {cells[0]}, all but the tasks {cells[1]}; a launch of its own {alone_ms:.0f}"
        )


if __name__ == "__main__":
    run_program(main)
