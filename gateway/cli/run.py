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
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, metavar="N", help="Processes that share the port; beats listen.workers."
        ),
    ] = None,
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
    gateway run -c gateway.yaml --workers 4     # one for each core
    gateway run -c gateway.yaml --debug kafka   # why is this partition late?
    """
    from gateway.config import load
    from gateway.web.server import serve

    for room in debug or ():
        if room not in ROOMS:
            raise typer.BadParameter(
                f"'{room}' is none of {', '.join(ROOMS)}", param_hint="--debug"
            )
    settings = load(config)
    if workers is not None:
        listen = settings.listen.model_copy(update={"workers": workers})
        settings = settings.model_copy(update={"listen": listen})
    status = serve(settings, debug=set(debug or ()))
    if status:
        raise typer.Exit(status)
