"""Format a run as tables in Markdown and CSV, with ratios to the raw loop."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from .goals import render_goals
from .journal import Run
from .results import format_number
from .works.work import PACED_SUFFIX, RATE_FIGURES, Cell, Row

COLUMNS = ("work", "case", "peer", "what", "value", "unit", "low", "high", "n")
SHARE_COLUMNS = {"of raw": False, "of raw, paced": True}  # and whether of the paced raw loop


def render_csv(run: Run) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, *SHARE_COLUMNS))
    for work, peer, row in _iter_rows(run):
        shares = [
            _format_share(run.get_raw_share(work, peer, row, paced), 3)
            for paced in SHARE_COLUMNS.values()
        ]
        numbers = row.unit, f"{row.low:.6g}", f"{row.high:.6g}", row.n
        writer.writerow((work, row.case, peer, row.what, f"{row.value:.6g}", *numbers, *shares))
    return out.getvalue()


def render_markdown(run: Run) -> str:
    """One table a work: a line for each case and peer, a column for each figure."""
    lines = [f"# Bench, {run.facts.get('date', '')}", "", _format_facts(run.facts), ""]
    if not run.finished:
        lines += ["Not finished: the same command goes on with it.", ""]
    for peer, lacks in run.absent.items():
        lines.append(f"- {peer}: absent, it needs {lacks}")
    for cell, why in run.failed.items():
        lines.append(f"- {cell}: failed, {why}")
    lines += ["", *render_goals(run)]
    works = dict.fromkeys(work for work, _ in run.cells)
    for work in works:
        cells = {peer: cell for (name, peer), cell in run.cells.items() if name == work}
        lines += ["", f"## {work}", "", *_render_table(run, work, cells)]
    return "\n".join(lines) + "\n"


def _render_table(run: Run, work: str, cells: Mapping[str, Cell]) -> Iterator[str]:
    rows = [row for cell in cells.values() for row in cell.rows]
    columns = list(dict.fromkeys((row.what, row.unit) for row in rows))
    ratios = _select_shares(rows)
    heads = [f"{what}, {unit}" if unit else what for what, unit in columns]
    heads = ["case", "peer", heads[0], *ratios, *heads[1:]]
    yield "| " + " | ".join(heads) + " |"
    yield "|---|---|" + "---:|" * (len(heads) - 2)
    for case in _order_cases(rows):
        for peer, cell in cells.items():
            found = {row.what: row for row in cell.rows if row.case == case}
            if found:
                shown = [format_number(found[w].value) if w in found else "" for w, _ in columns]
                first = found.get(columns[0][0])
                for paced in ratios.values():
                    share = run.get_raw_share(work, peer, first, paced) if first else None
                    shown.insert(1 + paced, _format_share(share, 2))
                yield f"| {case} | {peer} | " + " | ".join(shown) + " |"
    notes = [f"- {peer}: {note}" for peer, cell in cells.items() for note in cell.notes]
    yield from ("", *notes, f"- {sum(cell.seconds for cell in cells.values()):.0f} s in all")


def _select_shares(rows: Sequence[Row]) -> dict[str, bool]:
    """Those of `SHARES` that a work has."""
    shown = (
        any(row.what in RATE_FIGURES for row in rows),
        any(PACED_SUFFIX in row.case for row in rows),
    )
    return {name: paced for name, paced in SHARE_COLUMNS.items() if shown[paced]}


def _order_cases(rows: Sequence[Row]) -> Iterator[str]:
    """What is paced stands behind what is not."""
    for case in dict.fromkeys(row.case.removesuffix(PACED_SUFFIX) for row in rows):
        yield from (case, case + PACED_SUFFIX)


def _format_share(share: float | None, digits: int) -> str:
    return "" if share is None else f"{share:.{digits}f}"


def _iter_rows(run: Run) -> Iterator[tuple[str, str, Row]]:
    for (work, peer), cell in run.cells.items():
        for row in cell.rows:
            yield work, peer, row


def _format_facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if name != "date") + "."
