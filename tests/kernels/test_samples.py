"""Pictures and digits read from the files of the packages that carry them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from skimage import data
from sklearn import datasets

from heterotask_core.errors import MissingExtraError
from kernels import samples


@pytest.mark.parametrize("name", ["retina.jpg", "moon.png", "camera.png", "hubble_deep_field.jpg"])
def test_pictures_are_those_of_scikit_image(name):
    assert np.array_equal(samples.photograph("skimage", name), getattr(data, name.partition(".")[0])())


def test_picture_and_digits_are_those_of_scikit_learn():
    assert np.array_equal(samples.photograph("sklearn", "china.jpg"), datasets.load_sample_image("china.jpg"))
    assert np.array_equal(samples.digits(), datasets.load_digits().images)


def test_missing_file_names_the_package():
    with pytest.raises(MissingExtraError, match=r"^no.png comes with scikit-image: pip install 'heterotask\[apps\]'"):
        samples.photograph("skimage", "no.png")


def test_ranks_import_neither_package_nor_a_compiler_they_do_not_run():
    code = (
        "import sys, heterotask_core.runtime.rank, kernels.canny.numpy_variants as n, kernels.cholesky.points as p\n"
        "n.grey_image('', 64, ''), p.points(10)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numba', 'scipy', 'skimage', 'sklearn'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
