"""`gateway config`: show the configuration in effect, and the variables that set options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigFileArgument, require_config_file

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.config import Settings, Variable

HEADINGS = ("VARIABLE", "TYPE", "DEFAULT", "DESCRIPTION")


def config(
    file: ConfigFileArgument = None,
    env: Annotated[
        bool, typer.Option("--env", help="Print the environment variables that set options.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --env: print one JSON object per line.")
    ] = False,
) -> None:
    """Print the configuration in effect, or the variables that set it.

    An option is set by GATEWAY_ and its path in capitals, with two underscores between the levels
    and one between the words of a name: listen.drainTimeout is GATEWAY_LISTEN__DRAIN_TIMEOUT. A
    name of the file is a level, too: GATEWAY_GUARDS__LOGIN__ISSUER. Lists have commas; what is YAML
    in the table is written as in the file: GATEWAY_ROUTES='[{path: /orders, topic: orders}]'.

    The command line overrides variables, and these override the file. An empty variable counts as
    not set.

    \b
    gateway config                        # gateway.yaml of this folder, and what overrides it
    gateway config --env | grep LISTEN
    GATEWAY_LISTEN__PORT=9000 gateway run
    """
    from gateway import config as configuration

    if as_json and not env:
        raise typer.BadParameter("is for --env", param_hint="--json")
    if env:
        variables = configuration.list_variables()
        for line in _iter_json_lines(variables) if as_json else _iter_table_lines(variables):
            typer.echo(line)
        return
    file = require_config_file(file)
    settings = configuration.load(file)
    for line in _iter_source_lines(file, settings):
        typer.echo(line)
    typer.echo(configuration.dumps(settings), nl=False)


def _iter_source_lines(file: Path, settings: Settings) -> Iterator[str]:
    from gateway.config import read_variables
    from gateway.config.source.problems import format_loc

    yield f"# {file}"
    overrides, _ = read_variables(os.environ, settings.model_dump(mode="json", by_alias=True))
    for loc, _, variable in overrides:
        yield f"# {format_loc(loc)} by {variable}"


def _iter_json_lines(variables: list[Variable]) -> Iterator[str]:
    for each in variables:
        yield json.dumps(each._asdict())


def _iter_table_lines(variables: list[Variable]) -> Iterator[str]:
    rows = [HEADINGS]
    rows += [(each.name, each.type, each.default or "-", each.description) for each in variables]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]
    for row in rows:
        yield "  ".join([*map(str.ljust, row, widths), row[-1]])
