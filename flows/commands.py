"""The commands ``deploy``, ``reconcile`` and ``history``, registered by entry point.

Prefect takes seconds to import, and every command line loads this module: all of it is imported inside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from heterotask_core.commands.options import DEFAULT_STORE, JsonOption, StoreOption, only

ServerHostOption = Annotated[str, typer.Option("--host", help="Address that a new server listens on.")]
PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port that a new server listens on.")]


def deploy(
    context: typer.Context,
    host: ServerHostOption = "127.0.0.1",
    port: PortOption = 4200,
    file: Annotated[
        Path | None, typer.Option("--file", help="Deployments; default: prefect.yaml here, else that of the package.")
    ] = None,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Start a server and a worker in the background if none answers.")
    ] = True,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the server and the worker that this command started.")
    ] = False,
) -> None:
    """Set Prefect up: access, server, work pool, deployments, worker; check that they answer; print the URL."""
    from flows.deploy import deploy_all, stop_all

    if stop:
        only(context, "--stop", "stop", why="it ends what was started")
        stop_all(progress=print)
    else:
        print(deploy_all(host=host, port=port, file=file, start=start, progress=print))


def reconcile(as_json: JsonOption = False) -> None:
    """Set right what killed workers and flow processes of this host left: runs "Running" for ever, held slots."""
    from flows.reconcile import reconcile_host

    found = reconcile_host()
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print("\n".join(found.lines()) or "nothing to set right")


def history(
    application: Annotated[str, typer.Argument(help="Application, as `heterotask apps` names it.")],
    store: StoreOption = DEFAULT_STORE,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many of the latest runs.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the makespans of an application's runs over time, and the plan in use of every workflow."""
    from flows.history import history_text, run_history
    from heterotask_core.store import Store

    rows = run_history(Store(store), application)[-limit:]
    if as_json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        print(history_text(application, rows))
