"""What a job leaves behind when it is ended from outside, removed: exactly the files that its ranks had named."""

from __future__ import annotations

import json
from pathlib import Path


def remove_files(folder: Path) -> None:
    """Unlink the shared-memory files of this host that the job in ``folder`` had: arenas, and MPI's own."""
    names: set[str] = set()
    for path in [*folder.glob("rank-*.json"), folder / "job.json"]:
        try:
            facts = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        names.update(facts.get("shm", ()))
        names.update(facts.get("arenas", {}).values())
    for name in names:
        Path(name).unlink(missing_ok=True)


def remove_job(folder: Path) -> None:
    """Remove the shared-memory files of a job and its folder."""
    # Ranks, which remove files only, start faster without it.
    from heterotask_core.scratch import remove_folder

    remove_files(folder)
    remove_folder(folder)
