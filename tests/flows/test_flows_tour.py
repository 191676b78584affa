"""docs/prefect.md is true: every command of it, with a real server and worker. It ends them, so it comes last."""

import re
import shlex

import pytest
from real_site import REPOSITORY

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_documentation_is_true(site):
    """Every command of docs/prefect.md but the installation, as written except for port and time zone of the site."""
    text = (REPOSITORY / "docs" / "prefect.md").read_text().partition("## 2")[2]
    commands = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        site.check("bash", "-c", command.replace("heterotask deploy", f"heterotask deploy --port {site.port}", 1))
    assert shlex.split(commands[-1]) == ["heterotask", "deploy", "--stop"]
