"""One real server and worker for all tests that need them: starting them takes longer than most of the tests."""

from types import SimpleNamespace

import pytest
from real_site import Site


@pytest.fixture(scope="session")
def only_site(tmp_path_factory):
    """The session's site after its first `heterotask deploy`; tests take ``site``, which is whole again."""
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        told = made.deploy()
        assert told.splitlines()[-1] == f"http://127.0.0.1:{made.port}"
        yield made
    finally:
        made.close()


@pytest.fixture
def site(only_site):
    """The site with server and worker, whatever the test before has done to them."""
    only_site.ensure()
    return only_site


@pytest.fixture(scope="session")
def finished(only_site):
    """A run of heat by the deployed flow, started and followed by the command: what that said, and the run's id."""
    only_site.ensure()
    command = ["heterotask", "run", "heat", "-p", "size=64", "-p", "tile=32", "-p", "steps=2", "--devices", "cpu:1"]
    command += ["--profile-budget", "1", "--evaluations", "5", "--check", "--store", str(only_site.store)]
    done = only_site.run(*command, "--via-prefect", "heat/run")
    assert done.returncode == 0, done.stderr
    (run,) = {word.rpartition("/")[2] for word in done.stderr.split() if "/runs/flow-run/" in word}
    return SimpleNamespace(command=command, stdout=done.stdout, stderr=done.stderr, run=run)
