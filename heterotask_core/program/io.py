"""Programs on disk: ``program.npz`` (arrays, never pickled) and ``program.json`` (the rest) in one folder.

Needs NumPy alone, so a rank loads what it runs without the planner.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import StoreError
from heterotask_core.program.model import KernelCall, Program, RankRole

_FORMAT = 1
_ARRAYS = "program.npz"
_REST = "program.json"


def save_program(program: Program, folder: Path) -> None:
    """Write ``program`` into ``folder`` (made if missing); an older program there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    rest: dict[str, Any] = {"format": _FORMAT}
    for f in fields(Program):
        value = getattr(program, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value
        elif f.name in ("ranks", "calls"):
            rest[f.name] = [asdict(entry) for entry in value]
        else:
            rest[f.name] = value
    temporary = folder / f"{_ARRAYS}.part"
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
    temporary.replace(folder / _ARRAYS)
    temporary = folder / f"{_REST}.part"
    temporary.write_text(json.dumps(rest, sort_keys=True))
    temporary.replace(folder / _REST)


def load_program(folder: Path) -> Program:
    """Read the program in ``folder``.

    Raises:
        StoreError: a file is missing, damaged, or of another format.
    """
    try:
        rest = json.loads((folder / _REST).read_text())
        # Opened here: NumPy leaves the file open when it is no archive.
        with (folder / _ARRAYS).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if rest.pop("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}")
        values = {**rest, **arrays}
        values["ranks"] = tuple(RankRole(**{**r, "core_ids": tuple(r["core_ids"])}) for r in rest["ranks"])
        values["calls"] = tuple(KernelCall(**c) for c in rest["calls"])
        values["item_shapes"] = tuple(tuple(shape) for shape in rest["item_shapes"])
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        return Program(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(f"{folder}: no readable program here ({error}); delete this folder and plan again") from error
