"""A user's own command line, for launchers that HeteroTask does not know."""

from __future__ import annotations

import shlex
import string
from collections.abc import Sequence

from heterotask_core.errors import LaunchError
from heterotask_core.runtime.launch.base import host_counts, is_here, parent_guard, this_host

FIELDS = {
    "n": "number of ranks",
    "hosts": "HOST:RANKS,HOST:RANKS in rank order",
    "hostlist": "the host of every rank, separated by commas",
    "command": "what each rank runs; needed",
}


class TemplateLauncher:
    """Fills in ``{n}``, ``{hosts}``, ``{hostlist}`` and ``{command}``; words are split as a shell does."""

    def __init__(self, template: str) -> None:
        """Check the template; raises :class:`LaunchError` for an unknown field or no ``{command}``."""
        try:
            used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
            self._words = shlex.split(template)
        except ValueError as error:
            raise LaunchError(f"launcher template {template!r}: {error}") from error
        unknown = sorted(used - FIELDS.keys())
        if unknown or "{command}" not in self._words:
            known = ", ".join(f"{{{name}}} ({what})" for name, what in FIELDS.items())
            what = f"unknown field {{{unknown[0]}}}" if unknown else "no word {command}"
            raise LaunchError(f"launcher template {template!r}: {what}; fields are {known}")

    def command(self, *, n_ranks: int, argv: Sequence[str], hosts: Sequence[str] = ()) -> list[str]:
        """Return the command line."""
        where = [this_host() if is_here(host) else host for host in hosts] or [this_host()] * n_ranks
        values = {
            "n": str(n_ranks),
            "hosts": ",".join(f"{host}:{count}" for host, count in host_counts(where)),
            "hostlist": ",".join(where),
        }
        words: list[str] = []
        for word in self._words:
            words += argv if word == "{command}" else [word.format(command=shlex.join(argv), **values)]
        return [*parent_guard(), *words]
