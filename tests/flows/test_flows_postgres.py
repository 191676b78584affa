"""PostgreSQL as the server's database: deployments, a run and its artifacts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from real_site import Site, free_port

USER = "postgres"


def _programs():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


pytestmark = [
    pytest.mark.prefect,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(_programs() is None, reason="PostgreSQL is not installed (apt-get install postgresql)"),
]


@pytest.fixture
def database(tmp_path_factory):
    """URL of a database that is on the loopback address and has a password."""
    # Directly in the system's temporary folder: pytest's own is closed to other users.
    folder = Path(tmp_path_factory.mktemp("postgres"))
    data, password = folder / "data", "secret"
    prefix = []
    if os.getuid() == 0:
        # PostgreSQL refuses to run as root.
        prefix = [shutil.which("setpriv"), f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
        for parent in (folder, *folder.parents):
            if parent.owner() != USER and parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        shutil.chown(folder, USER, USER)
    (folder / "password").write_text(password)
    port = free_port()

    def run(program, *arguments):
        subprocess.run(
            [*prefix, str(_programs() / program), *arguments], check=True, capture_output=True, timeout=300, cwd=folder
        )

    run("initdb", "-D", str(data), "-U", "prefect", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    run("pg_ctl", "-D", str(data), "-w", "-t", "120", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql+asyncpg://prefect:{password}@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


def test_a_run_with_postgresql(tmp_path, database):
    site = Site(tmp_path, PREFECT_SERVER_DATABASE_CONNECTION_URL=database)
    try:
        site.deploy()
        config = {"app": "flows_app:TINY", "devices": "cpu:1", "planner": "heft", "profile_budget_s": 0.5}
        run = site.start("pipeline/pipeline", config | {"store": str(site.store)})
        assert site.ended(run) == "COMPLETED"
        _, artifacts = site.api("POST", "/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        assert {a["key"].removeprefix("flows-app-tiny-") for a in artifacts} >= {"summary", "gantt", "timings"}
        assert not (site.home / "prefect.db").exists()
        assert "secret" not in (site.home / "heterotask-server.log").read_text()
    finally:
        site.close()
