"""`gateway reload`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from .commands import FAILURE
from .run import File


def reload(
    config: File,
    pid: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Process id of `gateway run`.")
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="PATH", help="The file it is in."),
    ] = None,
) -> None:
    """Have a gateway that runs take over its configuration as it is by now.

    What is wrong with it is said here, and nothing is changed then. Streams whose route shows them
    the same go on untouched; its log says what became of the others, and which options need a
    restart.

    \b
    gateway reload -c gateway.yaml --pid-file /run/gateway.pid
    gateway reload -c gateway.yaml --pid 4711
    """
    from gateway.config import load
    from gateway.web.app import refuse_unserved

    if (pid is None) == (pid_file is None):
        raise typer.BadParameter("give either --pid or --pid-file")
    refuse_unserved(load(config))
    process = pid if pid is not None else _pid_in(pid_file or Path())
    try:
        os.kill(process, signal.SIGHUP)
    except ProcessLookupError:
        typer.echo(f"gateway: no process {process} runs; start it with `gateway run`", err=True)
        raise typer.Exit(FAILURE) from None
    except PermissionError:
        typer.echo(f"gateway: process {process} is another user's; run this as that one", err=True)
        raise typer.Exit(FAILURE) from None
    typer.echo(f"{config}: ok; process {process} takes it over, its log says how")


def _pid_in(path: Path) -> int:
    text = path.read_text().strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(f"{path} holds no process id", param_hint="--pid-file")
    return int(text)
