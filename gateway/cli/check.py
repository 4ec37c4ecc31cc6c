"""`gateway check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema, for editors.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--print", help="Print the settings with defaults filled in, as YAML.")
    ] = False,
) -> None:
    """Say everything that is wrong with a configuration, without starting it.

    Each problem is a line, FILE:LINE:COLUMN: what; what to do. A warning is about what works,
    but perhaps not as meant; with warnings alone the exit code is 0.

    \b
    gateway check gateway.yaml
    gateway check --schema > gateway.schema.json
    """
    from gateway import config

    if schema == (file is not None):
        raise typer.BadParameter("give either FILE or --schema")
    if file is None:
        typer.echo(json.dumps(config.schema(), indent=2))
        return
    from gateway.web.app import refuse_unserved

    settings = config.load(file)
    refuse_unserved(settings)
    for warning in settings.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)
    if show:
        typer.echo(config.dump(settings), nl=False)
    else:
        typer.echo(f"{file}: ok")
