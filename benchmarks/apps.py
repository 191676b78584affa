"""Run every application on this machine's devices, beside the plain way to do it in one process.

    python benchmarks/apps.py [--devices cpu:2 cpu:1,opencl:1] [--repeats 5] [--apps canny heat ...] [--out apps.csv]

Completion time counts from the launch of the MPI job to results on disk; the makespan from the first task's start to
the last one's end (median and range of the repeats). The plain way (scikit-image, SciPy, scikit-learn, NumPy,
reproject) starts with its imports done and ends with its result on disk, as the makespan does; its libraries may use
every core.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from arguments import Parser, devices, file_to_write, run_program, whole

HETEROTASK = [sys.executable, "-m", "heterotask_core.cli"]


def plain_canny(folder: Path) -> Callable[[], None]:
    """scikit-image's Canny on the built-in picture."""
    from PIL import Image
    from skimage.feature import canny

    from kernels.canny.images import grey_image, picture_content

    grey = grey_image("", 4096, picture_content(""))

    def run() -> None:
        edges = canny(grey, sigma=1.4, low_threshold=0.1, high_threshold=0.2)
        Image.fromarray(edges.astype(np.uint8) * 255).save(folder / "edges.png")

    return run


def plain_cholesky(folder: Path) -> Callable[[], None]:
    """SciPy's kernel matrix and factorisation in float32."""
    from scipy.linalg import cholesky
    from scipy.spatial.distance import cdist

    from kernels.cholesky.points import points

    x = points(4096)

    def run() -> None:
        matrix = np.exp(-0.001 * cdist(x, x, "sqeuclidean")).astype(np.float32)
        matrix[np.diag_indices(len(x))] += np.float32(0.1)
        np.save(folder / "L.npy", cholesky(matrix, lower=True, overwrite_a=True))

    return run


def plain_heat(folder: Path) -> Callable[[], None]:
    """NumPy on the whole grid."""
    from kernels.heat.field import initial_field, step_whole

    start = initial_field(2048)

    def run() -> None:
        field = start
        for _ in range(50):
            field = step_whole(field, 0.2)
        np.save(folder / "field.npy", field)

    return run


def plain_kmeans(folder: Path) -> Callable[[], None]:
    """scikit-learn's KMeans (Lloyd)."""
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    from kernels.kmeans.pixels import pixels, start_centres

    warnings.simplefilter("ignore", ConvergenceWarning)
    colours, start = pixels("retina"), start_centres("retina", 8, 1)

    def run() -> None:
        found = KMeans(8, init=start, n_init=1, max_iter=10, tol=0).fit(colours.astype(np.float64))
        np.save(folder / "labels.npy", found.labels_)

    return run


def plain_fft2d(folder: Path) -> Callable[[], None]:
    """SciPy's fft2 on all cores."""
    from scipy import fft

    from kernels.fft2d.field import field

    whole = field(2048)

    def run() -> None:
        np.save(folder / "spectrum.npy", fft.fft2(whole, workers=-1))

    return run


def plain_mosaic(folder: Path) -> Callable[[], None]:
    """reproject's co-addition on the same grid; it matches offsets of backgrounds, not slopes."""
    from astropy.io import fits
    from astropy.wcs import WCS
    from reproject import reproject_interp
    from reproject.mosaicking import reproject_and_coadd

    from kernels.mosaic.files import wcs_cards
    from kernels.mosaic.layout import lay_out
    from kernels.mosaic.sky import Recipe, all_made, image_file

    recipe = Recipe(1024, 24, 1)
    paths = [image_file("", recipe, k) for k in range(recipe.count)]
    layout = lay_out([made.field for made in all_made(recipe)])
    grid = WCS(fits.Header(wcs_cards(layout.grid)))

    def run() -> None:
        mosaic, _ = reproject_and_coadd(
            [str(path) for path in paths],
            grid,
            shape_out=(layout.rows, layout.columns),
            reproject_function=reproject_interp,
            match_background=True,
            order="bilinear",
            roundtrip_coords=False,
        )
        fits.PrimaryHDU(mosaic.astype(np.float32), grid.to_header()).writeto(folder / "mosaic.fits", overwrite=True)

    return run


PLAIN: dict[str, Callable[[Path], Callable[[], None]]] = {
    "canny": plain_canny,
    "cholesky": plain_cholesky,
    "heat": plain_heat,
    "kmeans": plain_kmeans,
    "fft2d": plain_fft2d,
    "mosaic": plain_mosaic,
}
"""Application → how to prepare the plain way, with the application's default parameters."""


def time_plain(name: str, repeats: int) -> list[float]:
    """Return seconds of each repeat after one that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        run = PLAIN[name](Path(folder))
        run()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return seconds


def run_app(name: str, devices: str, repeats: int, store: str) -> dict[str, object]:
    """Run an application twice (the second reuses profile and plan) and return the second run's facts."""
    command = [*HETEROTASK, "run", name, "--devices", devices, "--store", store, "--json", "--check"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = subprocess.run([*command, "--repeats", str(repeats)], check=True, capture_output=True, text=True)
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def main() -> None:
    """Print the table; write it as CSV where asked."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", nargs="+", type=devices, default=["cpu:2", "cpu:1,opencl:1"])
    parser.add_argument("--apps", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--repeats", type=whole(), default=5)
    parser.add_argument("--out", type=file_to_write)
    arguments = parser.parse_args()
    header = f"{'app':9} {'devices':15} {'complete':>9} {'makespan':>9} {'range':>15} {'predicted':>9} {'bound':>9}"
    print(f"{header} {'plain':>9} {'plain/makespan':>14}  check   (milliseconds)", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as store:
        for name in arguments.apps:
            plain_s = time_plain(name, arguments.repeats)
            for where in arguments.devices:
                facts = run_app(name, where, arguments.repeats, f"{store}/store")
                spans = facts["makespan_s"]
                row = {
                    "app": name,
                    "devices": where,
                    "completion_s": facts["completion_s"],
                    "makespan_s": statistics.median(spans),
                    "makespan_least_s": min(spans),
                    "makespan_most_s": max(spans),
                    "predicted_s": facts["predicted_makespan_s"],
                    "bound_s": facts["plan"]["lower_bound_s"],
                    "plain_s": statistics.median(plain_s),
                    "check": facts["check"]["passed"],
                }
                rows.append(row)
                span = f"{row['makespan_least_s'] * 1e3:.0f} to {row['makespan_most_s'] * 1e3:.0f}"
                print(
                    f"{name:9} {where:15} {row['completion_s'] * 1e3:9.0f} {row['makespan_s'] * 1e3:9.1f} {span:>15} "
                    f"{row['predicted_s'] * 1e3:9.1f} {row['bound_s'] * 1e3:9.1f} {row['plain_s'] * 1e3:9.1f} "
                    f"{row['plain_s'] / row['makespan_s']:14.2f}  {'passed' if row['check'] else 'FAILED'}",
                    flush=True,
                )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    run_program(main)
