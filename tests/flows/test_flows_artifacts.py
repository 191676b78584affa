"""Artifacts: keys that Prefect takes, summaries a person reads, charts that stay small enough."""

import base64

from flows.artifacts import MAX_ARTIFACT_BYTES, artifact_key, gantt_markdown, summary_markdown

FACTS = {
    "planner": "peft",
    "predicted_makespan_s": 0.001,
    "makespan_s": [0.002, 0.004, 0.003],
    "completion_s": 0.5,
    "lower_bound_s": 0.0005,
    "utilisation": {"n0.cpu0": 0.25},
    "link_bytes": {"n0 → n1": 1048576},
    "arena_planned_bytes": {"n0": 2097152},
    "arena_peak_bytes": {"n0": 1048576},
}


def test_keys_are_lower_case_letters_digits_and_dashes():
    assert artifact_key("my_package.apps:Tiny", "summary") == "my-package-apps-tiny-summary"


def test_the_summary_is_one_table():
    assert summary_markdown("r1", FACTS).splitlines() == [
        "## Run `r1`",
        "",
        "| what | value |",
        "| --- | ---: |",
        "| planner | peft |",
        "| predicted makespan | 1.000 ms |",
        "| measured makespan (median) | 3.000 ms |",
        "| application completion | 500.000 ms |",
        "| lower bound | 0.500 ms |",
        "| repeats | 3 |",
        "| utilisation of n0.cpu0 | 25.0 % |",
        "| moved n0 → n1 | 1.00 MiB |",
        "| memory n0, planned | 2.00 MiB |",
        "| memory n0, peak | 1.00 MiB |",
    ]


def test_a_chart_is_a_data_uri():
    page = gantt_markdown("r1", b"<svg/>")
    encoded = page.partition("base64,")[2].rstrip(")\n")
    assert base64.b64decode(encoded) == b"<svg/>"


def test_a_chart_that_is_too_large_is_named_instead():
    page = gantt_markdown("r1", b"x" * MAX_ARTIFACT_BYTES)
    assert "`runs/r1/gantt.svg`" in page
    assert len(page) < 300
