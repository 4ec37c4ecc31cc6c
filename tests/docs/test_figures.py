"""Pages state of the pipeline's speed what the newest runs of `bench` have, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.pipeline.plan import LATENCIES_S

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "gateway" / "pipeline" / "README.md",
    *sorted((ROOT / "docs").glob("pipeline*.md")),
    *sorted((ROOT / "examples" / "pipeline").glob("*.md")),
]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
RATE_OR_MS = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?) (ms|\w+/s)\b")
SECONDS = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?) (s)\b")  # of options, too
MEASURED = re.compile(r"measured|percentile|median|\bp\d\d\b")


def read_newest_figures() -> dict[str, list[tuple[float, str]]]:
    """Values and units of the newest run of each work that has Spark."""
    newest: dict[str, list[tuple[float, str]]] = {}
    for path in sorted((ROOT / "bench" / "results").glob("*/cells.jsonl")):
        for cell in map(json.loads, path.read_text().splitlines()):
            if cell["peer"] == "spark":
                newest[cell["work"]] = [(value, unit) for _, _, value, unit, *_ in cell["rows"]]
    return newest


KEPT = [figure for figures in read_newest_figures().values() for figure in figures]


def find_figures(text: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("", text)):
        yield from RATE_OR_MS.findall(paragraph)
        if MEASURED.search(paragraph):
            yield from SECONDS.findall(paragraph)


def is_kept(number: str, unit: str) -> bool:
    """Whether a run has the figure, rounded to as many digits."""
    digits = len(number.replace(",", "").replace(".", "").strip("0")) or 1
    stated, stated_unit = convert(float(number.replace(",", "")), unit)
    return any(
        found_unit == stated_unit and f"{found:.{digits}g}" == f"{stated:.{digits}g}"
        for found, found_unit in (convert(*figure) for figure in KEPT)
    )


def convert(value: float, unit: str) -> tuple[float, str]:
    return (value / 1000, "s") if unit == "ms" else (value, unit)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_states_no_figure_that_no_run_has(page: Path):
    figures = set(find_figures(page.read_text()))
    assert [figure for figure in figures if not is_kept(*figure)] == []


def test_plans_are_computed_from_latencies_that_a_run_has():
    assert [each for each in LATENCIES_S.values() if not is_kept(f"{each.value}", "s")] == []


def test_figures_are_found_and_compared_by_their_digits():
    """The README stated 330 and 690 ms of exactly-once jobs, where the newest run had 1,020 and
    1,390."""
    text = "p99 of 690 ms, 76,000 events/s, `gap: 500ms`\n\nwaits for 60 s\n\nmeasured: 1.4 s"
    assert list(find_figures(text)) == [("690", "ms"), ("76,000", "events/s"), ("1.4", "s")]
    value, unit = next(figure for figure in KEPT if figure[1] == "ms")
    assert is_kept(f"{value:.3g}", unit) and is_kept(f"{value / 1000:.3g}", "s")
    assert not is_kept(f"{value:.3g}1", unit)
