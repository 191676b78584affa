"""Two profiles compared: changes beyond the spread, what else differs, and refusals."""

import math

import polars as pl
import pytest

from heterotask_core.errors import ProfileError, StoreError
from heterotask_core.profiling.compare import compare, load_profile
from heterotask_core.tables import TIMINGS


def row(kernel, median_s, *, mad_s=0.0, model="Xeon", fingerprint="f", variant="numpy"):
    return {
        "class_key": kernel,
        "kernel": kernel,
        "variant": variant,
        "variant_fingerprint": fingerprint,
        "device_kind": "cpu",
        "device_model": model,
        "driver": "",
        "cores": 1,
        "busy": False,
        "median_s": median_s,
        "mad_s": mad_s,
        "p95_s": median_s,
        "cold_s": median_s,
        "count": 10,
        "input_bytes": 1,
        "output_bytes": 1,
        "source": "measured",
    }


def table(*rows):
    return pl.DataFrame(list(rows), TIMINGS, orient="row")


def test_changes_beyond_the_spread_are_told():
    old = table(row("a", 1.0), row("b", 1.0, mad_s=0.2), row("c", 1.0), row("d", 1.0), row("gone", 1.0))
    new = table(
        row("a", 1.5, fingerprint="g"), row("b", 1.5, mad_s=0.2), row("c", 0.5), row("d", 1.01), row("new", 1.0)
    )
    found = {c.kernel: (c.verdict, c.why) for c in compare(old, new)}
    assert found == {
        "a": ("slower", "source or packages"),
        "b": ("same", ""),
        "c": ("faster", ""),
        "d": ("same", ""),
        "gone": ("gone", ""),
        "new": ("new", ""),
    }
    changes = compare(old, new)
    assert [c.kernel for c in changes[:2]] == ["c", "a"]
    assert changes[1].ratio == pytest.approx(1.5)
    assert math.isnan(changes[-1].ratio)


def test_profiles_of_different_devices_are_not_compared():
    with pytest.raises(ProfileError, match=r"of different devices \(Xeon; H100\)"):
        compare(table(row("a", 1.0)), table(row("a", 1.0, model="H100")))


def test_a_folder_without_a_profile_and_a_damaged_one_are_refused(tmp_path):
    with pytest.raises(ProfileError, match="holds no profile; give a store"):
        load_profile(tmp_path)
    (tmp_path / "timings.parquet").write_text("x")
    with pytest.raises(StoreError, match=r"timings.parquet is damaged"):
        load_profile(tmp_path)
