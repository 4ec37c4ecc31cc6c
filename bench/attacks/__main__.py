"""Run attacks and print what they cost: `python -m bench.attacks`, see ../README.md."""

from __future__ import annotations

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from support.brokers import KafkaCluster

from .. import machine, report, results
from ..__main__ import err_console
from ..goals import judge
from ..kafka import running_kafka
from ..peers.peer import ROOT
from ..results import Cell, Run
from .catalog import ATTACKS
from .measure import AttackResult, Size, add_results, measure_attack


def main(
    gateway: Annotated[
        list[Path] | None,
        typer.Option(help="A checkout that is attacked; repeatable, they take turns."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="An attack; repeatable.")] = None,
    runs: Annotated[int, typer.Option(help="Of each attack on each checkout.")] = 3,
    dry: Annotated[bool, typer.Option("--dry", help="Print the table, keep nothing.")] = False,
    note: Annotated[str, typer.Option(help="Kept with the result: what else ran.")] = "",
    results_in: Annotated[
        Path, typer.Option("--results", help="Where it is kept.")
    ] = results.DIRECTORY,
) -> None:
    """Attack gateways of one or more checkouts, and measure what others have of it."""
    checkouts = _name_checkouts(gateway or [ROOT])
    for name in only or ():
        if name not in ATTACKS:
            raise typer.BadParameter(f"no attack '{name}'; there are: {', '.join(ATTACKS)}")
    facts = results.describe_machine(note)
    facts |= {f"gateway {name}": results.get_commit(path) for name, path in checkouts.items()}
    asked = {"works": list(only or ATTACKS), "peers": list(checkouts)}
    run = Run.create(None if dry else results_in, facts, asked, "-attacks")
    for label in checkouts:
        run.add_cell("attacks", label, Cell())
    machine.pin_process()
    with running_kafka() as kafka:
        for name in asked["works"]:
            _attack_checkouts(kafka, run, name, checkouts, runs)
            run.save(report.render_markdown(run))
    run.finished = not run.failed
    page = report.render_markdown(run)
    run.save(page)
    print(page)


def _attack_checkouts(
    kafka: KafkaCluster, run: Run, name: str, checkouts: Mapping[str, Path], repeats: int
) -> None:
    """Attack every checkout, in turns, and add what was found to its cell."""
    found: dict[str, list[AttackResult]] = defaultdict(list)
    for _ in range(repeats):
        for label, path in checkouts.items():
            try:
                found[label].append(attack_once(kafka, name, path))
            except Exception as error:
                run.failed[f"{name} {label}"] = repr(error)
                err_console.print(f"[red]{name} {label} failed[/]\n{traceback.format_exc()}")
    for cell in run.cells:
        if found[cell.peer]:
            add_results(cell, name, ATTACKS[name], found[cell.peer])
            misses = {
                miss.what
                for miss in judge(run)[0]
                if miss.cells[1:3] == (name, cell.peer) and not miss.is_stretch
            }
            p99 = next(row for row in cell.rows if (row.case, row.what) == (name, "p99"))
            err_console.print(
                f"{name:20} {cell.peer:10} p99 {p99.value:.2f} ms, misses {misses or 'none'}"
            )


def attack_once(kafka: KafkaCluster, name: str, checkout: Path) -> AttackResult:
    """Attack a gateway of this checkout once."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure_attack(kafka, (name, ATTACKS[name]), checkout, Size()))
    finally:
        kafka.delete_topics()


def _name_checkouts(paths: Sequence[Path]) -> dict[str, Path]:
    """Name checkouts by their folders, or by their paths where those are alike."""
    whole = [results.resolve_checkout(path) for path in paths]
    names = [path.name for path in whole]
    return {str(path) if names.count(path.name) > 1 else path.name: path for path in whole}


if __name__ == "__main__":
    typer.run(main)
