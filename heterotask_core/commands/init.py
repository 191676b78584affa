"""``heterotask init``: a runnable application to start from."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from heterotask_core.errors import ApplicationError

FILES = {
    "README.md.tmpl": "README.md",
    "pyproject.toml.tmpl": "pyproject.toml",
    "package_init.py.tmpl": "{name}/__init__.py",
    "app.py.tmpl": "{name}/app.py",
    "kernels.py.tmpl": "{name}/kernels.py",
    "test_app.py.tmpl": "tests/test_{name}.py",
}
"""Template → path in the new folder."""


def write_application(name: str, parent: Path) -> Path:
    """Write the folder ``parent/name`` whole or not at all, and return it.

    Raises:
        ApplicationError: ``name`` is no package name, is taken by an installed module, or the folder exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ApplicationError(
            f"{name!r} cannot name a Python package; use lower-case letters, digits and underscores, such as my_app"
        )
    if _is_module(name):
        raise ApplicationError(f"a Python module is called {name!r} already; choose another name")
    folder = parent / name
    if folder.exists():
        raise ApplicationError(f"{folder} exists already; choose another name or remove it")
    templates = resources.files("heterotask_core") / "templates" / "app"
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as made:
            for source, target in FILES.items():
                path = Path(made) / name / target.format(name=name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(Template((templates / source).read_text()).substitute(name=name))
            shutil.move(Path(made) / name, folder)
    except OSError as error:
        raise ApplicationError(f"cannot write {folder}: {error}; choose a folder that can be written") from error
    return folder


def _is_module(name: str) -> bool:
    """Return whether an installed module has this name; folders of the working directory do not count."""
    import importlib.util
    import sys

    spec = importlib.util.find_spec(name)
    return name in sys.builtin_module_names or (spec is not None and spec.origin is not None)


def init(name: Annotated[str, typer.Argument(help="Name of the application and of its Python package.")]) -> None:
    """Write a runnable application into a new folder: graph, kernels (NumPy, Numba, CuPy), check, test."""
    folder = write_application(name, Path())
    print(f"{folder}/ is written; next:")
    print(f"  pip install -e {folder}")
    print(f"  heterotask run {name} --check")
