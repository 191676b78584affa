"""k-means against scikit-learn, over clusters, blocks, precisions and variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serial_executor import cuda_assembly, needs_nvcc, needs_opencl, run_serially

from heterotask_core.app import Application
from kernels.kmeans import cpu_variants
from kernels.kmeans.app import KMEANS, KMeansParams
from kernels.kmeans.cpu_variants import EmptyClusterError
from kernels.kmeans.graph import ACCUMULATE

VARIANTS = ["numpy", "numba", pytest.param("opencl", marks=needs_opencl)]


def run(params: KMeansParams, folder: Path, variant: str) -> tuple[bool, str]:
    device = "opencl" if params.dtype == "float32" else "opencl64"
    run_serially(KMEANS.build(params), folder, [device, "opencl"] if variant == "opencl" else [variant])
    result = KMEANS.check(params, folder)
    return result.passed, "; ".join(result.details)


def test_kmeans_is_an_application() -> None:
    assert isinstance(KMEANS, Application)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("clusters", "iterations", "block"), [(8, 4, 30_000), (1, 1, 100_000), (13, 0, 300_000)])
def test_clusters_are_those_of_scikit_learn(
    tmp_path: Path, clusters: int, iterations: int, block: int, dtype: str, variant: str
) -> None:
    params = KMeansParams(picture="china", clusters=clusters, iterations=iterations, block=block, dtype=dtype)
    passed, text = run(params, tmp_path, variant)
    assert passed, text


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_beyond_convergence_nothing_moves(tmp_path: Path) -> None:
    passed, text = run(KMeansParams(picture="china", clusters=2, iterations=60), tmp_path, "numba")
    assert passed, text


@settings(max_examples=5, deadline=None)
@given(
    block=st.integers(20_000, 300_000),
    clusters=st.integers(1, 20),
    seed=st.integers(0, 1000),
    variant=st.sampled_from(["numpy", "numba"]),
)
def test_blocks_and_variants_do_not_change_a_bit(
    tmp_path_factory: pytest.TempPathFactory, block: int, clusters: int, seed: int, variant: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    params = KMeansParams(picture="china", clusters=clusters, iterations=2, block=block, dtype="float32", seed=seed)
    try:
        values = run_serially(KMEANS.build(params), folder, [variant])
    except EmptyClusterError:
        return
    whole = params.model_copy(update={"block": 1 << 24})
    expected = run_serially(KMEANS.build(whole), folder, ["numpy"])
    assert values["centres"].tobytes() == expected["centres"].tobytes()


@pytest.mark.parametrize("kernel", ["accumulate", "reduce", "update", "assign"])
def test_the_check_notices_each_kernel_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    right = getattr(cpu_variants, kernel)
    made = {"accumulate": "sums", "reduce": "total", "update": "centres", "assign": "labels"}[kernel]

    def wrong(**arguments: Any) -> None:
        right(**arguments)
        # The first cluster loses its last colour, or a pixel its label.
        arguments[made].reshape(-1)[0] -= 1 if made != "labels" else -1

    monkeypatch.setattr(cpu_variants, kernel, wrong)
    passed, text = run(KMeansParams(picture="china", iterations=2, block=40_000), tmp_path, "numpy")
    assert not passed, text


def test_an_empty_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmptyClusterError, match="cluster 1 has no pixels; choose fewer clusters or another seed"):
        cpu_variants.update(total=np.array([[3, 3, 3, 1], [0, 0, 0, 0]]), centres=np.empty((2, 3)), dtype="float64")
    with pytest.raises(EmptyClusterError, match="cluster 0 has no pixels"):
        cpu_variants.store(
            labels=[np.zeros(1, np.int32)],
            centres=np.full((1, 3), np.nan),
            labels_path=tmp_path / "labels.npy",
            centres_path=tmp_path / "centres.npy",
        )
    assert not list(tmp_path.iterdir())


@needs_nvcc
@pytest.mark.parametrize("name", ["cuda", "cuda64"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_as_cuda(tmp_path: Path, name: str, architecture: str) -> None:
    assembly = cuda_assembly(ACCUMULATE.variant(name), tmp_path, architecture)
    assert "fma.rn.f32" not in assembly
    assert "fma.rn.f64" not in assembly
