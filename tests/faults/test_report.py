"""Results survive being written and read, and the report has what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.faults.report import build_summary, write_report
from bench.faults.results import (
    RESULTS_FILE,
    FaultResult,
    SeedResult,
    Timeline,
    append_result,
    merge_results,
    read_results,
)

CLEAN = SeedResult(
    3,
    60.0,
    200,
    "nginx",
    70.5,
    [FaultResult("broker-killed", 2.0, 2.1, 3.4, 9.0, "node 1 is gone", "effective")],
    {"acknowledged": 1200},
    {"deliveries": 5000, "gaps told": 2},
    timelines={"ledger, SSE": Timeline([1, 5, 0], [0.1, 0.4, 0.0], [0, 2, 0])},
)
FOUND = SeedResult(
    4, 60.0, 200, findings=["lost: <b> offset 7\n  history"], finding_kinds={"lost": 1}
)
BROKEN = SeedResult(5, 60.0, 200, error="TimeoutError: no broker\nTraceback")


def test_the_last_whole_result_of_each_seed_is_read(tmp_path: Path) -> None:
    for result in (FOUND, SeedResult(3, 60.0, 200), CLEAN, BROKEN):
        append_result(result, tmp_path)
    path = tmp_path / RESULTS_FILE
    path.write_text(path.read_text()[:-20])
    assert read_results(tmp_path) == [CLEAN, FOUND]
    append_result(BROKEN, tmp_path)
    assert read_results(tmp_path) == [CLEAN, FOUND, BROKEN]


def test_a_clean_run_elsewhere_does_not_hide_a_seed_that_was_not_clean(tmp_path: Path) -> None:
    append_result(SeedResult(4, 60.0, 200), tmp_path / "clean")
    append_result(FOUND, tmp_path / "found")
    append_result(CLEAN, tmp_path / "found")
    for sources in (["clean", "found"], ["found", "clean"]):
        merge_results([tmp_path / name for name in sources], tmp_path / "all")
        assert read_results(tmp_path / "all") == [CLEAN, FOUND]


def test_a_directory_without_results_is_not_merged_as_clean(tmp_path: Path) -> None:
    """A misspelt directory gave a report of no seeds, and status 0."""
    with pytest.raises(FileNotFoundError, match="misspelt"):
        merge_results([tmp_path / "misspelt"], tmp_path / "all")


def test_only_a_seed_without_findings_and_errors_is_clean() -> None:
    assert [each.is_clean for each in (CLEAN, FOUND, BROKEN)] == [True, False, False]
    assert "clean; 1 of 1 faults" in CLEAN.verdict
    assert "1 FINDINGS" in FOUND.verdict
    failed = replace(CLEAN, faults=[replace(CLEAN.faults[0], status="failed")])
    assert "clean, FAULTS FAILED: 1; 0 of 1 faults" in failed.verdict
    assert "BROKEN OFF: TimeoutError: no broker" in BROKEN.verdict


def test_the_report_has_a_page_for_every_seed(tmp_path: Path) -> None:
    path = write_report([CLEAN, FOUND, BROKEN], tmp_path)
    pages = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert len(pages) == 4
    for page in pages.values():
        assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) <= pages.keys()
    assert "1 of 3 seeds are clean" in pages[path.name]
    assert "node 1 is gone" in pages["seed-3.html"] and "<svg" in pages["seed-3.html"]
    assert "&lt;b&gt;" in pages["seed-4.html"] and "<b>" not in pages["seed-4.html"]
    assert "no broker" in pages["seed-5.html"]


def test_the_summary_counts_what_was_found_also_where_there_is_none() -> None:
    page = build_summary([CLEAN, FOUND])
    cells = dict(re.findall(r'<tr><td>([^<]*)</td><td class="number">(?:<span.*?>)?(\d*)', page))
    assert cells["lost"] == "1"
    assert cells["duplicate"] == cells["outside the view"] == cells["aborted"] == "0"
    assert (cells["deliveries"], cells["acknowledged"]) == ("5", "1")  # up to the comma
    assert cells["broker-killed"] == "1"
