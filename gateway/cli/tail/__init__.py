"""`gateway tail`: follow a stream over SSE, or topics without a gateway.

This module has the command. `target` parses its argument, and `run` connects a `source` (of
`in_process` for topics) to a `follower`, which reconnects, counts and keeps the position. `printer`
writes records to stdout, and everything else to stderr. Start reading with `run`, then `follower`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.kafka_connection import KafkaSource
from gateway.cli.options import (
    DEFAULT_SERVERS,
    KafkaConfigOption,
    ServersOption,
    build_file_option,
    complete_topic,
    is_given,
)

from .target import OutputFormat

# Parameters, each with its option, that have no effect for a URL, and for topics.
_TOPIC_OPTIONS = {"config": "--config", "servers": "--servers"}
_URL_OPTIONS = {
    "headers": "--header", "token": "--token", "cacert": "--cacert", "insecure": "--insecure"
}  # fmt: skip


def tail(
    ctx: typer.Context,
    stream: Annotated[
        str,
        typer.Argument(
            metavar="URL|TOPIC",
            show_default=False,
            help="A stream: http(s)://; or topics of a Kafka, separated by commas.",
            autocompletion=complete_topic,
        ),
    ],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            autocompletion=lambda: ["live", "earliest", "-5m", "-1h", "-1d"],
            help="Start at live, earliest, -5m, an ISO 8601 time, or a position as ^C prints it.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            autocompletion=lambda: ["latest", "-5m"],
            help="End at latest, or at a time as above.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many records.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Select records: key=alice, /amount>=10, or JSON; repeatable, all must match.",
        ),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            metavar="POINTERS", help="Print only these fields, such as /id,/customer/name."
        ),
    ] = None,
    style: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            show_default=False,
            help="Format of records.  [default: pretty on a terminal, else json]",
        ),
    ] = None,
    position: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Keep the position in this file, and continue from it.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail at a gap; the position stays before it.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but errors on stderr.")
    ] = False,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="'NAME: VALUE'", help="Add a header to requests; repeatable."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="JWT",
            envvar="GATEWAY_TOKEN",
            help="Send this token as Authorization: Bearer.",
            show_envvar=True,
        ),
    ] = None,
    cacert: Annotated[
        Path | None,
        build_file_option("--cacert", help="Trust only the certificates in this file (PEM)."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept any certificate. Tokens may be stolen.")
    ] = False,
    servers: ServersOption = DEFAULT_SERVERS,
    config: KafkaConfigOption = None,
) -> None:
    """Follow a stream of a gateway, or topics of a Kafka without one.

    Records go to stdout, everything else to stderr. If the connection is lost, the command connects
    again and continues exactly where it stopped. A gap (records that Kafka no longer has) is
    reported; it is an error only with --strict.

    \b
    pretty  for people: time, partition:offset, key, value
    json    for jq: one JSON value per line, in which objects and arrays are no text
    value   only the values, byte for byte

    \b
    gateway tail http://localhost:8080/events/orders
    gateway tail http://localhost:8080/events/orders --filter '/amount>=100'
    gateway tail orders --servers localhost:9092 --from earliest --until latest | jq .value.total
    gateway tail orders --position orders.position --format value >> orders.jsonl
    """
    import asyncio

    from .run import TailSession
    from .target import PositionFile, Target

    try:
        target = Target.parse(stream)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="URL|TOPIC") from None
    unused = _TOPIC_OPTIONS if target.scheme else _URL_OPTIONS
    hint = "for topics; a URL needs none" if target.scheme else "for URLs; for topics give --config"
    for name, option in unused.items():
        if is_given(ctx, name):
            raise typer.BadParameter(f"is {hint}", param_hint=option)
    query = target.query.with_start(begin).with_end(until).with_selection(filters or [], fields)
    if count is not None:
        query = replace(query, count=count)
    session = TailSession(
        target=replace(target, query=query),
        kafka=None if target.scheme else KafkaSource.find(ctx, servers, config),
        style=style,
        quiet=quiet,
        strict=strict,
        position_file=PositionFile(position) if position else None,
        headers=_parse_headers(headers or [], token),
        cacert=cacert,
        insecure=insecure,
    )
    asyncio.run(session.run())


def _parse_headers(texts: list[str], token: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\n" in text or "\r" in text:
            raise typer.BadParameter(f"'{text}' is not NAME: VALUE", param_hint="--header")
        headers[name.strip()] = value.strip()
    return headers | ({"Authorization": f"Bearer {token}"} if token else {})
