"""`gateway run`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.config import Settings

LOGGER_NAMES = ("kafka", "hub", "web", "sidecar")

ConfigFileOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", exists=True, dir_okay=False, help="YAML.")
]


def run(
    config: ConfigFileOption,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, metavar="N", help="Processes that share the port; beats listen.workers."
        ),
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where its process id is while it runs.", dir_okay=False),
    ] = None,
    debug: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOM",
            help=f"Log in detail what one does ({', '.join(LOGGER_NAMES)}); repeatable.",
        ),
    ] = None,
) -> None:
    """Serve the routes of a configuration until SIGTERM or ^C; SIGHUP has it read anew.

    \b
    gateway run -c gateway.yaml
    gateway run -c gateway.yaml --workers 4     # one for each core
    gateway run -c gateway.yaml --debug kafka   # why is this partition late?
    gateway run -c gateway.yaml --pid-file /run/gateway.pid     # for `gateway reload`
    """
    from gateway.config import load
    from gateway.web.app.server import serve

    from . import sidecar_factory

    for room in debug or ():
        if room not in LOGGER_NAMES:
            raise typer.BadParameter(
                f"'{room}' is none of {', '.join(LOGGER_NAMES)}", param_hint="--debug"
            )

    def load_settings() -> Settings:
        return load(config, listen={"workers": workers})

    with _write_pid_file(pid_file):
        status = serve(
            load_settings(),
            debug=set(debug or ()),
            load=load_settings,
            co_hosted_app_factory=sidecar_factory.create_sidecar,
        )
    if status:
        raise typer.Exit(status)


@contextmanager
def _write_pid_file(path: Path | None) -> Iterator[None]:
    """Our process id, for as long as we run."""
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
