"""Adds the commands of this package to the command line."""

from __future__ import annotations

import typer

from heterotask_core.commands.init import init
from heterotask_core.commands.instance import instance_app
from heterotask_core.commands.plan import plan_command
from heterotask_core.commands.profile import profile_command
from heterotask_core.commands.whatif import whatif_command


def register(app: typer.Typer) -> None:
    """Add ``profile``, ``plan``, ``whatif``, ``instance`` and ``init`` to ``app``."""
    app.command("profile")(profile_command)
    app.command("plan")(plan_command)
    app.command("whatif")(whatif_command)
    app.command("init")(init)
    app.add_typer(instance_app, name="instance")
