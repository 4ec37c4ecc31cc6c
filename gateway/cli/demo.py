"""`gateway demo`."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import GatewayError


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page.")] = True,
    pages: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder of yours to serve at /pages/."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print its YAML, to start your own from.")
    ] = False,
) -> None:
    """Show it at work: this machine's own figures and a stream of orders, in the browser.

    Needs no Kafka: it brings one within the process, which keeps a few MB a partition.

    \b
    gateway demo
    gateway demo --port 9000 --no-browser
    gateway demo --pages examples
    gateway demo --print-config > gateway.yaml
    """
    from gateway.web.demo import CONFIG
    from gateway.web.demo import run_demo as show

    if print_config:
        typer.echo(CONFIG, nl=not CONFIG.endswith("\n"))
        return
    require_free_port(host, port)
    show(host=host, port=port, browser=browser, pages=pages)


def require_free_port(host: str, port: int) -> None:
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
