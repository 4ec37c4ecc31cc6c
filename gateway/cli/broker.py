"""`gateway broker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    prefetch_only: Annotated[
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
    if prefetch_only:
        prefetch()
    else:
        run_broker(nodes, port, data)
