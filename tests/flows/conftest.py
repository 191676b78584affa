"""One real server and worker for all tests that need them: starting them takes longer than most of the tests."""

from types import SimpleNamespace

import pytest
from real_site import Site, documented_commands

_MADE = pytest.StashKey[Site | None]()


@pytest.fixture(scope="session")
def only_site(tmp_path_factory, request):
    """The session's site after its first `heterotask deploy`; tests take ``site``, which is whole again."""
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        told = made.documented("heterotask deploy")
        assert told.stdout.splitlines()[-1] == f"http://127.0.0.1:{made.port}"
        request.config.stash[_MADE] = made
        yield made
    finally:
        request.config.stash[_MADE] = None
        made.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request):
    """A module's runs end with it: the pool has one place, and what the next module starts would wait for ever."""
    yield
    made = request.config.stash.get(_MADE, None)
    if made is not None and made.is_alive("server"):
        left = made.unfinished()
        for run, _, _ in left:
            made.cancel(run)
        assert left == []


@pytest.fixture
def site(only_site):
    """The site with server and worker, whatever the test before has done to them."""
    only_site.ensure()
    return only_site


@pytest.fixture(scope="session")
def finished(only_site):
    """The run of the documentation's command, by the deployed flow: what the command said, and the run's id."""
    only_site.ensure()
    (command,) = [command for command in documented_commands() if command.startswith("heterotask run canny")]
    done = only_site.documented(command)
    (run,) = {word.rpartition("/")[2] for word in done.stderr.split() if "/runs/flow-run/" in word}
    return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, run=run)
