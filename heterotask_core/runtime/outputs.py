"""The result files that a program names, before and after a run: can they be written, and which were."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from heterotask_core.errors import LaunchError
from heterotask_core.files import obstacle
from heterotask_core.program.model import Program

_FILE = "outputs.json"


@dataclass(frozen=True)
class Outputs:
    """``before``: name → [device, inode, time of change in ns, bytes] of what stood there; empty if nothing did."""

    folder: Path
    before: dict[str, list[int]]

    @staticmethod
    def of(program: Program, folder: Path) -> Outputs:
        """Look at the places of all results in ``folder``, which is made if it is missing.

        Raises:
            LaunchError: the folder cannot be made, or a place holds something else than a file: the kernel would wait
                for whoever reads a FIFO, and be taken for one that hangs.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise LaunchError(f"{folder} is a file, results need a folder; remove it, or name another") from None
        except OSError as error:
            raise LaunchError(f"{folder}: the folder for results cannot be made: {error.strerror}") from error
        named: dict[str, int] = {}
        for index, call in enumerate(program.calls):
            for value in call.params.values():
                if isinstance(value, dict) and set(value) == {"output"}:
                    named.setdefault(str(value["output"]), index)
        for name, index in named.items():
            path = folder / name
            # Folders inside of it are the kernel's affair.
            reason = obstacle(path) if os.path.lexists(path) else ""
            if reason:
                task = program.task_names[program.task_call.tolist().index(index)]
                raise LaunchError(f"{path}: task {task!r} cannot write its result there: {reason}")
        return Outputs(folder.resolve(), {name: _state(folder / name) for name in named})

    def written(self) -> list[Path]:
        """Return the results that this run has written, wholly or not: ordinary files in the folder or below it.

        Not among them is what a link leads to, or what stands there as it stood before.
        """
        return [
            path
            for name, before in self.before.items()
            if (now := _state(path := self.folder / name)) and now != before
            if path.parent.resolve().is_relative_to(self.folder)
        ]

    def save(self, job: Path) -> None:
        """Write ``outputs.json`` into the folder of a job."""
        (job / _FILE).write_text(json.dumps({"folder": str(self.folder), "before": self.before}))

    @staticmethod
    def load(job: Path) -> Outputs:
        """Read ``outputs.json``."""
        values = json.loads((job / _FILE).read_text())
        return Outputs(Path(values["folder"]), values["before"])


def _state(path: Path) -> list[int]:
    try:
        found = path.lstat()
    except OSError:
        return []
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        return []
    return [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size]
