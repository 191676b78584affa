"""``heterotask deploy``: from nothing to a server with deployments and a worker that answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from flows.access import DeployError, ensure_access
from flows.background import Background

POOL = "heterotask"
POOL_LIMIT = 1
"""Runs at a time in the pool: what is measured at the same time measures each other."""
START_S = 240.0
"""How long server and worker may take to answer; a busy machine needs a minute for a first start."""

SERVER = ("prefect", "server", "start")
WORKER = ("prefect", "worker", "start", "--pool", POOL, "--type", "process")


def deploy_all(*, host: str, port: int, file: Path | None, start: bool, progress: Callable[[str], None]) -> str:
    """Do all that is missing, and return the URL of the user interface.

    ``progress`` is told each step. Raises :class:`~flows.access.DeployError` when a part does not answer.
    """
    file = find_file(file)
    ours = ensure_access(host=host, port=port)
    # Prefect's client asks this before it asks the server.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Reads the settings that were just made.
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value() or ""
    if ours:
        from flows.access import profiles_path

        progress(f"access: profile 'heterotask' in {profiles_path()} (mode 600), server at {url}")
    _ensure_server(url, ours=ours, start=start, cwd=file.parent, progress=progress)
    _ensure_pool(progress)
    # It starts while the deployments are made.
    worker = _start_worker(start=start, cwd=file.parent, progress=progress)
    _deploy(file, progress)
    if worker is not None:
        worker.wait_for(worker_online, START_S)
    progress("worker answers")
    return url.removesuffix("/api")


def stop_all(*, progress: Callable[[str], None]) -> None:
    """End worker and server that :func:`deploy_all` started here."""
    for name, arguments in (("worker", WORKER), ("server", SERVER)):
        ended = Background(name, arguments).stop()
        progress(f"{name} ended" if ended else f"no {name} was started here")


def find_file(given: Path | None) -> Path:
    """Return the absolute path of prefect.yaml; raises :class:`DeployError` if there is none."""
    places = [given] if given is not None else [Path("prefect.yaml"), Path(__file__).parents[1] / "prefect.yaml"]
    for place in places:
        if place.is_file():
            return place.resolve()
    raise DeployError(f"no {places[0]}; run this in the folder that holds prefect.yaml, or give --file")


def server_answers() -> bool:
    """Whether the server answers and takes our secret; raises :class:`DeployError` if it refuses that."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools(limit=1)
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise DeployError(
                f"the server at {error.request.url.host}:{error.request.url.port} refuses our secret: another server "
                "uses this port, or it was started with other settings; end it, or choose another --port"
            ) from error
        return False
    except (httpx.HTTPError, RuntimeError, OSError):
        return False
    return True


def _ensure_server(url: str, *, ours: bool, start: bool, cwd: Path, progress: Callable[[str], None]) -> None:
    import httpx

    try:
        # Without retries: nobody need be there.
        httpx.get(f"{url}/health", timeout=10.0)
        present = True
    except httpx.HTTPError:
        present = False
    if present:
        if not server_answers():
            raise DeployError(f"something at {url} answers, but not as a Prefect server; choose another --port")
    elif not ours:
        raise DeployError(f"no server answers at {url}; start it, or unset PREFECT_API_URL for one of ours")
    elif not start:
        raise DeployError(f"no server answers at {url}; start it with `prefect server start`, or leave --no-start away")
    else:
        server = Background("server", SERVER)
        server.start(cwd=cwd)
        progress(f"server starts (log: {server.log})")

        def healthy() -> bool:
            try:
                return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
            except httpx.HTTPError:
                return False

        server.wait_for(healthy, START_S)
    if not server_answers():
        raise DeployError(f"the server at {url} does not answer; see its log")
    progress("server answers")


def _ensure_pool(progress: Callable[[str], None]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            client.create_work_pool(
                WorkPoolCreate(
                    name=POOL,
                    type="process",
                    description="HeteroTask: one run at a time on the devices of the worker's host",
                    base_job_template=ProcessWorker.get_default_base_job_template(),
                    concurrency_limit=POOL_LIMIT,
                )
            )
            progress(f"work pool {POOL!r} made, {POOL_LIMIT} run at a time")


def _deploy(file: Path, progress: Callable[[str], None]) -> None:
    """Apply prefect.yaml, and a deployment with a form of its own for every installed application."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise DeployError(f"`prefect deploy --all` failed: {' '.join(said[-4:])}; see {file}")
    from flows.forms import deploy_forms

    forms = deploy_forms(pool=POOL, folder=file.parent)
    progress(f"deployments of {file.name} made, and forms: {', '.join(forms)}")


def _start_worker(*, start: bool, cwd: Path, progress: Callable[[str], None]) -> Background | None:
    """Start a worker unless there is one; return it if it is one of ours."""
    worker = Background("worker", WORKER)
    if worker.pid() is not None:
        return worker
    if not start:
        if not worker_online():
            raise DeployError(f"no worker answers; start it with `prefect worker start --pool {POOL}`")
        return None
    from flows.reconcile import reconcile_host

    # A worker that died before may have left runs that would keep this one from starting any.
    for line in reconcile_host().lines():
        progress(line)
    worker.start(cwd=cwd)
    progress(f"worker starts (log: {worker.log})")
    return worker


def worker_online() -> bool:
    """Whether a worker of the pool has said lately that it is there."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(POOL)
    return any(str(getattr(worker.status, "value", worker.status)).upper() == "ONLINE" for worker in workers)
