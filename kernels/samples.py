"""The pictures and digits that scikit-image and scikit-learn carry, read without importing either.

Every rank reads its own input, and importing scikit-learn takes longer than many a task graph.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from heterotask_core.errors import MissingExtraError

Array = np.ndarray[Any, Any]

DISTRIBUTIONS = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


def photograph(package: str, file: str) -> Array:
    """Return a picture as its file has it: (rows, columns) or (rows, columns, 3), uint8.

    ``package``: ``skimage`` or ``sklearn``; ``file``: for example ``retina.jpg``. Raises :class:`MissingExtraError`
    where the package, the picture or Pillow is missing.
    """
    path = _carried(package, Path("data" if package == "skimage" else "datasets/images", file))
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(f"reading {file} needs Pillow: pip install 'heterotask[apps]'") from error
    with Image.open(path) as image:
        return np.asarray(image)


def digits() -> Array:
    """Return scikit-learn's handwritten digits: (1797, 8, 8), float64, 0 to 16; raises :class:`MissingExtraError`."""
    table = np.loadtxt(_carried("sklearn", Path("datasets/data/digits.csv.gz")), delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8)


def _carried(package: str, file: Path) -> Path:
    """Return where an installed package keeps a file."""
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else [Path(place) / file for place in spec.submodule_search_locations or ()]
    for place in places:
        if place.is_file():
            return place
    raise MissingExtraError(f"{file.name} comes with {DISTRIBUTIONS[package]}: pip install 'heterotask[apps]'")
