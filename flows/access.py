"""Access to a Prefect server of one's own: a Prefect profile with address and secret, in a file of mode 600.

Prefect reads its settings when it is imported, so nothing here imports it.
"""

from __future__ import annotations

import os
import secrets
import tomllib
import uuid
from pathlib import Path
from typing import Any

from heterotask_core.errors import HeteroTaskError

PROFILE = "heterotask"


class DeployError(HeteroTaskError, RuntimeError):
    """Server, worker, deployment or their settings are not as they should be; the message says what to do."""


def prefect_home() -> Path:
    """Return the folder in which Prefect keeps its settings, ``PREFECT_HOME``."""
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def profiles_path() -> Path:
    """Return Prefect's file of profiles."""
    return Path(os.environ.get("PREFECT_PROFILES_PATH", prefect_home() / "profiles.toml")).expanduser()


def server_settings(host: str, port: int, auth: str) -> dict[str, str]:
    """Return the settings of a server of ours and of its clients, as Prefect's variables."""
    reached_at = "127.0.0.1" if host == "0.0.0.0" else host
    return {
        "PREFECT_API_URL": f"http://{reached_at}:{port}/api",
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        # The pauses double: a server that is back within four minutes is found, by default one minute.
        "PREFECT_CLIENT_MAX_RETRIES": "7",
        # A person who starts a run waits for the worker to ask; by default it asks every 10 s.
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }


def ensure_access(*, host: str, port: int) -> bool:
    """Make and activate the profile ``heterotask`` unless a server is set already; return whether it is active now.

    A person who has ``PREFECT_API_URL`` in the environment or in the active profile keeps that server. An existing
    profile keeps its secret, whatever address it gets. Raises :class:`DeployError` for a file that is damaged.
    """
    if os.environ.get("PREFECT_API_URL"):
        return False
    path = profiles_path()
    stored = _read(path)
    active = os.environ.get("PREFECT_PROFILE") or stored.get("active", "")
    profiles = stored.setdefault("profiles", {})
    if active != PROFILE and profiles.get(active, {}).get("PREFECT_API_URL"):
        return False
    auth = profiles.get(PROFILE, {}).get("PREFECT_SERVER_API_AUTH_STRING") or f"heterotask:{secrets.token_urlsafe(24)}"
    profiles[PROFILE] = server_settings(host, port, auth)
    stored["active"] = PROFILE
    _write(path, stored)
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} cannot be read ({error}); repair or remove it") from error


def _write(path: Path, stored: dict[str, Any]) -> None:
    """Replace the file by one of mode 600 that was never readable by others."""
    import toml

    # The database comes to lie here too, and is readable by others where the folder is.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(toml.dumps(stored))
    temporary.replace(path)
