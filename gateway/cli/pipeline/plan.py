"""`gateway pipeline plan`."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE

_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _parse_number(text: str) -> float:
    """`10M/s`, `1k`, `200GB`, `20%`: decimal."""
    found = re.fullmatch(r"([\d_.]+)\s*([kKMGT]?)B?(?:/s)?(%?)", text.strip())
    if found is None:
        raise typer.BadParameter(f"'{text}' is no number; write such as 10M/s, 200GB, 20%")
    return float(found[1]) * _SCALE[found[2].upper()] / (100 if found[3] else 1)


def _parse_duration(text: str) -> float:
    from gateway.config.types.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def plan(
    kind: Annotated[
        str, typer.Option(help="stateless, aggregate, sessions, join or enrich.")
    ] = "stateless",
    events: Annotated[
        float, typer.Option(parser=_parse_number, metavar="RATE", help="A second: 10M/s.")
    ] = "1000",  # type: ignore[assignment]
    state: Annotated[
        float, typer.Option(parser=_parse_number, metavar="SIZE", help="All of it: 200GB.")
    ] = "0",  # type: ignore[assignment]
    keys: Annotated[
        float, typer.Option(parser=_parse_number, metavar="N", help="With state, or in use: 50M.")
    ] = "0",  # type: ignore[assignment]
    sla: Annotated[
        float,
        typer.Option(parser=_parse_duration, metavar="TIME", help="From event to output, p99."),
    ] = "2s",  # type: ignore[assignment]
    output: Annotated[
        float | None, typer.Option(parser=_parse_number, metavar="RATE", help="Rows a second.")
    ] = None,
    guarantee: Annotated[str, typer.Option(help="exactly-once or at-least-once.")] = "exactly-once",
    cores: Annotated[int, typer.Option(min=1, help="Of an executor.")] = 8,
    executors: Annotated[
        int | None, typer.Option(min=1, help="As many as there are; else computed.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            parser=_parse_number, metavar="SIZE", help="An executor's for state; else computed."
        ),
    ] = None,
    active: Annotated[
        float,
        typer.Option(parser=_parse_number, metavar="SHARE", help="Of the state that is in use."),
    ] = "20%",  # type: ignore[assignment]
    hot: Annotated[
        float, typer.Option(parser=_parse_number, metavar="SHARE", help="Of events, of one key.")
    ] = "0%",  # type: ignore[assignment]
    bandwidth: Annotated[
        float,
        typer.Option(
            parser=_parse_number, metavar="RATE", help="Of an executor, to the checkpoint."
        ),
    ] = "500MB",  # type: ignore[assignment]
    gap: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Of sessions.")
    ] = "0s",  # type: ignore[assignment]
    watermark: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Of sessions.")
    ] = "0s",  # type: ignore[assignment]
    max_length: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Of sessions.")
    ] = "0s",  # type: ignore[assignment]
    table: Annotated[
        float, typer.Option(parser=_parse_number, metavar="SIZE", help="To enrich from: 500GB.")
    ] = "0",  # type: ignore[assignment]
    staleness: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Of values in caches.")
    ] = "5s",  # type: ignore[assignment]
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
) -> None:
    """Say what a job needs: cores, executors, memory, partitions, checkpoint, restart.

    It multiplies what was measured on two cores (each line says from what), so that it is a first
    guess, to be measured on the cluster itself. Exit code 1 where something is not on this design.

    \b
    gateway pipeline plan --kind sessions --events 10M/s --state 200GB --keys 1G --sla 1s
    gateway pipeline plan --kind enrich --events 100k/s --table 500GB --staleness 5s
    """
    from gateway.pipeline.plan.report import render_text
    from gateway.pipeline.plan.report import to_json as plain
    from gateway.pipeline.plan.sizing import KINDS, JobRequirements
    from gateway.pipeline.plan.sizing import build_plan as computed

    if kind not in KINDS:
        raise typer.BadParameter(f"use one of {', '.join(KINDS)}", param_hint="--kind")
    if guarantee not in ("exactly-once", "at-least-once"):
        raise typer.BadParameter("use exactly-once or at-least-once", param_hint="--guarantee")
    made = computed(
        JobRequirements(
            kind=kind, events=events, state=state, keys=keys, sla=sla, output=output,
            exactly_once=guarantee == "exactly-once", cores=cores, executors=executors,
            memory=memory, active=active, hot=hot, bandwidth=bandwidth, gap=gap,
            watermark=watermark, max_length=max_length, table=table, staleness=staleness,
        )
    )  # fmt: skip
    typer.echo(json.dumps(plain(made)) if as_json else render_text(made))
    if made.refused:
        raise typer.Exit(EXIT_FAILURE)
