"""Platforms as YAML files: the fields of :mod:`heterotask_core.platform.model`, checked on reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from heterotask_core.errors import PlatformError
from heterotask_core.files import whole_file
from heterotask_core.platform.model import Device, Link, Memory, Node, Platform

FORMAT = "heterotask-platform/1"

_SECTIONS: dict[str, type] = {"nodes": Node, "memories": Memory, "devices": Device, "links": Link}


def write_platform(platform: Platform, path: Path) -> None:
    """Write ``platform`` to a YAML file, whole or not at all; values equal to the model's defaults are left out.

    Raises :class:`PlatformError` naming the file.
    """
    document: dict[str, Any] = {"format": FORMAT}
    for section, cls in _SECTIONS.items():
        defaults = {f.name: f.default for f in fields(cls)}
        document[section] = [
            {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(entry).items() if v != defaults[k]}
            for entry in getattr(platform, section)
        ]
    document["meta"] = dict(platform.meta)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    try:
        with whole_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise PlatformError(f"{path}: cannot be written: {error.strerror}") from error


def read_platform(path: Path) -> Platform:
    """Read a platform from a YAML file.

    Raises :class:`PlatformError` naming file and key when the file is missing or no YAML, a key is unknown,
    missing or of a wrong type, a name is used twice or not defined, or a number is out of range.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PlatformError(f"{path} cannot be read ({error.strerror}); check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlatformError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PlatformError(f"{path}: the first key must be `format: {FORMAT}`")
    allowed = {"format", "meta", *_SECTIONS}
    for key in document:
        if key not in allowed:
            raise PlatformError(f"{path}: unknown key {key!r}; known: {', '.join(sorted(allowed))}")
    sections = {section: _read_section(path, document, section, cls) for section, cls in _SECTIONS.items()}
    platform = Platform(**sections, meta=document.get("meta") or {})
    _check(path, platform)
    return platform


def _read_section(path: Path, document: dict[str, Any], section: str, cls: type) -> tuple[Any, ...]:
    entries = document.get(section, [])
    if not isinstance(entries, list):
        raise PlatformError(f"{path}: {section} must be a list")
    names = [f.name for f in fields(cls)]
    adapter: TypeAdapter[Any] = TypeAdapter(cls)
    found = []
    for i, entry in enumerate(entries):
        where = f"{path}: {section}[{i}]"
        if not isinstance(entry, dict):
            raise PlatformError(f"{where} must be a mapping with {', '.join(names)}")
        for key in entry:
            if key not in names:
                raise PlatformError(f"{where}: unknown key {key!r}; known: {', '.join(names)}")
        try:
            found.append(adapter.validate_python(entry))
        except ValidationError as error:
            first = error.errors()[0]
            raise PlatformError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return tuple(found)


def _check(path: Path, platform: Platform) -> None:
    if not platform.devices:
        raise PlatformError(f"{path}: devices is empty; a platform needs at least one")
    for section in ("nodes", "memories", "devices"):
        names = [entry.name for entry in getattr(platform, section)]
        for name in names:
            if names.count(name) > 1:
                raise PlatformError(f"{path}: {section} has {name!r} twice; names must differ")
    nodes = [n.name for n in platform.nodes]
    memories = [m.name for m in platform.memories]
    for node in nodes:
        _known(path, f"node {node!r}: host memory", node, memories)
    for memory in platform.memories:
        _known(path, f"memory {memory.name!r}: node", memory.node, nodes)
        if (memory.capacity_bytes is not None and memory.capacity_bytes < 0) or memory.alignment_bytes < 1:
            raise PlatformError(f"{path}: memory {memory.name!r}: capacity must be ≥ 0, alignment ≥ 1")
    for device in platform.devices:
        _known(path, f"device {device.name!r}: node", device.node, nodes)
        _known(path, f"device {device.name!r}: memory", device.memory, memories)
    for i, link in enumerate(platform.links):
        _known(path, f"links[{i}].source", link.source, memories)
        _known(path, f"links[{i}].target", link.target, memories)
        if link.latency_s < 0 or not link.bandwidth_bytes_per_s > 0:
            raise PlatformError(f"{path}: links[{i}]: latency must be ≥ 0 and bandwidth > 0")


def _known(path: Path, what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise PlatformError(f"{path}: {what} {name!r} is not defined; there are {', '.join(names)}")
