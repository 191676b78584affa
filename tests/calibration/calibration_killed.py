"""Run a calibration on the toy machine that kills itself (SIGKILL) again and again, until it comes to its end.

    python calibration_killed.py FOLDER after|within

Each attempt is a process of its own and dies at its first new step: when it is on disk, or within its line.
Every run that the machine makes is a line in FOLDER/measured.
"""

import os
import signal
import sys
from pathlib import Path

from calibration_toy import ToyEvaluator

from calibration.journal import Journal
from calibration.loop import calibrate
from heterotask_core.profiling.costs import Overheads

HIDDEN = Overheads(dispatch_s={"opencl": 3e-3})


class Fake(ToyEvaluator):
    """Writes down what it runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(HIDDEN)
        self.folder = folder

    def measure(self, program, repeats):
        with (self.folder / "measured").open("a") as file:
            file.write(f"{repeats}\n")
        return super().measure(program, repeats)


def attempt(folder: Path, how: str) -> None:
    """Calibrate; die at the first step that is new."""
    write = Journal._write

    def dying(journal, mode, values):
        if mode == "w":
            return write(journal, mode, values)
        if how == "within":
            with journal._path.open("a") as file:
                file.write('{"step": "run", "key": "cut o')
        else:
            write(journal, mode, values)
        os.kill(os.getpid(), signal.SIGKILL)

    Journal._write = dying
    calibrate(Fake(folder), record_dir=folder / "journal", seed=2, max_evaluations=3, resume=True)


def main(folder: Path, how: str) -> None:
    """Start attempts until one ends by itself, or a few of those that die within a line."""
    folder.mkdir(parents=True)
    for n in range(500):
        # Everything is imported before: a process that only forks starts at once.
        child = os.fork()
        if child == 0:
            attempt(folder, how if how == "after" or n % 10 == 5 else "after")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(n, os.waitstatus_to_exitcode(status))
            return
    raise SystemExit("it never came to its end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
