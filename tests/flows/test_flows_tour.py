"""docs/prefect.md is true: every command of it, with a real server and worker. It ends them, so it comes last."""

import pytest
from real_site import documented_commands

pytestmark = [pytest.mark.prefect, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_command_of_the_documentation_works(site):
    commands = documented_commands()
    assert len(commands) == 9
    told = [site.documented(command) for command in commands]
    deployed, secret, ran, again, history, scheduled, night, reconciled, stopped = (done.stdout for done in told)
    assert deployed.splitlines()[-1] == f"http://127.0.0.1:{site.port}"
    assert secret.strip() == site.profile()["PREFECT_API_AUTH_STRING"]
    assert "| planner | portfolio |" in ran
    assert "Completed" in again
    assert [line.split()[2] for line in history.splitlines()[1:]] == ["complete", "complete"]
    assert history.rstrip().endswith("yes")
    assert "nightly" in scheduled
    assert "Skipped" in night
    assert reconciled.strip() == "nothing to set right"
    assert stopped.splitlines() == ["worker ended", "server ended"]
    assert not site.is_alive("server")
    assert not site.is_alive("worker")
