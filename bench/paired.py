"""Compare two checkouts of the gateway, in turns: `python -m bench.paired --old PATH`.

The load of a machine changes from minute to minute, and the figures of two runs differ by more than
a small change of the code does. Here old and new take turns within minutes, each first every other
time, and a figure is the median of the ratios of the turns.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import uvloop
from rich.console import Console

from . import catalog, machine, results
from .feed import Wire
from .figure import median
from .journal import TIMESTAMP_FORMAT
from .kafka import RealKafka, real_kafka
from .peers.gateway_peer import GatewayPeer
from .peers.peer import ROOT, Participant
from .peers.transfer_servers import TransferPeer
from .works.transfer import LIBRARY_SHARE, RECORDS_PER_CPU
from .works.work import PER_CPU, PER_SECOND, ROUNDS_PER_SECOND, Cell

DEFAULT_WORKS = ("lat", "sat", "keys", "idle", "storm")
HIGHER_IS_BETTER = (
    *(PER_CPU, PER_SECOND, ROUNDS_PER_SECOND, RECORDS_PER_CPU, LIBRARY_SHARE),
    *("records of a second", "delivered in time"),
)
MAX_LOSS = 0.03  # share by which the new one may be worse

err_console = Console(stderr=True, highlight=False)


class Turn(NamedTuple):
    """One work on one wire, of both checkouts, one right behind the other."""

    work: str
    wire: str
    old: Cell
    new: Cell


class Pair(NamedTuple):
    """One figure of both, as medians of the turns. ratio: the median of new / old of each turn;
    `low`, `high`: of all turns."""

    old: float
    new: float
    ratio: float
    low: float
    high: float
    n: int


def main(
    old: Annotated[Path, typer.Option(help="The checkout that it is compared with.")],
    new: Annotated[Path, typer.Option(help="The checkout that is judged.")] = ROOT,
    work: Annotated[list[str] | None, typer.Option(help="A work; repeatable.")] = None,
    wire: Annotated[list[Wire] | None, typer.Option(help="sse or ws; repeatable.")] = None,
    turns: Annotated[int, typer.Option(help="Of each work on each wire.")] = 3,
    dry: Annotated[bool, typer.Option("--dry", help="Print the table, keep nothing.")] = False,
    note: Annotated[str, typer.Option(help="Kept with the result: what else ran.")] = "",
    results_in: Annotated[Path, typer.Option("--results", help="Where it is kept.")] = (
        results.DIRECTORY
    ),
) -> None:
    """Compare two checkouts of the gateway: each work of both in turns, figures as new / old."""
    for name in work or ():
        if name not in catalog.WORKS:
            raise typer.BadParameter(f"no work '{name}'; see bench/README.md")
    checkouts = results.resolve_checkout(old), results.resolve_checkout(new)
    facts = {**results.describe_machine(note), **machine.describe_cores()}
    facts |= {
        n: results.get_commit(path) for n, path in zip(("old", "new"), checkouts, strict=True)
    }
    folder = None
    if not dry:
        folder = results_in / f"{datetime.now(UTC).strftime(TIMESTAMP_FORMAT)}-paired"
        folder.mkdir(parents=True)
    machine.pin_process()
    found: list[Turn] = []
    with real_kafka(1) as kafka:
        for turn in _take_turns(kafka, work or DEFAULT_WORKS, wire or list(Wire), checkouts, turns):
            found.append(turn)
            _save_turn(folder, facts, found)
    print(render_markdown({**facts, **results.get_load("after")}, found))


def _take_turns(
    kafka: RealKafka,
    works: Sequence[str],
    wires: Sequence[Wire],
    checkouts: tuple[Path, Path],
    turns: int,
) -> Iterator[Turn]:
    for n in range(turns):
        for work in works:
            for wire in wires:
                if work.startswith("sidecar-") and wire is not wires[0]:
                    continue  # no stream, so no wire
                order = (0, 1) if n % 2 == 0 else (1, 0)
                cells = {each: _measure_cell(kafka, work, wire, checkouts[each]) for each in order}
                yield Turn(work, wire, cells[0], cells[1])


def _measure_cell(kafka: RealKafka, work: str, wire: Wire, checkout: Path) -> Cell:
    err_console.print(f"{work} {wire} {checkout}")
    peer: Participant = GatewayPeer(wire, checkout=checkout)
    if work.startswith("sidecar-"):
        peer = TransferPeer(checkout=checkout)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(catalog.WORKS[work](kafka, peer))
    finally:
        kafka.delete_topics()


def pair_up(turns: Sequence[Turn]) -> dict[tuple[str, str, str, str, str], Pair]:
    """Return the figures of both by work, wire, case, what and unit."""
    values: dict[tuple[str, str, str, str, str], list[tuple[float, float]]] = {}
    for turn in turns:
        then = {(row.case, row.what): row.value for row in turn.old.rows}
        for row in turn.new.rows:
            if (row.case, row.what) in then:
                key = turn.work, turn.wire, row.case, row.what, row.unit
                values.setdefault(key, []).append((then[row.case, row.what], row.value))
    return {key: _build_pair(each) for key, each in values.items()}


def _build_pair(values: Sequence[tuple[float, float]]) -> Pair:
    ratios = [new / old if old else (1.0 if new == old else float("inf")) for old, new in values]
    olds, news = zip(*values, strict=True)
    return Pair(median(olds), median(news), median(ratios), min(ratios), max(ratios), len(values))


def is_within_loss(what: str, ratio: float) -> bool:
    """Return whether the new figure is no worse than the old one, but for MAX_LOSS."""
    return ratio >= 1 - MAX_LOSS if what in HIGHER_IS_BETTER else ratio <= 1 + MAX_LOSS


def render_markdown(facts: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    """Return the page of a run."""
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "date")
    lines = [f"# Paired, {facts.get('date', '')}", "", f"{told}.", ""]
    head = "| work | wire | case | figure | unit | old | new | new / old | lowest | highest | n |"
    lines += [head + f" within {MAX_LOSS:.0%} |", "|---|---|---|---|---|" + "---:|" * 7]
    for (work, wire, case, what, unit), pair in pair_up(turns).items():
        cells = [
            work,
            wire,
            case,
            what,
            unit,
            results.format_number(pair.old),
            results.format_number(pair.new),
        ]
        cells += [f"{each:.3f}" for each in (pair.ratio, pair.low, pair.high)]
        kept = "yes" if is_within_loss(what, pair.ratio) else "**no**"
        lines.append("| " + " | ".join([*cells, str(pair.n), kept]) + " |")
    notes = {
        f"- {turn.work}, {turn.wire}, {name}: {note}"
        for turn in turns
        for name, cell in (("old", turn.old), ("new", turn.new))
        for note in cell.notes
    }
    return "\n".join([*lines, "", *sorted(notes)]) + "\n"


def _save_turn(folder: Path | None, facts: Mapping[str, Any], turns: Sequence[Turn]) -> None:
    if folder is None:
        return
    last = turns[-1]
    told = {
        "work": last.work,
        "wire": last.wire,
        "old": astuple(last.old),
        "new": astuple(last.new),
    }
    with (folder / "turns.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")
    (folder / "table.md").write_text(render_markdown(facts, turns))


if __name__ == "__main__":
    typer.run(main)
