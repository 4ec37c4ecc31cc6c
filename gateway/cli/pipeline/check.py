"""`gateway pipeline check`."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.commands import CONFIG

from .completion import names_or_all
from .options import File, jobs_of, settings_of

Jobs = Annotated[
    str,
    typer.Argument(
        metavar="[NAME|all]", help="Of a job, or all of them.", autocompletion=names_or_all
    ),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Ask neither Kafka nor registries.", show_default=False)
]


def check(config: File, name: Jobs = "all", offline: Offline = False) -> None:
    """Say everything that is wrong with jobs, before Spark starts; needs no Java.

    Columns that a job names must be there, types be types, plans be such as Spark allows; topics
    must exist, and schemas fit. Each problem is a line, FILE:LINE:COLUMN: what; what to do. If
    Kafka or a registry does not answer that is said, and is no problem of the file.

    \b
    gateway pipeline check -c gateway.yaml
    gateway pipeline check visits -c gateway.yaml --offline
    """
    from gateway.pipeline import check as rules

    settings, pipelines = settings_of(config)
    jobs = jobs_of(pipelines, name)
    rules.refuse(config, settings, jobs)
    found = rules.asked(settings, jobs) if not offline else rules.Asked([], [])
    for why in found.unknown:
        typer.echo(f"{config}: not checked: {why}", err=True)
    for line in rules.lines(config, found.problems):
        typer.echo(line, err=True)
    if found.problems:
        raise typer.Exit(CONFIG)
    typer.echo(f"{config}: {len(jobs)} job{'s' * (len(jobs) != 1)}: ok")
