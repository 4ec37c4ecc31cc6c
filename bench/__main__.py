"""Compare servers by the same works: `make bench`, see README.md."""

from __future__ import annotations

import asyncio
import math
import signal
import time
import traceback
from collections.abc import Generator, Mapping
from contextlib import closing, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from support.brokers import KafkaCluster

from . import catalog, machine, report, results
from .kafka import running_kafka
from .peers.peer import Participant
from .peers.raw import RawLoop
from .results import Cell, Run

DEFAULT_WORKS = [name for name, work in catalog.WORKS.items() if not work.is_named]
MAX_CELL_S = 60.0  # s; what one of a work and a peer takes, and the end
err_console = Console(stderr=True, highlight=False)
CellPlan = list[tuple[str, Participant]]


def select_names(prefixes: list[str] | None, names: list[str], kind: str) -> list[str]:
    """Names that one of the words begins; all without words. Raises BadParameter."""

    def begins(name: str, word: str) -> bool:
        return name == word or name.startswith(f"{word}-")

    for word in prefixes or ():
        if not any(begins(name, word) for name in names):
            raise typer.BadParameter(f"there is no {kind} '{word}'; there are: {', '.join(names)}")
    return [name for name in names if not prefixes or any(begins(name, w) for w in prefixes)]


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
    results_in: Annotated[
        Path, typer.Option("--results", help="Where runs are kept.")
    ] = results.DIRECTORY,
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
        "works": select_names(work, list(catalog.WORKS), "work") if work else DEFAULT_WORKS,
        "peers": select_names(peer, list(peers), "peer"),
    }
    within = None if dry else results_in
    run = None if new or within is None else Run.find_interrupted(within, asked)
    if run is None:
        run = Run.create(within, results.describe_machine(note), asked)
    else:
        err_console.print(f"going on with {run.folder}: {len(run.cells)} are done")
    ends = time.monotonic() + 60 * minutes - MAX_CELL_S
    ok = measure_cells(run, list_remaining(run, [peers[name] for name in asked["peers"]]), ends)
    print(report.render_markdown(run))
    raise typer.Exit(0 if ok else 1)


def list_remaining(run: Run, peers: list[Participant]) -> CellPlan:
    """What is left to do; peers that cannot take part are noted."""
    left = [
        (work, peer)
        for work in run.asked["works"]
        for peer in peers
        if catalog.takes_part(peer, work) and run.get_cell(work, peer.name) is None
    ]
    run.absent = {peer.name: lacks for _, peer in left if (lacks := peer.describe_missing())}
    return [(work, peer) for work, peer in left if peer.name not in run.absent]


def measure_cells(run: Run, cells: CellPlan, deadline: float = math.inf) -> bool:
    """True if none failed and nobody interrupted. What was found before ^C is kept.

    deadline: when no more are begun (`time.monotonic()`).
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
                err_console.print(format_summary(cell), soft_wrap=True)
            bar.advance(task)
            run.save(report.render_markdown(run))
        else:
            run.finished = not failed
            run.save(report.render_markdown(run))
    return not failed


def _start_brokers(cells: CellPlan) -> Generator[tuple[KafkaCluster | None, str, Participant]]:
    """Yield the cells with the Kafka that each needs."""

    def get_setting(cell: tuple[str, Participant]) -> tuple[bool, int]:
        work = catalog.WORKS[cell[0]]
        return not work.is_pinned, work.node_count

    for (is_free, node_count), group in groupby(sorted(cells, key=get_setting), get_setting):
        machine.pin_process(is_pinned=not is_free)
        with running_kafka(node_count) if node_count else nullcontext() as kafka:
            yield from ((kafka, work, peer) for work, peer in group)


def measure_cell(
    kafka: KafkaCluster | None,
    name: str,
    peer: Participant,
    round_rates: Mapping[str, float] | None = None,
) -> Cell:
    """round_rates: rounds a second by case, for who has no Kafka before it that would set one."""
    began, work = time.monotonic(), catalog.WORKS[name]
    is_paced = name in ("broadcast", "joined") and isinstance(peer, RawLoop)
    options = {"round_rates": round_rates or {}} if is_paced else {}
    try:
        found = work.run(kafka, peer, **options)
        if isinstance(found, Cell):
            cell = found
        else:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                cell = runner.run(found)
    finally:
        if kafka is not None:
            kafka.delete_topics()
    if not cell.rows:
        raise RuntimeError("; ".join(cell.notes))
    if not work.is_pinned:
        cell.add_note("server, clients and broker shared all cores")
    cell.seconds = time.monotonic() - began
    return cell


def format_summary(cell: Cell) -> str:
    lines = [f"[bold]{cell.work} {cell.peer}[/] {cell.seconds:.0f} s"]
    for row in cell.rows:
        lines.append(f"  {row.case}: {row.what} {results.format_number(row.value)} {row.unit}")
    return "\n".join(lines + [f"  [yellow]{note}[/]" for note in cell.notes])


if __name__ == "__main__":
    typer.run(main)
