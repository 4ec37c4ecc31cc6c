"""Compare servers by the same works: `make bench`, see README.md."""

from __future__ import annotations

import asyncio
import math
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import catalog, machine, plots, report, results
from .journal import Run
from .kafka import RealKafka, real_kafka
from .peers.peer import Participant
from .works.work import Cell

DEFAULT_WORKS = [name for name in catalog.WORKS if name not in catalog.NAMED_WORKS]
MAX_CELL_S = 60.0  # s; what one of a work and a peer takes, and the end
err_console = Console(stderr=True, highlight=False)
CellPlan = list[tuple[str, Participant]]


def select_names(prefixes: list[str] | None, names: list[str], kind: str) -> list[str]:
    """Names that one of the words begins; all without words. Raises BadParameter."""
    for word in prefixes or ():
        if not any(name == word or name.startswith(f"{word}-") for name in names):
            raise typer.BadParameter(f"there is no {kind} '{word}'; there are: {', '.join(names)}")
    return [
        name
        for name in names
        if not prefixes or any(name == word or name.startswith(f"{word}-") for word in prefixes)
    ]


def main(
    work: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="Only this one, or all of a kind; repeatable.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew where the last run was interrupted.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Print the table, keep nothing.")] = False,
    minutes: Annotated[
        float, typer.Option(help="After these it ends; the same command goes on with the rest.")
    ] = 20.0,
    note: Annotated[str, typer.Option(help="Kept with the result: what else ran.")] = "",
    results_in: Annotated[Path, typer.Option("--results", help="Where runs are kept.")] = (
        results.DIRECTORY
    ),
) -> None:
    """Measure this gateway and its peers with the same work, on one machine, in one run.

    The server has a core to itself; clients, producer and Kafka share another. Of each work
    and peer, what a CPU second of the server delivers is shown as a share of what a bare
    `transport.write` loop does with the same bytes.

    \b
    make bench                                    everything, in at most 20 minutes
    make bench WORK=lat PEER=gateway              one work, this gateway on both wires
    make bench WORK="broadcast joined" PEER="raw gateway-sse nchan"
    make bench ARGS="--dry --work sat --peer c"   print, keep nothing
    make bench ARGS=--new                         not the rest of what was interrupted
    """
    peers = {each.name: each for each in catalog.PEERS}
    asked = {
        "works": select_names(work or DEFAULT_WORKS, list(catalog.WORKS), "work"),
        "peers": select_names(peer, list(peers), "peer"),
    }
    within = None if dry else results_in
    run = None if new or within is None else Run.find_interrupted(within, asked)
    if run is None:
        run = Run.create(
            within, {**results.describe_machine(note), **machine.describe_cores()}, asked
        )
    else:
        err_console.print(f"going on with {run.folder}: {len(run.cells)} are done")
    ends = time.monotonic() + 60 * minutes - MAX_CELL_S
    ok = measure_cells(run, list_remaining(run, [peers[name] for name in asked["peers"]]), ends)
    print(report.render_markdown(run))
    raise typer.Exit(0 if ok else 1)


def list_remaining(run: Run, peers: list[Participant]) -> CellPlan:
    """What is left to do; peers that cannot take part are noted."""
    run.absent = {peer.name: lacks for peer in peers if (lacks := peer.describe_missing())}
    return [
        (work, peer)
        for work in run.asked["works"]
        for peer in peers
        if peer.name not in run.absent
        and catalog.takes_part(peer, work)
        and (work, peer.name) not in run.cells
    ]


def measure_cells(run: Run, cells: CellPlan, deadline: float = math.inf) -> bool:
    """True if none failed and nobody interrupted. What was found before ^C is kept.

    ends: when no more are begun (`time.monotonic()`).
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with us
    failed = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    # It is drawn between two measurements only: a thread that draws would be late on clients.
    bar = Progress(*columns, TimeElapsedColumn(), console=err_console, auto_refresh=False)
    with bar, closing(_start_brokers(cells)) as brokers:
        task = bar.add_task("starting", total=len(cells))
        for kafka, work, peer in brokers:
            if time.monotonic() > deadline:
                err_console.print("the time is up; the same command goes on from here")
                break
            bar.update(task, description=f"{work:10} {peer.name:14}")
            bar.refresh()
            try:
                cell = measure_cell(kafka, work, peer, run.get_round_rates(work, peer.name))
            except KeyboardInterrupt:
                err_console.print("interrupted; the same command goes on from here")
                failed += 1
                break
            except Exception as error:
                failed += 1
                run.failed[f"{work} {peer.name}"] = repr(error)
                err_console.print(f"[red]{work} {peer.name} failed[/]\n{traceback.format_exc()}")
            else:
                run.add_cell(work, peer.name, cell)
                err_console.print(format_summary(work, peer.name, cell), soft_wrap=True)
            bar.advance(task)
            write_outputs(run)
        else:
            run.finished = not failed
            write_outputs(run)
    return not failed


def _start_brokers(cells: CellPlan) -> Iterator[tuple[RealKafka, str, Participant]]:
    """Yield the cells with the Kafka that each needs; the works of the gateway alone are last."""

    def count_alone(cell: tuple[str, Participant]) -> int:
        return catalog.ALONE[cell[0]][0] if cell[0] in catalog.ALONE else 0

    for nodes, group in groupby(sorted(cells, key=count_alone), count_alone):
        machine.pin_process(is_pinned=not nodes)
        with real_kafka(nodes or 1) as kafka:
            yield from ((kafka, work, peer) for work, peer in group)


def measure_cell(
    kafka: RealKafka, work: str, peer: Participant, round_rates: Mapping[str, float] | None = None
) -> Cell:
    """pace: see `catalog.work_of`."""
    began = time.monotonic()
    try:
        # The plain sockets of the gateway alone are read by asyncio's own loop.
        loop_factory = None if work in catalog.ALONE else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            cell: Cell = runner.run(catalog.get_work(work, peer, round_rates or {})(kafka, peer))
    finally:
        kafka.delete_topics()
    if not cell.rows:
        raise RuntimeError("; ".join(cell.notes))
    cell.seconds = time.monotonic() - began
    return cell


def format_summary(work: str, peer: str, cell: Cell) -> str:
    lines = [f"[bold]{work} {peer}[/] {cell.seconds:.0f} s"]
    for row in cell.rows:
        lines.append(f"  {row.case}: {row.what} {results.format_number(row.value)} {row.unit}")
    return "\n".join(lines + [f"  [yellow]{note}[/]" for note in cell.notes])


def write_outputs(run: Run) -> None:
    """All that can be made of what there is, anew."""
    if run.folder is None:
        return
    run.save()
    (run.folder / "table.md").write_text(report.render_markdown(run))
    (run.folder / "table.csv").write_text(report.render_csv(run))
    if run.finished:
        with suppress(ImportError):
            plots.draw_plots(run, run.folder)


if __name__ == "__main__":
    typer.run(main)
