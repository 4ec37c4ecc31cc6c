"""`gateway produce`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from .commands import INTERRUPTED
from .options import LOCAL, Config, Servers, kafka_of, listed

if TYPE_CHECKING:
    from gateway.kafka.produce.line_producer import Produced


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
    servers: Servers = LOCAL,
    config: Config = None,
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
    from gateway.kafka.produce.line_producer import produce_lines
    from gateway.kafka.produce.lines import Lines

    if key is not None and key_separator is not None:
        raise typer.BadParameter("give either --key or --key-separator")
    if key_separator == "":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.encode()
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # we say it, in one line
    with _input(file) as source, _progress(file) as progress:
        done = produce_lines(
            topic,
            source,
            lines=Lines(key=key, separator=separator, null_empty=null_empty),
            headers=[_header(each) for each in headers or ()],
            partition=partition,
            progress=progress,
            **_connection(servers, config, topic),
        )
    _summary(topic, done)


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not (found and name):
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--headers")
    return name, value.encode()


def _connection(servers: str, config: Path | None, topic: str) -> dict[str, Any]:
    if config is None:
        return {"servers": listed(servers)}
    from gateway.kafka.client.security import credentials

    kafka = kafka_of(config, [topic])
    return {"servers": kafka.servers, "credentials": credentials(kafka.security)()}


@contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    """Unbuffered: a thread blocked in a buffer of stdin would hang the end of the process."""
    if file is None:
        yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return
    with file.open("rb", buffering=0) as source:
        yield source


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[Produced], None] | None]:
    """A bar on stderr where that is a terminal: bytes of a file, lines of stdin."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=file.stat().st_size if file else None, lines=0)
        yield lambda done: bar.update(task, completed=done.read, lines=done.lines)


def _summary(topic: str, done: Produced) -> None:
    """What a receiver compares; a failure and ^C in the exit code. Rates are of the input."""
    line = f"{topic}: {done.acknowledged} of {done.lines} lines acknowledged"
    if done.failure is None and done.acknowledged == done.lines:
        rate = done.lines / done.seconds if done.seconds else 0.0
        line += f", {done.value_bytes} bytes, {done.seconds:.1f} s, {rate:.0f}/s"
        line += f", sha256={done.digest.ordered} unordered={done.digest.unordered}"
    typer.echo(line)
    if done.failure is not None:
        raise done.failure
    if done.interrupted:
        raise typer.Exit(INTERRUPTED)
