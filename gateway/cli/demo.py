"""`gateway demo`: show the gateway at work, without a Kafka."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import GatewayError


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    pages: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A folder of yours to serve at /pages/."),
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
    gateway demo --print-config > gateway.yaml
    """
    from gateway.web.demo import CONFIG, run_demo

    if print_config:
        typer.echo(CONFIG, nl=not CONFIG.endswith("\n"))
        return
    require_free_port(host, port)
    run_demo(host=host, port=port, browser=browser, pages=pages)


def require_free_port(host: str, port: int) -> None:
    """Check that this process can listen at an address, before anything is started.

    Args:
        host: The address; IPv6 without brackets.
        port: The port; 0 for any free one.

    Raises:
        GatewayError: The port is in use, or the address is not one of this machine.
    """
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
