"""PostgreSQL as the server's database: deployments, a run and its artifacts."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from real_site import Guard, Site, free_port

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
def database():
    """URL of a database that is on the loopback address and has a password."""
    # Not below pytest's folder, which is closed to other users: PostgreSQL refuses to run as root.
    folder, password = Path(tempfile.mkdtemp(prefix="heterotask-postgres-")), "a-password"
    prefix = []
    if os.getuid() == 0:
        prefix = [shutil.which("setpriv"), f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
        shutil.chown(folder, USER, USER)
    (folder / "password").write_text(password)
    data, port, mark = folder / "data", free_port(), {"TMPDIR": str(folder)}

    def run(program, *arguments):
        command = [*prefix, str(_programs() / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=folder, env={**os.environ, **mark}
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    guard = Guard(f"TMPDIR={folder}")
    try:
        run("initdb", "-D", str(data), "-U", "prefect", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", str(data), "-w", "-t", "120", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql+asyncpg://prefect:{password}@127.0.0.1:{port}/postgres"
        run("pg_ctl", "-D", str(data), "-m", "fast", "stop")
    finally:
        guard.close()
        shutil.rmtree(folder)


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
        assert "a-password" not in (site.home / "heterotask-server.log").read_text()
    finally:
        site.close()
