"""What the programs share: arguments and files are checked before anything is measured or written.

A refusal is one line on the error stream, which names the argument or the file, and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from heterotask_core.errors import HeteroTaskError
from heterotask_core.platform.cluster import find_platform

MOST = 2**31 - 1
"""Largest count: what compiled code and NumPy take everywhere."""


class RefusedError(HeteroTaskError, ValueError):
    """What was given on the command line, or a file named there, cannot be used."""


class Parser(argparse.ArgumentParser):
    """Refuses in one line; exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where the options are told."""
        self.exit(2, f"{self.prog}: {_line(message)} (options: --help)\n")


def run_program(main: Callable[[], int | None], *others: type[Exception]) -> NoReturn:
    """Run a program and end; what it raises on purpose is told without a traceback.

    Where the input is at fault (an error that is a ``ValueError``) that is one line and exit code 2, otherwise the
    message as it is and exit code 1. ``others``: errors of its own.
    """
    program = Path(sys.argv[0]).name
    try:
        raise SystemExit(main() or 0)
    except subprocess.CalledProcessError as error:
        told = (error.stderr or "").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        command = " ".join(map(str, error.cmd)) if isinstance(error.cmd, list | tuple) else error.cmd
        _end(program, f"{command} failed: {told[0]}", 1)
    except (HeteroTaskError, OSError, *others) as error:
        if isinstance(error, ValueError):
            _end(program, _line(str(error)), 2)
        _end(program, str(error), 1)


def _end(program: str, message: str, code: int) -> NoReturn:
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(code)


def _line(message: str) -> str:
    return " ".join(message.split())


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} is more than {most}")
        return value

    return parse


def number(*, positive: bool = False) -> Callable[[str], float]:
    """Return a type of arguments: finite numbers that are not negative (``positive``: nor 0)."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
        if value < 0 or (positive and value == 0):
            raise argparse.ArgumentTypeError(f"{text} must be {'above 0' if positive else '0 or more'}")
        return value

    return parse


def listed(each: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a type of arguments: comma-separated values of a type, at least one, none twice."""

    def parse(text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise argparse.ArgumentTypeError(
                f"{text!r} names nothing; give values separated by commas, or leave it out"
            )
        return list(dict.fromkeys(each(part) for part in parts))

    return parse


def among(known: Sequence[str]) -> Callable[[str], str]:
    """Return a type of arguments: a name out of some."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown; there are {', '.join(known)}")
        return text

    return parse


def devices(text: str) -> str:
    """Take devices that this machine has, as :func:`find_platform` reads them, or a platform's file."""
    try:
        find_platform(text)
    except HeteroTaskError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def file_to_read(text: str) -> Path:
    """Take a file that is there."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; name a file")
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{path}: there is no such file")
    return path


def folder_to_read(text: str) -> Path:
    """Take a folder that is there."""
    path = Path(text)
    if not text or not path.is_dir():
        what = "is not a folder; name one" if text and path.exists() else "is not there; name a folder"
        raise argparse.ArgumentTypeError(f"{text!r} {what}")
    return path


def file_to_write(text: str) -> Path:
    """Take a file that can be written, also one in a folder that is not there yet; nothing is made."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file" if text else "name a file")
    if not path.exists():
        _can_hold(path.parent)
        return path
    try:
        path.open("ab").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from None
    return path


def folder_to_write(text: str) -> Path:
    """Take a folder that files can be written into, also one that is not there yet; nothing is made."""
    path = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("name a folder")
    _can_hold(path)
    return path


def _can_hold(folder: Path) -> None:
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file, not a folder; name another")
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{there} cannot be written into: {error.strerror}") from None


class Row(BaseModel):
    """A line of JSON as a program writes it: a subclass says which keys it has; others may be there."""

    model_config = ConfigDict(extra="allow")


def read_rows(path: Path, row: type[Row], text: str | None = None) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines (``text``: its contents).

    Raises :class:`RefusedError` naming the file, the line and the key.
    """
    try:
        lines = (path.read_text(encoding="utf-8") if text is None else text).splitlines()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path} cannot be read ({error}); name a file that --out has written") from None
    for k, line in enumerate(lines, 1):
        try:
            row.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            told = f"{where}: {first['msg']}" if where else first["msg"]
            raise RefusedError(f"{path}, line {k}: {told}; name a file that --out has written") from None
    return [json.loads(line) for line in lines]
