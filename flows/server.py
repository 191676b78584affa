"""Access to a Prefect server: the settings of one of ours, its processes, and whether it answers.

The settings are a Prefect profile named ``heterotask``, so that every ``prefect`` command finds them: the loopback
address, an auth string made here, CSRF protection, no telemetry. The file is readable by its owner only.
"""

from __future__ import annotations

from heterotask_core.errors import HeteroTaskError

PROFILE = "heterotask"
START_S = 180.0
"""How long a server may take to answer: a busy machine needs a minute for its first start."""


class DeployError(HeteroTaskError, RuntimeError):
    """Server, worker or deployments are not there; the message says what to do."""


def server_settings(host: str, port: int, auth: str) -> dict[str, str]:
    """Return the settings of a server of ours and of its clients, as Prefect's variables."""
    return {
        "PREFECT_API_URL": f"http://{host}:{port}/api",
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    }
