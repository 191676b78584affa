"""Cholesky factorisations of any number of tiles, with the platform and the costs of a smaller one's instance."""

from __future__ import annotations

from typing import Any

KERNELS = {"POTRF", "TRSM", "SYRK", "GEMM"}


def is_cholesky(document: Any) -> bool:
    """Return whether an instance is a tiled Cholesky factorisation whose tiles are all of one size."""
    sizes = {d["size_bytes"] for d in document.get("data", [])}
    return set(document.get("kernels", {})) == KERNELS and len(sizes) == 1


def cholesky(document: Any, tiles: int, *, name: str) -> Any:
    """Return the instance of ``tiles`` × ``tiles`` tiles, right-looking, on the platform of ``document``."""
    tile = {k: v for k, v in document["data"][0].items() if k != "name"}
    tasks: list[dict[str, Any]] = []

    def add(kernel: str, updated: tuple[int, int], *read: tuple[int, int]) -> None:
        reads = [f"A[{i},{j}]" for i, j in read]
        tasks.append(
            {
                "name": f"{kernel}-{len(tasks)}",
                "kernel": kernel,
                "reads": reads,
                "updates": [f"A[{updated[0]},{updated[1]}]"],
            }
        )

    for k in range(tiles):
        add("POTRF", (k, k))
        for i in range(k + 1, tiles):
            add("TRSM", (i, k), (k, k))
        for j in range(k + 1, tiles):
            add("SYRK", (j, j), (j, k))
            for i in range(j + 1, tiles):
                add("GEMM", (i, j), (i, k), (j, k))
    data = [{"name": f"A[{i},{j}]", **tile} for j in range(tiles) for i in range(j, tiles)]
    return {**document, "name": name, "data": data, "tasks": tasks, "meta": {}}
