"""One rank a host: ``python -m mpi4py -m heterotask_core.platform.host_report NODES DEVICES``.

Rank 0 prints what all of them discover, as JSON, in one line (see :mod:`heterotask_core.platform.cluster`).
"""

from __future__ import annotations

import json
import sys

from heterotask_core.errors import HeteroTaskError


def main(nodes: int, devices: str) -> None:
    """Discover this host, and gather the answers on rank 0."""
    from mpi4py import MPI

    from heterotask_core.platform.cluster import MARK, to_json
    from heterotask_core.platform.discover import discover

    try:
        answer = json.dumps(to_json(discover(devices, nodes=nodes)))
    except HeteroTaskError as error:
        answer = json.dumps({"error": str(error)})
    answers = MPI.COMM_WORLD.gather(answer)
    if answers is not None:
        print(f"{MARK}[{', '.join(answers)}]", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
