"""The command line in this process."""

import pytest
import typer

from heterotask_core import cli


@pytest.fixture
def commands(heterotask):
    """All commands by name."""
    heterotask("--help")
    return typer.main.get_command(cli.app).commands
