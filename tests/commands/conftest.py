"""The command line in this process."""

import sys

import pytest
import typer

from heterotask_core import cli

OWN_COMMANDS = [c for c in cli.app.registered_commands if c.callback.__module__ == cli.__name__]
"""Those that are there before ``main`` adds the others, which it does at every call."""


@pytest.fixture
def commands(heterotask):
    """All commands by name."""
    heterotask("--help")
    return typer.main.get_command(cli.app).commands


@pytest.fixture
def heterotask(monkeypatch, capsys):
    """Run the command in this process; returns (exit code, stdout, stderr)."""
    # Options set them, for everything that starts ranks: to be undone.
    monkeypatch.setenv("HETEROTASK_HOSTS", "")
    monkeypatch.setenv("HETEROTASK_LAUNCHER", "")

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["heterotask", *map(str, argv)])
        monkeypatch.setattr(cli.app, "registered_commands", list(OWN_COMMANDS))
        monkeypatch.setattr(cli.app, "registered_groups", [])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run
