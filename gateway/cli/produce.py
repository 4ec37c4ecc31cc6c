"""`gateway produce`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from .commands import EXIT_INTERRUPTED
from .options import DEFAULT_SERVERS, KafkaConfigOption, ServersOption, load_kafka, split_list

if TYPE_CHECKING:
    from gateway.kafka.produce.line_producer import ProduceProgress


def produce(
    topic: Annotated[str, typer.Argument(show_default=False)],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Instead of stdin."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            "-k",
            metavar="FIELD",
            help="Lines are JSON: the field that is the key, or a pointer such as /customer/id.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The key stands before it, the value after it."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--headers", "-H", metavar="NAME=VALUE", help="On every record; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="For all records; else by the key, or in turns.")
    ] = None,
    null_empty: Annotated[
        bool, typer.Option("--null-empty", help="An empty value is a tombstone.")
    ] = False,
    servers: ServersOption = DEFAULT_SERVERS,
    config: KafkaConfigOption = None,
) -> None:
    """Write lines to a topic, each as one record, with acks=all and never twice.

    A value is the line's bytes without the LF. The last line of output tells how many were
    acknowledged, and two SHA-256 for the receiver: `sha256` is that of the values in order
    (for plain lines: what sha256sum says of the file), `unordered` the sum of the values' own.

    \b
    gateway produce orders --file orders.jsonl --key customer
    tail -f app.log | gateway produce logs --headers host=web1
    echo 'alice:hello' | gateway produce greetings --key-separator :
    echo 'alice:' | gateway produce greetings --key-separator : --null-empty   # delete alice
    """
    from gateway.kafka.produce.line_format import LineFormat
    from gateway.kafka.produce.line_producer import produce_lines

    if key is not None and key_separator is not None:
        raise typer.BadParameter("give either --key or --key-separator")
    if key_separator == "":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.encode()
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # we say it, in one line
    with _open_input(file) as source, _show_progress(file) as progress:
        done = produce_lines(
            topic,
            source,
            lines=LineFormat(key=key, separator=separator, null_empty=null_empty),
            headers=[_parse_header(each) for each in headers or ()],
            partition=partition,
            progress=progress,
            **_build_connection_options(servers, config, topic),
        )
    _print_summary(topic, done)


def _parse_header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not (found and name):
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--headers")
    return name, value.encode()


def _build_connection_options(servers: str, config: Path | None, topic: str) -> dict[str, Any]:
    if config is None:
        return {"servers": split_list(servers)}
    from gateway.kafka.client.security import create_credentials

    kafka = load_kafka(config, [topic])
    return {"servers": kafka.servers, "credentials": create_credentials(kafka.security)()}


@contextmanager
def _open_input(file: Path | None) -> Iterator[BinaryIO]:
    """Unbuffered: a thread blocked in a buffer of stdin would hang the end of the process."""
    if file is None:
        yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return
    with file.open("rb", buffering=0) as source:
        yield source


@contextmanager
def _show_progress(file: Path | None) -> Iterator[Callable[[ProduceProgress], None] | None]:
    """A bar on stderr where that is a terminal: bytes of a file, lines of stdin."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=file.stat().st_size if file else None, lines=0)
        yield lambda done: bar.update(task, completed=done.bytes_read, lines=done.lines)


def _print_summary(topic: str, result: ProduceProgress) -> None:
    """What a receiver compares; a failure and ^C in the exit code. Rates are of the input."""
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
