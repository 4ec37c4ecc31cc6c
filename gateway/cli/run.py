"""`gateway run`: serve the routes of a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .debug_option import DebugOption
from .options import ConfigFileOption

if TYPE_CHECKING:
    from gateway.config import Settings


def run(
    config: ConfigFileOption,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="Processes that share the port; overrides listen.workers.",
        ),
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Keep the process id in this file while it runs.", dir_okay=False
        ),
    ] = None,
    debug: DebugOption = None,
) -> None:
    """Serve the routes of a configuration until SIGTERM or ^C.

    SIGHUP makes it read the configuration again (see `gateway reload`).

    \b
    gateway run -c gateway.yaml
    gateway run -c gateway.yaml --workers 4     # one per core
    gateway run -c gateway.yaml --debug kafka   # why is this partition late?
    gateway run -c gateway.yaml --debug kafka.fetch --debug hub.fanout
    gateway run -c gateway.yaml --pid-file /run/gateway.pid     # for `gateway reload`
    """
    from gateway.config import load
    from gateway.web.app.server import serve

    from . import sidecar_factory

    def load_settings() -> Settings:
        return load(config, options={"listen.workers": workers})

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
    """Keep the id of this process in a file while the block runs."""
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
