"""Find applications by name or import path, and turn ``name=value`` texts into their parameters."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from heterotask_core.app import Application
from heterotask_core.errors import ApplicationError

GROUP = "heterotask.apps"


def find_application(name_or_path: str) -> Application:
    """Return the application with this entry-point name, or at ``package.module:attribute``.

    Modules in the current folder are found too.

    Raises :class:`ApplicationError` with the known names, or with the reason why it cannot be imported.
    """
    if ":" in name_or_path:
        # An installed command does not look for modules in the current folder, where a user's own application is.
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)
        return _load(name_or_path, name_or_path)
    known = {point.name: point.value for point in entry_points(group=GROUP)}
    if name_or_path not in known:
        file = "; a problem's file goes to `heterotask plan --instance`" if Path(name_or_path).is_file() else ""
        names = ", ".join(sorted(known)) or "none"
        raise ApplicationError(f"no application {name_or_path!r}; known: {names}, or give module:attribute{file}")
    return _load(name_or_path, known[name_or_path])


def list_applications() -> list[Application]:
    """Return every installed application, sorted by entry-point name; raises :class:`ApplicationError`."""
    return [_load(point.name, point.value) for point in sorted(entry_points(group=GROUP), key=lambda p: p.name)]


def parse_params(app: Application, texts: Sequence[str]) -> BaseModel:
    """Return the parameters of ``app`` from ``name=value`` texts; values but texts are YAML scalars or lists.

    Raises :class:`ApplicationError` (one line) for a text without ``=``, a name that ``app`` does not have or
    gets twice, and a value out of bounds.
    """
    known = list(app.Params.model_fields)
    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ApplicationError(f"{app.name}: parameter {text!r} has no value; write name=value")
        if name not in known:
            raise ApplicationError(f"{app.name}: no parameter {name!r}; it has {', '.join(known)}")
        if name in values:
            raise ApplicationError(f"{app.name}: parameter {name!r} is given twice")
        try:
            # Text is taken as it is written: a file may be called "7", "on" or "a: b #1.png".
            values[name] = value if _is_text(app.Params.model_fields[name].annotation) else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ApplicationError(f"{app.name}: parameter {name!r}: {value!r} is not a value") from error
    try:
        return app.Params.model_validate(values)
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'parameters'}: {item['msg']}"
            + (f" (got {item['input']!r})" if item["loc"] else "")
            for item in error.errors()
        )
        raise ApplicationError(f"{app.name}: {found}") from error


def param_text(app: Application, name: str, value: object) -> str:
    """Return ``name=value`` as :func:`parse_params` reads it; ``value`` as JSON has it."""
    if _is_text(app.Params.model_fields[name].annotation):
        return f"{name}={value}"
    return f"{name}={json.dumps(value)}"


def _is_text(annotation: object) -> bool:
    """Return whether a parameter takes nothing but text: ``str``, a path, or one of several words."""
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return annotation in (str, Path)


def _load(name: str, path: str) -> Application:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
        raise ApplicationError(
            f"application {name!r}: cannot import {path!r}: {kind}{error}; check the path, or see --debug"
        ) from error
    if not isinstance(found, Application):
        raise ApplicationError(
            f"application {name!r}: {path!r} is no application (name, summary, Params, build, check)"
        )
    return found
