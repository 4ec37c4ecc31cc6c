"""Make the page of a run: its goals, and a table for each work with ratios to the raw loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .goals import render_goals
from .results import PACED_SUFFIX, RATE_FIGURES, Cell, Row, Run, format_number

SHARE_COLUMNS = {"of raw": False, "of raw, paced": True}  # and whether of the paced raw loop


def render_markdown(run: Run) -> str:
    """One table a work: a line for each case and peer, a column for each figure."""
    lines = render_head("Bench", run.facts)
    if not run.finished:
        lines += ["Not finished: the same command goes on with it.", ""]
    lines += [f"- {peer}: not run, it needs {lacks}" for peer, lacks in run.absent.items()]
    lines += [f"- {cell}: failed, {why}" for cell, why in run.failed.items()]
    lines += ["", *render_goals(run)]
    for work in dict.fromkeys(cell.work for cell in run.cells if cell.rows):
        cells = [cell for cell in run.cells if cell.work == work]
        lines += ["", f"## {work}", "", *_render_work(run, cells)]
    return "\n".join(lines) + "\n"


def render_head(title: str, facts: Mapping[str, Any]) -> list[str]:
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "date")
    return [f"# {title}, {facts.get('date', '')}", "", f"{told}.", ""]


def render_table(
    heads: Sequence[str], text_columns: int, rows: Iterable[Sequence[str]]
) -> list[str]:
    """The first columns are text, the others numbers."""
    rule = "|" + "---|" * text_columns + "---:|" * (len(heads) - text_columns)
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _render_work(run: Run, cells: Sequence[Cell]) -> Iterator[str]:
    rows = [row for cell in cells for row in cell.rows]
    columns = list(dict.fromkeys((row.what, row.unit) for row in rows))
    ratios = _select_shares(rows)
    heads = [f"{what}, {unit}" if unit else what for what, unit in columns]
    heads = ["case", "peer", heads[0], *ratios, *heads[1:]]
    lines = []
    for case in _order_cases(rows):
        for cell in cells:
            found = {row.what: row for row in cell.rows if row.case == case}
            if not found:
                continue
            shown = [
                format_number(found[what].value) if what in found else "" for what, _ in columns
            ]
            first = found.get(columns[0][0])
            for is_paced in ratios.values():
                share = run.get_raw_share(cell, first, is_paced=is_paced) if first else None
                shown.insert(1 + is_paced, "" if share is None else f"{share:.2f}")
            lines.append([case, cell.peer, *shown])
    yield from render_table(heads, 2, lines)
    notes = [f"- {cell.peer}: {note}" for cell in cells for note in cell.notes]
    yield from ("", *notes, f"- {sum(cell.seconds for cell in cells):.0f} s in all")


def _select_shares(rows: Sequence[Row]) -> dict[str, bool]:
    """Those of `SHARE_COLUMNS` that a work has."""
    shown = (
        any(row.what in RATE_FIGURES for row in rows),
        any(PACED_SUFFIX in row.case for row in rows),
    )
    return {name: is_paced for name, is_paced in SHARE_COLUMNS.items() if shown[is_paced]}


def _order_cases(rows: Sequence[Row]) -> Iterator[str]:
    """What is paced stands behind what is not."""
    for case in dict.fromkeys(row.case.removesuffix(PACED_SUFFIX) for row in rows):
        yield from (case, case + PACED_SUFFIX)
