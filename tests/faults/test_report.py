"""Results survive being written and read, and the report has what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.faults.report import build_seed_page, build_summary, list_pairs, write_report
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


def test_of_a_seed_that_was_run_again_the_last_result_is_read(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []
    for result in (FOUND, SeedResult(3, 60.0, 200), CLEAN):
        append_result(result, tmp_path)
    assert read_results(tmp_path) == [CLEAN, FOUND]


def test_a_line_that_was_cut_costs_only_its_own_seed(tmp_path: Path) -> None:
    append_result(CLEAN, tmp_path)
    append_result(FOUND, tmp_path)
    path = tmp_path / RESULTS_FILE
    path.write_text(path.read_text()[:-20])
    assert read_results(tmp_path) == [CLEAN]
    append_result(BROKEN, tmp_path)
    assert read_results(tmp_path) == [CLEAN, BROKEN]


def test_results_of_several_directories_merge_into_one(tmp_path: Path) -> None:
    for name, results in (("a", [FOUND]), ("b", [CLEAN, BROKEN])):
        for result in results:
            append_result(result, tmp_path / name)
    merge_results([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert read_results(tmp_path / "all") == [CLEAN, FOUND, BROKEN]


def test_a_clean_run_elsewhere_does_not_hide_a_seed_that_was_not_clean(tmp_path: Path) -> None:
    append_result(SeedResult(4, 60.0, 200), tmp_path / "clean")
    append_result(FOUND, tmp_path / "found")
    for sources in (["clean", "found"], ["found", "clean"]):
        merge_results([tmp_path / name for name in sources], tmp_path / "all")
        assert read_results(tmp_path / "all") == [FOUND]


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


def test_the_report_needs_no_network_and_has_a_page_for_every_seed(tmp_path: Path) -> None:
    path = write_report([CLEAN, FOUND, BROKEN], tmp_path / "report")
    pages = {each.name: each.read_text() for each in path.parent.glob("*.html")}
    assert len(pages) == 4
    for page in pages.values():
        links = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert set(links) <= pages.keys()
        assert not re.search(r"url\(|https?://|@import", page)
        assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert "1 of 3 seeds are clean" in pages["index.html"]
    assert "node 1 is gone" in pages["seed-3.html"]
    assert "&lt;b&gt;" in pages["seed-4.html"] and "<b>" not in pages["seed-4.html"]
    assert "no broker" in pages["seed-5.html"]


def test_the_summary_counts_what_was_found_also_where_there_is_none() -> None:
    page = build_summary([CLEAN, FOUND], [])
    cells = dict(re.findall(r'<tr><td>([^<]*)</td><td class="number">(?:<span.*?>)?(\d*)', page))
    assert cells["lost"] == "1"
    assert cells["duplicate"] == cells["outside the view"] == cells["aborted"] == "0"
    assert (cells["deliveries"], cells["acknowledged"]) == ("5", "1")  # up to the comma
    assert cells["broker-killed"] == "1"


def test_a_report_that_is_kept_has_the_pages_of_some_seeds_alone(tmp_path: Path) -> None:
    summary = write_report([CLEAN, FOUND, BROKEN], tmp_path, [3]).read_text()
    assert {each.name for each in tmp_path.iterdir()} == {"index.html", "seed-3.html"}
    assert re.findall('href="([^"]*)"', summary) == ["seed-3.html"]
    assert "BROKEN OFF" in summary


def test_kinds_that_were_in_effect_together_are_pairs() -> None:
    first = FaultResult("broker-killed", 2.0, 2.1, 3.4, 9.0, status="effective")
    others = [
        FaultResult("clients-cut", 8.0, 8.0, 8.9, 12.0, status="effective"),
        FaultResult("retention", 9.0, 9.0, 9.1, 12.0, status="effective"),
        FaultResult("disk-full", 4.0, 4.0, None, 8.0),
    ]
    result = SeedResult(3, 60.0, 200, faults=[first, *others])
    assert list_pairs([result]) == {
        frozenset(("broker-killed", "clients-cut")),
        frozenset(("clients-cut", "retention")),
    }


def test_every_chart_of_the_report_is_well_formed() -> None:
    charts = re.findall(r"<svg.*?</svg>", build_seed_page(CLEAN), re.S)
    assert len(charts) == 1
    for chart in charts:
        ElementTree.fromstring(chart)
