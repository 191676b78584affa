"""k-means clustering of a picture's colours: parameters, graph and the outside check."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from heterotask_core.app import CheckResult
from heterotask_core.errors import ApplicationError
from heterotask_core.graph import TaskGraph
from kernels.kmeans.graph import build_graph
from kernels.kmeans.pixels import pixels, start_centres

CENTRE_TOLERANCE = 1e-8
"""Largest distance between centres in float64, grey values."""
INERTIA_TOLERANCE = 1e-3
LABELS_PER_DIFFERENCE = 100
"""In float32: relative difference of inertia, and one label in so many may differ."""


class KMeansParams(BaseModel):
    """What the user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    picture: Literal["retina", "china"] = Field("retina", description="which photograph's pixels are clustered")
    clusters: int = Field(8, ge=1, le=256, description="number of clusters")
    iterations: int = Field(10, ge=0, le=10_000, description="updates of the centres")
    block: int = Field(262_144, ge=1, le=1 << 24, description="pixels of a block")
    dtype: Literal["float32", "float64"] = Field("float64", description="precision of centres and distances")
    seed: int = Field(1, ge=0, description="chooses the colours where the centres start")


class KMeans:
    """The application ``kmeans``; its results are ``labels.npy`` and ``centres.npy``."""

    name: ClassVar[str] = "kmeans"
    summary: ClassVar[str] = "k-means (Lloyd) of a photograph's colours: assign, tree reduce, update"
    Params: ClassVar[type[BaseModel]] = KMeansParams

    def build(self, params: Any) -> TaskGraph:
        """Return the graph; raises :class:`ApplicationError` for more blocks than a program should have."""
        count = len(pixels(params.picture))
        if -(-count // params.block) * params.iterations > 1_000_000:
            raise ApplicationError(f"block={params.block} makes over a million tasks; choose a larger block")
        return build_graph(
            count,
            picture=params.picture,
            clusters=params.clusters,
            iterations=params.iterations,
            block=params.block,
            dtype=params.dtype,
            seed=params.seed,
        )

    def check(self, params: Any, output_dir: Path) -> CheckResult:
        """Compare labels and centres with scikit-learn's ``KMeans`` (Lloyd, tol=0) from the same start."""
        from sklearn.cluster import KMeans as Reference

        for name in ("labels.npy", "centres.npy"):
            if not (output_dir / name).is_file():
                return CheckResult(False, f"{output_dir / name} is missing: the run wrote no result")
        labels = np.load(output_dir / "labels.npy", allow_pickle=False)
        centres = np.load(output_dir / "centres.npy", allow_pickle=False).astype(np.float64)
        colours = pixels(params.picture).astype(np.float64)
        start = start_centres(params.picture, params.clusters, params.seed)
        if labels.shape != colours.shape[:1] or centres.shape != start.shape:
            return CheckResult(False, f"labels are {labels.shape} and centres {centres.shape}")
        if params.iterations:
            found = Reference(params.clusters, init=start, n_init=1, max_iter=params.iterations, tol=0).fit(colours)
            expected, expected_labels = found.cluster_centers_, found.labels_
        else:
            expected = start
            expected_labels = np.argmin([((colours - c) ** 2).sum(axis=1) for c in start], axis=0)
        differing = int(np.count_nonzero(labels != expected_labels))
        distance = float(np.abs(centres - expected).max())
        inertia = float(((colours - centres[labels]) ** 2).sum())
        reference = float(((colours - expected[expected_labels]) ** 2).sum())
        excess = abs(inertia - reference) / max(reference, 1e-300)
        details = (
            f"{differing} of {len(labels)} labels differ from scikit-learn's",
            f"centres are up to {distance:.1e} from scikit-learn's, inertia differs by {excess:.1e} of it",
        )
        if params.dtype == "float64":
            passed = differing == 0 and distance <= CENTRE_TOLERANCE
        else:
            passed = differing * LABELS_PER_DIFFERENCE <= len(labels) and excess <= INERTIA_TOLERANCE
        return CheckResult(passed, "clusters are correct" if passed else "clusters are wrong", details)


KMEANS = KMeans()
