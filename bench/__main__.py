"""`make bench`: see README.md."""

from __future__ import annotations

import asyncio
import math
import signal
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import catalog, machine, plots, report, results
from .journal import Run
from .kafka import RealKafka, real_kafka
from .peers.peer import Partaker
from .works.work import Cell

LONGEST = 60.0  # s; what one of a work and a peer takes, and the end
err = Console(stderr=True, highlight=False)
Plan = list[tuple[str, Partaker]]


def chosen(words: list[str] | None, names: list[str], what: str) -> list[str]:
    """Names that one of the words begins; all without words. Raises BadParameter."""
    for word in words or ():
        if not any(name == word or name.startswith(f"{word}-") for name in names):
            raise typer.BadParameter(f"there is no {what} '{word}'; there are: {', '.join(names)}")
    return [
        name
        for name in names
        if not words or any(name == word or name.startswith(f"{word}-") for word in words)
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
        "works": chosen(work, list(catalog.WORKS), "work"),
        "peers": chosen(peer, list(peers), "peer"),
    }
    within = None if dry else results_in
    run = None if new or within is None else Run.interrupted(within, asked)
    if run is None:
        run = Run.new(within, {**results.machine(note), **machine.facts()}, asked)
    else:
        err.print(f"going on with {run.folder}: {len(run.cells)} are done")
    ends = time.monotonic() + 60 * minutes - LONGEST
    ok = measure(run, plan(run, [peers[name] for name in asked["peers"]]), ends)
    print(report.as_markdown(run))
    raise typer.Exit(0 if ok else 1)


def plan(run: Run, peers: list[Partaker]) -> Plan:
    """What is left to do; peers that cannot take part are noted."""
    run.absent = {peer.name: lacks for peer in peers if (lacks := peer.missing())}
    return [
        (work, peer)
        for work in run.asked["works"]
        for peer in peers
        if peer.name not in run.absent
        and catalog.takes_part(peer, work)
        and (work, peer.name) not in run.cells
    ]


def measure(run: Run, cells: Plan, ends: float = math.inf) -> bool:
    """True if none failed and nobody interrupted. What was found before ^C is kept.

    ends: when no more are begun (`time.monotonic()`).
    """
    machine.settle()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with us
    failed = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    # It is drawn between two measurements only: a thread that draws would be late on clients.
    bar = Progress(*columns, TimeElapsedColumn(), console=err, auto_refresh=False)
    with bar, real_kafka(1) as kafka:
        task = bar.add_task("starting", total=len(cells))
        for work, peer in cells:
            if time.monotonic() > ends:
                err.print("the time is up; the same command goes on from here")
                break
            bar.update(task, description=f"{work:10} {peer.name:14}")
            bar.refresh()
            try:
                cell = one(kafka, work, peer, run.pace(work, peer.name))
            except KeyboardInterrupt:
                err.print("interrupted; the same command goes on from here")
                failed += 1
                break
            except Exception as error:
                failed += 1
                run.failed[f"{work} {peer.name}"] = repr(error)
                err.print(f"[red]{work} {peer.name} failed[/]\n{traceback.format_exc()}")
            else:
                run.add(work, peer.name, cell)
                err.print(summary(work, peer.name, cell), soft_wrap=True)
            bar.advance(task)
            keep(run)
        else:
            run.finished = not failed
            keep(run)
    return not failed


def one(
    kafka: RealKafka, work: str, peer: Partaker, pace: Mapping[str, float] | None = None
) -> Cell:
    """pace: see `catalog.work_of`."""
    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            cell: Cell = runner.run(catalog.work_of(work, peer, pace or {})(kafka, peer))
    finally:
        kafka.forget_topics()
    if not cell.rows:
        raise RuntimeError("; ".join(cell.notes))
    cell.seconds = time.monotonic() - began
    return cell


def summary(work: str, peer: str, cell: Cell) -> str:
    lines = [f"[bold]{work} {peer}[/] {cell.seconds:.0f} s"]
    for row in cell.rows:
        lines.append(f"  {row.case}: {row.what} {results.rounded(row.value)} {row.unit}")
    return "\n".join(lines + [f"  [yellow]{note}[/]" for note in cell.notes])


def keep(run: Run) -> None:
    """All that can be made of what there is, anew."""
    if run.folder is None:
        return
    run.save()
    (run.folder / "table.md").write_text(report.as_markdown(run))
    (run.folder / "table.csv").write_text(report.as_csv(run))
    if run.finished:
        with suppress(ImportError):
            plots.draw(run, run.folder)


if __name__ == "__main__":
    typer.run(main)
