"""`gateway run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROOMS = ("kafka", "hub", "web")

File = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="YAML.")
]


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
