"""The time budget: what other load may stretch it to, and what is measured when it is spent."""

from types import SimpleNamespace

import profiling_kernels as pk
from test_profiling_busy import platform

from heterotask_core.profiling import busy
from heterotask_core.profiling.measure import profile
from heterotask_core.profiling.timing import time_item
from heterotask_core.store import Store


def test_without_time_left_a_variant_is_called_four_times():
    calls = []

    def once():
        calls.append(len(calls))
        return calls[-1], calls[-1] + 0.5

    found = time_item(SimpleNamespace(once=once, cold_s=9.0), sink=False, slice_s=0.0, rival_s=None, cores=1)
    assert (found["cold_s"], found["warm_ups"], found["samples"]) == (9.0, 1, [0.5, 0.5, 0.5])
    assert len(calls) == 4


def test_when_the_budget_is_spent_everything_is_measured_all_the_same(tmp_path, monkeypatch):
    # No window is long enough for a call, as when another program has the cores.
    monkeypatch.setattr(busy, "WINDOW_S", 0.0)
    graph, store = pk.small_graph(), Store(tmp_path)
    found = profile(graph, platform(), store, budget_s=1e-9)
    assert (found.measured, len(found.busy)) == (4, 4)
    assert found.timings["count"].max() <= 3
    assert found.busy["count"].to_list() == [1] * 4
    again = profile(graph, platform(), store, budget_s=1e-9)
    assert (again.measured, again.fingerprint) == (0, found.fingerprint)
