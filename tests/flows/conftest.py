"""One real server and worker for all tests that need them: starting them takes longer than most of the tests."""

import pytest
from real_site import Site


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A site after its first `heterotask deploy`; tests that end its processes deploy again."""
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        told = made.deploy()
        assert told.splitlines()[-1] == f"http://127.0.0.1:{made.port}"
        yield made
    finally:
        made.close()
