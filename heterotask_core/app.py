"""Applications: validated parameters → task graph, and a check of what came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from heterotask_core.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of a check against a reference: a line a finding, worst first."""

    passed: bool
    summary: str
    details: tuple[str, ...] = ()


@runtime_checkable
class Application(Protocol):
    """A workflow that HeteroTask can build, run and check.

    Found by entry point (group ``heterotask.apps``) or as ``package.module:attribute``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`~heterotask_core.errors.ApplicationError` for unusable input."""
        ...

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare the results in ``output_dir`` with an outside reference."""
        ...
