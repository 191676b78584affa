"""What a calibration has done so far, on disk before it does anything more: one JSON line a step.

A step is a plan (overheads → program key and prediction) or a measurement (makespans of a program, its trace in
a Parquet file beside). A line cut off by a kill is dropped; the step it belonged to is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from heterotask_core.errors import CalibrationError, StoreError
from heterotask_core.profiling.costs import Overheads
from heterotask_core.tables import TRACE, check_table, read_table

FORMAT = "heterotask-calibration-1"


class Journal:
    """The steps of one calibration in ``directory``, replayed in order on resume.

    Raises :class:`CalibrationError` when ``directory`` holds a calibration and ``resume`` is false, or one made
    with other settings; :class:`StoreError` when it holds something else.
    """

    def __init__(self, directory: Path, *, settings: Mapping[str, Any], resume: bool) -> None:
        self.directory = directory
        self._path = directory / "journal.jsonl"
        self._cursor = 0
        directory.mkdir(parents=True, exist_ok=True)
        head = {"format": FORMAT, **settings}
        self._steps = self._load(head) if self._path.exists() else []
        if self._steps and not resume:
            raise CalibrationError(
                f"{directory} holds an unfinished or earlier calibration; resume it (--resume) or use another directory"
            )
        if not self._steps:
            self._write("w", head)
        else:
            # Cuts off what a kill left of a line, so that the next line starts on its own.
            text = "".join(json.dumps(step) + "\n" for step in [head, *self._steps])
            write_atomically(self._path, text)

    def replay(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return the recorded next step, or None when the record ends here.

        Raises :class:`CalibrationError` when the record has another step at this place.
        """
        if self._cursor == len(self._steps):
            return None
        step = self._steps[self._cursor]
        if step["step"] != kind or step["key"] != key:
            raise CalibrationError(
                f"{self._path}: step {self._cursor} is {step['step']} {step['key']}, this calibration would {kind} "
                f"{key}; it was made by another version: start again in another directory"
            )
        self._cursor += 1
        return step

    def append(
        self, kind: str, key: str, values: Mapping[str, Any], *, trace: pl.DataFrame | None = None
    ) -> dict[str, Any]:
        """Add a step and return it; it is on disk when this returns, its trace before the line that names it."""
        step = {"step": kind, "key": key, **values}
        if trace is not None:
            name = f"trace-{self._cursor:05d}.parquet"
            check_table(trace, TRACE, what="trace of a measurement")
            temporary = self.directory / f".{name}"
            trace.write_parquet(temporary)
            temporary.replace(self.directory / name)
            step["trace"] = name
        self._write("a", step)
        self._steps.append(step)
        self._cursor += 1
        return step

    def trace(self, name: str) -> pl.DataFrame:
        """Return a recorded trace."""
        return read_table(self.directory / name, TRACE, remedy="start the calibration again in another directory")

    def _write(self, mode: str, values: Mapping[str, Any]) -> None:
        with self._path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _load(self, head: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n")
            # What follows the last newline is empty, or a line that a kill cut off.
            found, *steps = [json.loads(line) for line in lines[:-1]] or [dict(head)]
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._path} is damaged ({error}); delete it and calibrate again") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise StoreError(f"{self._path} is no record of a calibration; delete it, or use another directory")
        if not all(isinstance(step, dict) and {"step", "key"} <= set(step) for step in steps):
            raise StoreError(f"{self._path} is damaged (a line is no step); delete it and calibrate again")
        different = sorted(k for k in set(found) | set(head) if found.get(k) != head.get(k))
        if different:
            values = ", ".join(f"{k} {found.get(k)!r} → {head.get(k)!r}" for k in different)
            raise CalibrationError(f"{self._path} was made with other settings ({values}); resume with the same ones")
        return steps


def recorded_incumbent(directory: Path) -> Overheads | None:
    """Return the overheads that the calibration in ``directory`` began with; None where there is no whole line.

    Raises :class:`StoreError` for a damaged record.
    """
    path = directory / "journal.jsonl"
    try:
        head, end, _ = path.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return None
    try:
        return Overheads(**json.loads(head)["incumbent"]) if end else None
    except (ValueError, KeyError, TypeError, CalibrationError) as error:
        raise StoreError(f"{path} is damaged ({error}); delete {directory} and calibrate again") from error


def overheads_to_json(overheads: Overheads) -> dict[str, Any]:
    """Return the overheads as JSON values."""
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in asdict(overheads).items()}


def overheads_key(overheads: Overheads) -> str:
    """Return a canonical text of the overheads."""
    return json.dumps(overheads_to_json(overheads), sort_keys=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at ``path`` by one holding ``text``; a kill leaves the old or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def as_floats(values: Sequence[float]) -> list[float]:
    """Return plain floats, which JSON takes."""
    return [float(v) for v in np.asarray(values, np.float64)]
