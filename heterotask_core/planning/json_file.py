"""JSON files from outside: read within bounds of memory, checked value by value, written completely or not at all.

The readers take the JSON path of the value (``$.tasks[3].reads``) and raise
:class:`~heterotask_core.errors.InstanceError` with it.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from heterotask_core.errors import InstanceError
from heterotask_core.files import whole_file

MAX_BYTES = 256 << 20
"""Largest file, before and after decompression: a million tasks fit."""
MAX_VALUES = 30_000_000
"""Most values in a file: what is small on disk may be large as objects (``[[],[],…``)."""
MAX_NUMBER = 1e100
"""Largest number; sums and quotients of such numbers are finite."""
_CHUNK = 1 << 20
_CONSTANT = re.compile(rb'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)', re.DOTALL)
"""Strings, which may hold anything, and what is no number."""


def load_json(path: Path) -> Any:
    """Return the parsed file (gzipped if it ends in ``.gz``).

    Raises :class:`InstanceError` naming the file: unreadable, truncated, too large (also when decompressed), not JSON,
    a key twice in an object, NaN or Infinity.
    """
    path = Path(path)

    def constant(name: str) -> NoReturn:
        at = next((m.start() for m in _CONSTANT.finditer(raw) if m[1]), 0)
        line, column = raw.count(b"\n", 0, at) + 1, at - raw.rfind(b"\n", 0, at)
        raise InstanceError(f"{path}: line {line}, column {column}: {name}; every number must be finite")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            raise _TwiceError(next(key for key in names if names.count(key) > 1))
        return found

    try:
        raw = _read(path)
        return json.loads(raw, parse_constant=constant, object_pairs_hook=unique)
    except _TwiceError as error:
        key = error.args[0]
        line = _line_of_second(raw.decode(json.detect_encoding(raw)), key)
        raise InstanceError(f"{path}: line {line}: an object holds the key {shown(key)} twice; keep one") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InstanceError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InstanceError):
            raise
        raise InstanceError(f"{path}: not JSON ({error})") from error


class _TwiceError(Exception):
    """An object holds a key twice."""


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
"""Strings and the ends of objects."""
_COLON = re.compile(r"\s*:")


def _line_of_second(document: str, key: str) -> int:
    """Return the line on which the first object that holds ``key`` twice has it again."""
    counts: list[int] = []
    for token in _TOKEN.finditer(document):
        if token[0] == "{":
            counts.append(0)
        elif token[0] == "}":
            counts.pop()
        elif _COLON.match(document, token.end()) and json.loads(token[0], strict=False) == key:
            counts[-1] += 1
            if counts[-1] > 1:
                return document.count("\n", 0, token.start()) + 1
    return 1


def _read(path: Path) -> bytearray:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InstanceError(f"{path}: {size} bytes, more than the limit of {MAX_BYTES}; split the problem")
    raw = bytearray()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            raw += chunk
            if len(raw) > MAX_BYTES:
                raise InstanceError(f"{path}: more than {MAX_BYTES} bytes when read; split the problem")
    # A comma or an opening bracket for every value but the first.
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise InstanceError(f"{path}: more than {MAX_VALUES} values; split the problem")
    return raw


def write_json(path: Path, document: Any) -> None:
    """Write a file (gzipped if it ends in ``.gz``): completely or not at all. Raises :class:`InstanceError`."""
    path = Path(path)
    raw = json.dumps(document, allow_nan=False).encode()
    try:
        with whole_file(path) as file:
            file.write(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    except OSError as error:
        raise InstanceError(f"{path}: cannot be written: {error.strerror}") from error


def object_of(value: Any, where: str, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Return an object, whose keys are among ``keys``."""
    if not isinstance(value, dict):
        raise InstanceError(f"{where}: must be an object, is {shown(value)}")
    if keys is not None and not value.keys() <= set(keys):
        unknown = next(k for k in value if k not in keys)
        raise InstanceError(f"{where}: unknown key {shown(unknown)}; there are {', '.join(keys)}")
    return value


def rows_of(document: dict[str, Any], key: str, keys: Collection[str]) -> list[dict[str, Any]]:
    """Return the list of objects ``$.key`` (absent: empty)."""
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise InstanceError(f"$.{key}: must be a list of objects, is {shown(rows)}")
    return [object_of(row, f"$.{key}[{i}]", keys) for i, row in enumerate(rows)]


def number(value: Any, where: str, *, positive: bool = False) -> float:
    """Return a finite number that is not negative (``positive``: and not 0)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise InstanceError(f"{where}: {shown(value)} is not a finite number")
    if value < 0 or (positive and value == 0):
        raise InstanceError(f"{where}: {shown(value)} must be {'above 0' if positive else '0 or more'}")
    if value > MAX_NUMBER:
        raise InstanceError(f"{where}: {shown(value)} is more than {MAX_NUMBER:g}")
    if positive and value < 1.0 / MAX_NUMBER:
        raise InstanceError(f"{where}: {shown(value)} is less than {1.0 / MAX_NUMBER:g}")
    return float(value)


def whole_bytes(value: Any, where: str) -> int:
    """Return a whole number of bytes; up to 2^53, so that times computed from it are exact."""
    size = number(value, where)
    if not math.floor(size) == size <= 2**53:
        raise InstanceError(f"{where}: {shown(value)} is not a whole number of bytes up to 2^53")
    return int(value)


def text(row: dict[str, Any], key: str, where: str) -> str:
    """Return the string ``row[key]``."""
    value = row.get(key)
    if not isinstance(value, str):
        raise InstanceError(f"{where}.{key}: must be a string, is {shown(value) if key in row else 'missing'}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InstanceError(f"{where}.{key}: {shown(value)} holds half a character") from None
    return value


def strings(row: dict[str, Any], key: str, where: str, *, one: bool = False) -> list[str]:
    """Return the list of different strings ``row[key]`` (absent or null: empty; ``one``: a single string also)."""
    value = row.get(key)
    if value is None:
        return []
    if one and isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise InstanceError(f"{where}.{key}: must be a list of strings, is {shown(value)}")
    if len(set(value)) != len(value):
        twice = next(x for x in value if value.count(x) > 1)
        raise InstanceError(f"{where}.{key}: names {shown(twice)} twice")
    return value


def names(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    """Return name → index of the rows of ``$.key``; names differ."""
    index: dict[str, int] = {}
    for i, row in enumerate(rows):
        name = text(row, "name", f"$.{key}[{i}]")
        if name in index:
            raise InstanceError(f"$.{key}[{i}].name: {shown(name)} is there already, at $.{key}[{index[name]}]")
        index[name] = i
    return index


def find(index: Mapping[str, int], name: Any, where: str, what: str) -> int:
    """Return the index of ``name``."""
    if not isinstance(name, str) or name not in index:
        raise InstanceError(f"{where}: there is no {what} {shown(name)}")
    return index[name]


def shown(value: Any) -> str:
    """Return a value as a message shows it: one line of bounded length."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    line = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return line if len(line) <= 80 else f"{line[:60]}… ({len(line)} characters)"
