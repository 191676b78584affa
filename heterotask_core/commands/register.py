"""Adds the commands of this package to the command line."""

from __future__ import annotations

import typer

from heterotask_core.commands.instance import instance_app
from heterotask_core.commands.plan import plan_command
from heterotask_core.commands.whatif import whatif_command


def register(app: typer.Typer) -> None:
    """Add ``plan``, ``whatif`` and ``instance`` to ``app``."""
    app.command("plan")(plan_command)
    app.command("whatif")(whatif_command)
    app.add_typer(instance_app, name="instance")
