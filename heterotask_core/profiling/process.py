"""Child processes that time something: started pinned, spoken to in JSON lines, never left behind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterotask_core.errors import ProfileError
from heterotask_core.platform.model import Device
from heterotask_core.runtime.launch.base import clean_environment, parent_guard

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POCL_MAX_PTHREAD_COUNT",
)


class HangingError(ProfileError):
    """A child gave no answer within its time limit and was ended."""


class EndedError(ProfileError):
    """A child ended before it had answered; the message says how."""


def child_environment(cores: int) -> dict[str, str]:
    """Return this process's environment and import path for a child that computes with ``cores`` threads."""
    cleaned = clean_environment(os.environ, python_path=[entry or str(Path.cwd()) for entry in sys.path])
    return cleaned | dict.fromkeys(THREAD_VARIABLES, str(max(1, cores)))


class Child:
    """``python -m heterotask_core.profiling.child`` on one device; use it with ``contextlib.closing``."""

    def __init__(self, job: Mapping[str, Any], device: Device, folder: Path) -> None:
        """Start it, to be killed when the calling thread ends; files of the job go to ``folder``."""
        self._device = device
        name = f"{device.name}-{time.monotonic_ns()}"
        self._errors = folder / f"{name}.stderr"
        job_file = folder / f"{name}.json"
        job_file.write_text(json.dumps(job))
        with self._errors.open("w") as stderr:
            self._process = subprocess.Popen(
                [*parent_guard(), sys.executable, "-m", "heterotask_core.profiling.child", str(job_file)],
                env=child_environment(int(job["cores"])),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._rest = b""

    def send(self, **order: Any) -> None:
        """Write an order; a child that has ended is noticed at the next answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def answer(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next answer, None when the child has ended well.

        Raises :class:`HangingError` when there is none within ``limit_s`` seconds (the child is ended), and
        :class:`EndedError` when it ended otherwise.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end_s = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left_s = end_s - time.monotonic()
            if left_s <= 0.0 or not select.select([descriptor], [], [], left_s)[0]:
                self.close()
                raise HangingError(f"no answer from {self._device.name} within {limit_s:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                code = self._process.wait()
                if code:
                    reason = (self._errors.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
                    raise EndedError(
                        f"timing on {self._device.name} ({self._device.model}) ended with exit code {code}: {reason}"
                    )
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
