"""`gateway produce`: write lines to a topic."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import BrokerUnavailable

from .commands import EXIT_INTERRUPTED
from .kafka_connection import KafkaSource, find_connection_error, require_topic_name
from .options import (
    DEFAULT_SERVERS,
    KafkaConfigOption,
    ServersOption,
    build_file_option,
    complete_topic,
)
from .output import show_progress

if TYPE_CHECKING:
    from gateway.kafka.produce.line_producer import ProduceProgress


def produce(
    ctx: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(
            show_default=False, help="The topic to write to.", autocompletion=complete_topic
        ),
    ],
    file: Annotated[
        Path | None, build_file_option("--file", "-f", help="Read from this file instead of stdin.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            "-k",
            metavar="FIELD",
            help="Lines are JSON: take the key from this field, or pointer such as /customer/id.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Split each line at TEXT into key and value.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--headers",
            "-H",
            metavar="NAME=VALUE",
            help="Add a header to every record; repeatable.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Write to this partition.  [by the key; without a key, in turn]"),
    ] = None,
    null_empty: Annotated[
        bool, typer.Option("--null-empty", help="Write an empty value as a tombstone.")
    ] = False,
    servers: ServersOption = DEFAULT_SERVERS,
    config: KafkaConfigOption = None,
) -> None:
    """Write lines to a topic, one record each, and none of them twice.

    Records are written with acks=all by an idempotent producer. A value is the line's bytes
    without the LF. The last line of output says how many records were acknowledged, and has two
    checksums for the receiver to compare: `sha256` is the SHA-256 of the values in order (for
    plain lines it equals sha256sum of the file), `unordered` the sum of the SHA-256 of each value,
    which does not depend on the order.

    \b
    gateway produce orders --file orders.jsonl --key customer
    tail -f app.log | gateway produce logs --headers host=web1
    echo 'alice:hello' | gateway produce greetings --key-separator :
    echo 'alice:' | gateway produce greetings --key-separator : --null-empty   # delete alice
    """
    from gateway.kafka.client.security import create_credentials
    from gateway.kafka.produce.line_producer import LineFormat, produce_lines

    require_topic_name(topic)
    if key is not None and key_separator is not None:
        raise typer.BadParameter("give either --key or --key-separator")
    if key_separator == "":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.encode()
    # Failures are reported once, below.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    kafka = KafkaSource.find(ctx, servers, config)
    settings = kafka.load([topic], "produce")
    credentials = create_credentials(settings.security, kafka.name_options([topic]))
    total = file.stat().st_size if file else None

    def update(state: ProduceProgress) -> None:
        show(state.bytes_read, total, f"{state.lines:,} lines")

    # Without a buffer: a thread that is blocked in a read of the buffered stdin holds its lock, for
    # which the interpreter would wait at its end.
    stdin = nullcontext(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
    with file.open("rb", buffering=0) if file else stdin as source, show_progress() as show:
        try:
            result = produce_lines(
                topic,
                source,
                lines=LineFormat(key=key, separator=separator, null_empty=null_empty),
                headers=[_parse_header(each) for each in headers or ()],
                partition=partition,
                progress=update,
                servers=settings.servers,
                credentials=credentials(),
            )
        except BrokerUnavailable as exc:
            # aiokafka's producer does not say why no broker let it in.
            raise asyncio.run(find_connection_error(kafka, [topic], "produce")) or exc from exc
    _print_summary(topic, result)


def _parse_header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--headers")
    return name, value.encode()


def _print_summary(topic: str, result: ProduceProgress) -> None:
    """Print the last line of output, then raise the error that ended the input early."""
    line = f"{topic}: {result.acknowledged_records} of {result.lines} lines acknowledged"
    if result.failure is None and result.acknowledged_records == result.lines:
        rate = result.lines / result.seconds if result.seconds else 0.0
        line += f", {result.value_bytes} bytes, {result.seconds:.1f} s, {rate:.0f}/s"
        line += (
            f", sha256={result.digest.ordered_digest} unordered={result.digest.unordered_digest}"
        )
    typer.echo(line)
    if result.failure is not None:
        raise result.failure
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
