"""A real server and worker, set up by `heterotask deploy` in a folder of their own, and what tests ask of them."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WAIT_S = 240.0
"""How long anything may take on a busy machine; what must be fast is asserted where it happens."""
DEPLOY_S = 300.0
"""How long a first `heterotask deploy` may take there: a server makes its database before it answers."""
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def documented_commands():
    """Return every command of docs/prefect.md but those of the installation."""
    text = (REPOSITORY / "docs" / "prefect.md").read_text().partition("## 2")[2]
    return re.findall(r"^    (\S.*)$", text, re.MULTILINE)


def has_ended(pid):
    """Whether there is no such process any more, or only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


_PORTS = itertools.count(10_000 + os.getpid() * 8 % 10_000)


def free_port():
    """Return a port that nobody listens on.

    It is below those that outgoing connections and ``bind(0)`` get, and another test process tries others, so that
    it is still free when its server starts.
    """
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def processes_with(entry):
    """Return the processes that have ``NAME=value`` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def guard(entry):
    """Wait for the end of the tests, however they end, and kill what they started."""
    sys.stdin.read()
    while left := [pid for pid in processes_with(entry) if pid != os.getpid()]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


class Guard:
    """Ends the processes that were started with ``mark``, NAME=value, however the tests end."""

    def __init__(self, mark):
        self.mark = mark
        self._process = subprocess.Popen(
            [sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True
        )

    def close(self):
        """End what is left; returns when it is gone."""
        self._process.stdin.close()
        self._process.wait(60)
        assert processes_with(self.mark) == []


class Site:
    """``home`` holds Prefect's settings and database, ``jobs`` the temporary folders of MPI jobs.

    ``work`` is what a person works in: prefect.yaml and the flows, later the store of the runs.

    Nothing of it outlives the tests: a process of its own ends what is left, also when the tests are killed.
    """

    def __init__(self, folder, **more):
        self.home, self.store, self.jobs = folder / "prefect", folder / "store", folder / "tmp"
        self.work = folder / "work"
        for made in (self.home, self.jobs, self.work):
            made.mkdir()
        shutil.copy(REPOSITORY / "prefect.yaml", self.work)
        shutil.copytree(REPOSITORY / "flows", self.work / "flows", ignore=shutil.ignore_patterns("__pycache__"))
        self._guard = Guard(f"TMPDIR={self.jobs}")
        self.port = free_port()
        self._documented = {}
        hidden = ("PREFECT_", "HETEROTASK_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.environment |= {
            "PREFECT_HOME": str(self.home),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": f"{Path(__file__).parent}:{REPOSITORY}",
            "TMPDIR": str(self.jobs),
            "COLUMNS": "200",
            **more,
        }

    def until(self, ready, what, limit_s=WAIT_S):
        """Return the first true answer of ``ready``; a missing one fails the test, and shows the logs' ends."""
        end_s = time.monotonic() + limit_s
        while not (answer := ready()):
            assert time.monotonic() < end_s, f"{what}: not within {limit_s:g} s\n{self.told()}"
            time.sleep(0.05)
        return answer

    def run(self, *command, limit_s=WAIT_S):
        """Run a command where a person works; returns the finished process with its output.

        One that takes longer fails the test, and is ended with what it started.
        """
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(
            command, env=self.environment, cwd=self.work, text=True, start_new_session=True, **pipes
        ) as process:
            try:
                said = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                told = self.told()
                os.killpg(process.pid, signal.SIGKILL)
                said = "\n".join(process.communicate(timeout=10))
                raise AssertionError(f"{command}: no end within {limit_s:g} s\n{said}\n{told}") from None
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, *said)

    def told(self):
        """Return what a person looks at first: which runs are under way, and the ends of the logs."""
        lines = []
        for path in sorted(self.home.glob("heterotask-*.log")):
            lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-15:]]
        with suppress(Exception):
            lines += ["--- runs that have not ended", *(f"{name}: {state}" for _, name, state in self.unfinished())]
        return "\n".join(lines)

    def check(self, *command, limit_s=WAIT_S):
        """Run a command that must succeed; returns its output."""
        done = self.run(*command, limit_s=limit_s)
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def deploy(self):
        return self.check("heterotask", "deploy", "--port", str(self.port), limit_s=DEPLOY_S)

    def documented(self, command):
        """Run a command of docs/prefect.md, but with the port of the site, unless that was done before."""
        if command not in self._documented:
            here = re.sub(r"^heterotask deploy$", f"heterotask deploy --port {self.port}", command)
            done = self.run("bash", "-c", here, limit_s=DEPLOY_S if command == "heterotask deploy" else WAIT_S)
            assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
            self._documented[command] = done
        return self._documented[command]

    def ensure(self):
        """Start server and worker again if a test has ended them."""
        for name in ("server", "worker"):
            if not self.is_alive(name):
                self.restart(name)

    def restart(self, name):
        """Start the server or the worker as `heterotask deploy` does, without deploying again, which takes longer."""
        start = "from flows import background, deploy; from pathlib import Path; "
        start += f"background.Background({name!r}, deploy.{name.upper()}).start(cwd=Path())"
        self.check(sys.executable, "-c", start)
        if name == "server":
            self.until(self._answers, "answer of the server")

    def _answers(self):
        import httpx

        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/api/health", timeout=10).status_code == 200
        return False

    def is_alive(self, name):
        """Whether the server or the worker runs."""
        try:
            return not has_ended(self.pid(name))
        except FileNotFoundError:
            return False

    def api(self, method, path, body=None, *, auth=True):
        """Ask the server; returns (status, answer)."""
        import httpx

        secret = self.profile()["PREFECT_API_AUTH_STRING"].split(":", 1)
        url = f"http://127.0.0.1:{self.port}/api"

        def ask():
            headers = {}
            if auth and method != "GET":
                token = client.get(f"{url}/csrf-token", params={"client": "test"})
                if token.status_code == 503:
                    return None
                headers = {"Prefect-Csrf-Token": token.json()["token"], "Prefect-Csrf-Client": "test"}
            answer = client.request(method, url + path, json=body, headers=headers)
            return (
                None if answer.status_code == 503 else (answer.status_code, answer.json() if answer.content else None)
            )

        with httpx.Client(auth=tuple(secret) if auth else None, timeout=60) as client:
            # The server says 503 while its database is locked; Prefect's own clients ask again as well.
            end_s = time.monotonic() + WAIT_S
            while (answer := ask()) is None:
                assert time.monotonic() < end_s, f"{path}: only 503 within {WAIT_S:g} s"
                time.sleep(0.05)
            return answer

    def profile(self):
        import tomllib

        return tomllib.loads((self.home / "profiles.toml").read_text())["profiles"]["heterotask"]

    def start(self, deployment, config):
        """Start a deployment; returns the id of the run."""
        flow, _, name = deployment.partition("/")
        status, found = self.api("GET", f"/deployments/name/{flow}/{name}")
        assert status == 200, found
        body = {"parameters": {"config": config}, "state": {"type": "SCHEDULED"}}
        status, run = self.api("POST", f"/deployments/{found['id']}/create_flow_run", body)
        assert status == 201, run
        return run["id"]

    def state(self, run):
        """Return (type, name) of the run's state."""
        _, found = self.api("GET", f"/flow_runs/{run}")
        return found["state_type"], found["state_name"]

    def ended(self, run):
        """Wait for the run's end; returns its state's type."""
        return self.until(lambda: (kind := self.state(run)[0]) in FINAL and kind, f"end of run {run}")

    def unfinished(self):
        """Return (id, name, state) of runs that hold or await a place in the pool, but not of the nights to come."""
        wanted = {"flow_runs": {"state": {"type": {"not_any_": sorted(FINAL)}}}}
        _, found = self.api("POST", "/flow_runs/filter", wanted)
        return [(run["id"], run["name"], run["state_name"]) for run in found if not run["auto_scheduled"]]

    def cancel(self, run):
        """Cancel a run that is under way or waits; returns when it has ended."""
        if self.state(run)[0] not in FINAL:
            self.ask_to_cancel(run)
            self.ended(run)

    def ask_to_cancel(self, run):
        """Do what the button on the run's page does."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        assert self.api("POST", f"/flow_runs/{run}/set_state", {"state": state})[0] == 201

    def pid(self, name):
        """Return the process of the server or worker."""
        return int((self.home / f"heterotask-{name}.pid").read_text())

    def ranks(self):
        """Return the processes of MPI jobs of this site."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if any(word.startswith(f"{self.jobs}/heterotask-job-") for word in words):
                        found.append(int(folder.name))
        return found

    def flow_process(self, run):
        """Return the process of Prefect that runs the flow: the parent of the MPI launcher."""
        for pid in self.ranks():
            with suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if f"PREFECT__FLOW_RUN_ID={run}".encode() in Path(f"/proc/{parent}/environ").read_bytes():
                    words = Path(f"/proc/{parent}/cmdline").read_bytes().decode().split("\0")
                    if any("prefect" in word for word in words[1:]):
                        return parent
        return None

    def shared_memory(self):
        """Return the files of shared memory that the jobs that run have named."""
        names = []
        for path in [*self.jobs.glob("heterotask-job-*/rank-*.json"), *self.jobs.glob("heterotask-job-*/job.json")]:
            with suppress(OSError, ValueError):
                told = json.loads(path.read_text())
                names += [*told.get("shm", ()), *told.get("arenas", {}).values()]
        return names

    def close(self):
        """End worker and server as a person does, then whatever is left."""
        self.run("heterotask", "deploy", "--stop")
        self._guard.close()


if __name__ == "__main__":
    guard(sys.argv[1])
