"""Compare two checkouts of the gateway, in turns: `python -m bench.paired --old PATH`.

The load of a machine changes from minute to minute, and the figures of two runs differ by more than
a small change of the code does. Here old and new take turns within minutes, each first every other
time, and a figure is the median of the ratios of the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from . import catalog, machine, results
from .__main__ import err_console, measure_cell
from .feed import Wire
from .goals import LIBRARY_SHARE
from .kafka import running_kafka
from .peers.gateway_peer import GatewayPeer
from .peers.peer import ROOT, Participant
from .peers.transfer_servers import RECORDS_PER_CPU, TransferPeer
from .report import render_head, render_table
from .results import PER_CPU, PER_SECOND, ROUNDS_PER_SECOND, Run, format_number, median

DEFAULT_WORKS = ("lat", "sat", "keys", "idle", "storm")
HIGHER_IS_BETTER = (
    *(PER_CPU, PER_SECOND, ROUNDS_PER_SECOND, RECORDS_PER_CPU, LIBRARY_SHARE),
    *("records of a second", "delivered in time"),
)
MAX_LOSS = 0.03  # share by which the new one may be worse
CHECKOUTS = ("old", "new")
HEADS = (
    "work",
    "peer",
    "case",
    "figure",
    "unit",
    "old",
    "new",
    "new / old",
    "lowest",
    "highest",
    "n",
)


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
    results_in: Annotated[
        Path, typer.Option("--results", help="Where it is kept.")
    ] = results.DIRECTORY,
) -> None:
    """Compare two checkouts of the gateway: each work of both in turns, figures as new / old."""
    for name in work or ():
        if name not in catalog.WORKS:
            raise typer.BadParameter(f"no work '{name}'; see bench/README.md")
    checkouts = results.resolve_checkout(old), results.resolve_checkout(new)
    works, wires = list(work or DEFAULT_WORKS), wire or list(Wire)
    facts = results.describe_machine(note)
    facts |= {n: results.get_commit(path) for n, path in zip(CHECKOUTS, checkouts, strict=True)}
    asked = {"works": works, "peers": [str(each) for each in wires]}
    run = Run.create(None if dry else results_in, facts, asked, "-paired")
    machine.pin_process()
    with running_kafka() as kafka:
        for n in range(turns):
            for name, choices in _list_peers(works, wires, checkouts):
                for index in (0, 1) if n % 2 == 0 else (1, 0):
                    peer = choices[index]
                    err_console.print(f"{name} {peer.name} {checkouts[index]}")
                    cell = measure_cell(kafka, name, peer)
                    run.add_cell(name, f"{peer.name} {CHECKOUTS[index]}", cell)
                run.save(render_markdown(run))
    run.finished = True
    page = render_markdown(run)
    run.save(page)
    print(page)


def _list_peers(
    works: Sequence[str], wires: Sequence[Wire], checkouts: Sequence[Path]
) -> Iterator[tuple[str, Sequence[Participant]]]:
    """Yield each work with the peers of old and new."""
    for name in works:
        if catalog.takes_part(TransferPeer(), name):
            yield name, [TransferPeer(checkout=each) for each in checkouts]
        else:
            for wire in wires:
                yield name, [GatewayPeer(wire, checkout=each) for each in checkouts]


def pair_up(run: Run) -> dict[tuple[str, str, str, str, str], Pair]:
    """Return the figures of both by work, peer, case, what and unit."""
    values: dict[tuple[str, str, str, str, str], list[tuple[float, float]]] = {}
    for work, peer in dict.fromkeys((c.work, c.peer.rpartition(" ")[0]) for c in run.cells):
        olds, news = (
            [cell for cell in run.cells if (cell.work, cell.peer) == (work, f"{peer} {each}")]
            for each in CHECKOUTS
        )
        for before, after in zip(olds, news, strict=False):
            then = {(row.case, row.what): row.value for row in before.rows}
            for row in after.rows:
                if (row.case, row.what) in then:
                    pair = then[row.case, row.what], row.value
                    values.setdefault((work, peer, row.case, row.what, row.unit), []).append(pair)
    return {key: _build_pair(each) for key, each in values.items()}


def _build_pair(values: Sequence[tuple[float, float]]) -> Pair:
    ratios = [new / old if old else (1.0 if new == old else float("inf")) for old, new in values]
    olds, news = zip(*values, strict=True)
    return Pair(median(olds), median(news), median(ratios), min(ratios), max(ratios), len(values))


def is_within_loss(what: str, ratio: float) -> bool:
    """Return whether the new figure is no worse than the old one, but for MAX_LOSS."""
    return ratio >= 1 - MAX_LOSS if what in HIGHER_IS_BETTER else ratio <= 1 + MAX_LOSS


def render_markdown(run: Run) -> str:
    """Return the page of a run."""
    lines = []
    for key, pair in pair_up(run).items():
        ratios = [f"{each:.3f}" for each in (pair.ratio, pair.low, pair.high)]
        kept = "yes" if is_within_loss(key[3], pair.ratio) else "**no**"
        both = format_number(pair.old), format_number(pair.new)
        lines.append([*key, *both, *ratios, str(pair.n), kept])
    notes = {f"- {cell.work}, {cell.peer}: {note}" for cell in run.cells for note in cell.notes}
    table = render_table([*HEADS, f"within {MAX_LOSS:.0%}"], 5, lines)
    return "\n".join([*render_head("Paired", run.facts), *table, "", *sorted(notes)]) + "\n"


if __name__ == "__main__":
    typer.run(main)
