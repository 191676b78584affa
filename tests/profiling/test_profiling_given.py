"""Times that a user hands in: taken as they are, or refused with file, row and reason, and then nothing is stored."""

import os

import polars as pl
import profiling_kernels as pk
import pytest

from heterotask_core.errors import ProfileError
from heterotask_core.platform.model import Device, Memory, Node, Platform
from heterotask_core.profiling.given import import_timings
from heterotask_core.profiling.measure import profile
from heterotask_core.store import Store

CORE = min(os.sched_getaffinity(0))


def platform(model="Xeon"):
    return Platform(
        (Node("n0", os.uname().nodename),),
        (Memory("n0", "n0"),),
        (Device("n0.cpu0", "cpu", "n0", "n0", model, (CORE,)),),
        (),
    )


ALL = """kernel,variant,device_kind,median_s
fill,numpy,cpu,0.5
scale,numpy,cpu,0.25
total,numpy,cpu,2
save,numpy,cpu,0.125
"""


def test_given_times_are_used_and_not_measured(tmp_path):
    (tmp_path / "times.csv").write_text(ALL)
    store = Store(tmp_path / "s")
    assert import_timings(tmp_path / "times.csv", pk.small_graph(), platform(), store) == 4
    found = profile(pk.small_graph(), platform(), store)
    assert (found.measured, found.reused) == (0, 4)
    assert found.timings.select("kernel", "median_s", "source").rows() == [
        ("fill", 0.5, "given"),
        ("scale", 0.25, "given"),
        ("total", 2.0, "given"),
        ("save", 0.125, "given"),
    ]


def test_given_times_replace_measured_ones_and_a_task_picks_its_class(tmp_path):
    store = Store(tmp_path / "s")
    profile(pk.small_graph(), platform(), store, budget_s=0.2)
    pl.DataFrame(
        {"kernel": ["fill"], "variant": ["numpy"], "device_kind": ["cpu"], "median_s": [7.0], "task": ["fill1"]}
    ).write_parquet(tmp_path / "times.parquet")
    assert import_timings(tmp_path / "times.parquet", pk.small_graph(), platform(), store) == 1
    found = profile(pk.small_graph(), platform(), store)
    assert found.measured == 0
    assert found.timings.select("kernel", "source").rows()[:2] == [("fill", "given"), ("scale", "measured")]


def test_a_profile_of_another_store_is_taken_where_it_fits(tmp_path):
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    measured = profile(pk.small_graph(), platform(), first, budget_s=0.2)
    file = first.folder("profiles", platform().fingerprint()) / "timings.parquet"
    assert import_timings(file, pk.small_graph(), platform(), second) == 4
    taken = profile(pk.small_graph(), platform(), second)
    assert taken.measured == 0
    assert taken.timings["median_s"].equals(measured.timings["median_s"])
    with pytest.raises(ProfileError, match=r"is a profile of another device \(Xeon\); here is Other;"):
        import_timings(file, pk.small_graph(), platform("Other"), Store(tmp_path / "c"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel,variant,seconds\nfill,numpy,1\n", r"columns device_kind, median_s are missing and seconds unknown"),
        (ALL.replace("0.25", "-0.25"), r"times.csv, row 2: median_s is -0.25; it must be seconds above 0"),
        (ALL.replace("0.25", "0"), r"row 2: median_s is 0.0; it must be seconds above 0"),
        (ALL.replace("0.25", "nan"), r"row 2: median_s is '?nan"),
        (ALL.replace("0.25", ""), r"row 2: median_s is None"),
        (ALL.replace("0.25", "fast"), r"row 2: median_s is 'fast'"),
        (ALL.replace("fill,numpy", "fil,numpy"), r"row 1: no kernel 'fil' in this application; it has fill, save"),
        (ALL.replace("fill,numpy", "fill,cuda"), r"row 1: kernel 'fill' has no variant 'cuda' for cpu; it has numpy"),
        (ALL.replace("fill,numpy,cpu", "fill,numpy,cuda"), r"row 1: no device of kind 'cuda' here, only cpu"),
        (
            "kernel,variant,device_kind,median_s,device_model\nfill,numpy,cpu,1,H100\n",
            r"row 1: device model 'H100' is not here; there is Xeon",
        ),
        (
            "kernel,variant,device_kind,median_s,task\nfill,numpy,cpu,1,scale0\n",
            r"row 1: 'scale0' is no task of kernel 'fill'",
        ),
        (
            "kernel,variant,device_kind,median_s,mad_s\nfill,numpy,cpu,1,-1\n",
            r"row 1: mad_s is -1; it must be seconds, 0 or more",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    (tmp_path / "times.csv").write_text(text)
    store = Store(tmp_path / "s")
    with pytest.raises(ProfileError, match=message):
        import_timings(tmp_path / "times.csv", pk.small_graph(), platform(), store)
    assert not (tmp_path / "s").exists()


def test_damaged_missing_and_foreign_files_are_refused(tmp_path):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    for name, message in (
        ("cut.parquet", r"cut.parquet is damaged or not a PARQUET file"),
        ("none.csv", r"none.csv does not exist"),
        ("times.txt", r"times are read from .csv or .parquet"),
    ):
        with pytest.raises(ProfileError, match=message):
            import_timings(tmp_path / name, pk.small_graph(), platform(), Store(tmp_path / "s"))
