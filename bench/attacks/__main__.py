"""Run attacks and print what they cost: `python -m bench.attacks`, see ../README.md."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from .. import machine, results
from ..journal import TIMESTAMP_FORMAT
from ..kafka import RealKafka, real_kafka
from ..peers.peer import ROOT
from . import report
from .catalog import ATTACKS
from .measure import AttackResult, Size, measure_attack

err_console = Console(stderr=True, highlight=False)
Runs = dict[tuple[str, str], list[Mapping[str, Any]]]


def main(
    gateway: Annotated[
        list[Path] | None,
        typer.Option(help="A checkout that is attacked; repeatable, they take turns."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="An attack; repeatable.")] = None,
    runs: Annotated[int, typer.Option(help="Of each attack on each checkout.")] = 3,
    dry: Annotated[bool, typer.Option("--dry", help="Print the table, keep nothing.")] = False,
    note: Annotated[str, typer.Option(help="Kept with the result: what else ran.")] = "",
    results_in: Annotated[Path, typer.Option("--results", help="Where it is kept.")] = (
        results.DIRECTORY
    ),
) -> None:
    """Attack gateways of one or more checkouts, and measure what others have of it."""
    checkouts = _name_checkouts(gateway or [ROOT])
    for name in only or ():
        if name not in ATTACKS:
            raise typer.BadParameter(f"no attack '{name}'; there are: {', '.join(ATTACKS)}")
    facts = {**results.describe_machine(note), **machine.describe_cores()}
    facts |= {f"gateway {name}": results.get_commit(path) for name, path in checkouts.items()}
    folder = None
    if not dry:
        folder = results_in / f"{datetime.now(UTC).strftime(TIMESTAMP_FORMAT)}-attacks"
        folder.mkdir(parents=True)
        (folder / "machine.json").write_text(json.dumps(facts, indent=1) + "\n")
    found = attack_all(list(only or ATTACKS), checkouts, runs, facts, folder)
    print(report.render_markdown({**facts, **results.get_load("after")}, found))


def attack_all(
    names: Sequence[str],
    checkouts: Mapping[str, Path],
    runs: int,
    facts: Mapping[str, Any],
    folder: Path | None,
) -> Runs:
    """Attack every checkout with each of these, in turns, and keep what was found as it comes."""
    machine.pin_process()
    found: Runs = {}
    with real_kafka(1) as kafka:
        for name in names:
            for _ in range(runs):
                for label, path in checkouts.items():
                    began = time.monotonic()
                    try:
                        one = attack_once(kafka, name, path)
                    except Exception:
                        err_console.print(
                            f"[red]{name} {label} failed[/]\n{traceback.format_exc()}"
                        )
                        continue
                    told = one.summarize()
                    found.setdefault((name, label), []).append(told)
                    err_console.print(_format_summary(name, label, told, time.monotonic() - began))
                    _save_run(folder, facts, found, {"attack": name, "gateway": label, **told})
    return found


def attack_once(kafka: RealKafka, name: str, checkout: Path) -> AttackResult:
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


def _format_summary(name: str, label: str, summary: Mapping[str, Any], seconds: float) -> str:
    one = report.summarize([summary])
    worst = ", ".join(report.find_missed_goals(name, one)) or "none"
    return (
        f"{name:20} {label:10} {seconds:4.0f} s  p99 {one['idle p99']:.2f} -> {one['p99']:.2f} ms, "
        f"{one['memory'][1] / 2**20:.0f} MiB, misses {worst}"
    )


def _save_run(folder: Path | None, facts: Mapping[str, Any], runs: Runs, line: object) -> None:
    if folder is None:
        return
    with (folder / "runs.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    (folder / "table.md").write_text(report.render_markdown(facts, runs))


if __name__ == "__main__":
    typer.run(main)
