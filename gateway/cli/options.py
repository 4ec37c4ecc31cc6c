"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCAL = "localhost:9092"

Servers = Annotated[
    str,
    typer.Option("--servers", "-s", envvar="GATEWAY_KAFKA_SERVERS", help="HOST:PORT, with commas."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Take servers, TLS and SASL from a gateway's configuration.",
    ),
]


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [each.strip() for each in text.split(",") if each.strip()]
