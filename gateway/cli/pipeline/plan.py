"""`gateway pipeline plan`: compute the size of the cluster that a job needs."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _parse_number(text: str) -> float:
    """Return the value of a text such as `10M/s`, `1k`, `200GB` or `20%`. Units are decimal."""
    match = re.fullmatch(r"([\d_.]+)\s*([kKMGT]?)B?(?:/s)?(%?)", text.strip())
    if match is None:
        raise typer.BadParameter(f"'{text}' is not a number such as 10M/s, 200GB or 20%")
    return float(match[1]) * _SCALE[match[2].upper()] / (100 if match[3] else 1)


def _parse_positive(text: str) -> float:
    if (value := _parse_number(text)) <= 0:
        raise typer.BadParameter(f"'{text}' must be more than 0")
    return value


def _parse_duration(text: str) -> float:
    from gateway.config.types.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def plan(
    kind: Annotated[
        str, typer.Option(help="Kind of job: stateless, aggregate, sessions, join or enrich.")
    ] = "stateless",
    events: Annotated[
        float,
        typer.Option(
            parser=_parse_number, metavar="RATE", help="Events per second, such as 10M/s."
        ),
    ] = "1000",  # type: ignore[assignment]
    state: Annotated[
        float,
        typer.Option(
            parser=_parse_number, metavar="SIZE", help="Size of the whole state, such as 200GB."
        ),
    ] = "0",  # type: ignore[assignment]
    keys: Annotated[
        float,
        typer.Option(
            parser=_parse_number, metavar="N", help="Keys with state, or in use, such as 50M."
        ),
    ] = "0",  # type: ignore[assignment]
    output: Annotated[
        float | None,
        typer.Option(parser=_parse_number, metavar="RATE", help="Output rows per second."),
    ] = None,
    guarantee: Annotated[
        str, typer.Option(help="Guarantee: exactly-once or at-least-once.")
    ] = "exactly-once",
    cores: Annotated[int, typer.Option(min=1, help="Cores per executor.")] = 8,
    executors: Annotated[
        int | None, typer.Option(min=1, help="Number of executors.  [computed]")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            parser=_parse_number, metavar="SIZE", help="Memory for state per executor.  [computed]"
        ),
    ] = None,
    active: Annotated[
        float,
        typer.Option(
            parser=_parse_positive, metavar="SHARE", help="Share of the state that is in use."
        ),
    ] = "20%",  # type: ignore[assignment]
    hot: Annotated[
        float,
        typer.Option(
            parser=_parse_number, metavar="SHARE", help="Share of events that have the same key."
        ),
    ] = "0%",  # type: ignore[assignment]
    bandwidth: Annotated[
        float,
        typer.Option(
            parser=_parse_positive, metavar="RATE", help="Bandwidth per executor to the checkpoint."
        ),
    ] = "500MB",  # type: ignore[assignment]
    gap: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Gap that ends a session.")
    ] = "0s",  # type: ignore[assignment]
    watermark: Annotated[
        float,
        typer.Option(parser=_parse_duration, metavar="TIME", help="Watermark delay of sessions."),
    ] = "0s",  # type: ignore[assignment]
    max_length: Annotated[
        float, typer.Option(parser=_parse_duration, metavar="TIME", help="Longest session.")
    ] = "0s",  # type: ignore[assignment]
    table: Annotated[
        float,
        typer.Option(
            parser=_parse_number,
            metavar="SIZE",
            help="Size of the table to enrich from, such as 500GB.",
        ),
    ] = "0",  # type: ignore[assignment]
    staleness: Annotated[
        float,
        typer.Option(parser=_parse_duration, metavar="TIME", help="Greatest age of cached values."),
    ] = "5s",  # type: ignore[assignment]
) -> None:
    """Compute what a job needs: cores, memory, partitions.

    It also computes the size of the checkpoint and the time of a restart. The figures are
    extrapolated from measurements on two cores (each line says from which), so measure again on
    the cluster itself.

    \b
    gateway pipeline plan --kind sessions --events 10M/s --state 200GB --keys 1G
    gateway pipeline plan --kind enrich --events 100k/s --table 500GB --staleness 5s
    """
    from gateway.pipeline.plan.sizing import KINDS, JobRequirements, build_plan, render_table

    if kind not in KINDS:
        raise typer.BadParameter(f"use one of {', '.join(KINDS)}", param_hint="--kind")
    if guarantee not in ("exactly-once", "at-least-once"):
        raise typer.BadParameter("use exactly-once or at-least-once", param_hint="--guarantee")
    result = build_plan(
        JobRequirements(
            kind=kind, events=events, state=state, keys=keys, output=output,
            exactly_once=guarantee == "exactly-once", cores=cores, executors=executors,
            memory=memory, active=active, hot=hot, bandwidth=bandwidth, gap=gap,
            watermark=watermark, max_length=max_length, table=table, staleness=staleness,
        )
    )  # fmt: skip
    typer.echo(render_table(result))
