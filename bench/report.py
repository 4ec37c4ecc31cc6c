"""A run as a table for people (Markdown) and for programs (CSV), with ratios to the raw loop."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from .goals import judged
from .journal import Run
from .results import rounded
from .works.work import RATED, Cell, Row

COLUMNS = ("work", "case", "peer", "what", "value", "unit", "low", "high", "n", "of raw")


def as_csv(run: Run) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for work, peer, row in _rows(run):
        share = run.ratio(work, peer, row)
        told = "" if share is None else f"{share:.3f}"
        numbers = row.unit, f"{row.low:.6g}", f"{row.high:.6g}", row.n
        writer.writerow((work, row.case, peer, row.what, f"{row.value:.6g}", *numbers, told))
    return out.getvalue()


def as_markdown(run: Run) -> str:
    """One table a work: a line for each case and peer, a column for each figure."""
    lines = [f"# Bench, {run.facts.get('date', '')}", "", _facts(run.facts), ""]
    if not run.finished:
        lines += ["Not finished: the same command goes on with it.", ""]
    for peer, lacks in run.absent.items():
        lines.append(f"- {peer}: absent, it needs {lacks}")
    lines += ["", *judged(run)]
    works = dict.fromkeys(work for work, _ in run.cells)
    for work in works:
        cells = {peer: cell for (name, peer), cell in run.cells.items() if name == work}
        lines += ["", f"## {work}", "", *_table(run, work, cells)]
    return "\n".join(lines) + "\n"


def _table(run: Run, work: str, cells: Mapping[str, Cell]) -> Iterator[str]:
    columns = list(dict.fromkeys((r.what, r.unit) for c in cells.values() for r in c.rows))
    rated = any(what in RATED for what, _ in columns)
    heads = ["case", "peer", *(f"{what}, {unit}" for what, unit in columns)]
    if rated:
        heads.insert(3, "of raw")
    yield "| " + " | ".join(heads) + " |"
    yield "|---|---|" + "---:|" * (len(heads) - 2)
    cases = dict.fromkeys(row.case for cell in cells.values() for row in cell.rows)
    for case in cases:
        for peer, cell in cells.items():
            found = {row.what: row for row in cell.rows if row.case == case}
            if found:
                shown = [rounded(found[w].value) if w in found else "" for w, _ in columns]
                if rated:
                    first = found.get(columns[0][0])
                    share = run.ratio(work, peer, first) if first else None
                    shown.insert(1, "" if share is None else f"{share:.2f}")
                yield f"| {case} | {peer} | " + " | ".join(shown) + " |"
    notes = [f"- {peer}: {note}" for peer, cell in cells.items() for note in cell.notes]
    if notes:
        yield from ("", *notes)


def _rows(run: Run) -> Iterator[tuple[str, str, Row]]:
    for (work, peer), cell in run.cells.items():
        for row in cell.rows:
            yield work, peer, row


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if name != "date") + "."
