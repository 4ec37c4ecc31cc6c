"""`gateway pipeline check`."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.commands import EXIT_CONFIG_ERROR

from .completion import complete_job_or_all
from .options import ConfigFileOption, find_jobs, load_pipelines

JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAME|all]", help="Of a job, or all of them.", autocompletion=complete_job_or_all
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Ask neither Kafka nor registries.", show_default=False)
]


def check(
    config: ConfigFileOption, name: JobsArgument = "all", offline: OfflineOption = False
) -> None:
    """Say everything that is wrong with jobs, before Spark starts; needs no Java.

    Columns that a job names must be there, types be types, plans be such as Spark allows; topics
    must exist, and schemas fit. Each problem is a line, FILE:LINE:COLUMN: what; what to do. If
    Kafka or a registry does not answer that is said, and is no problem of the file.

    \b
    gateway pipeline check -c gateway.yaml
    gateway pipeline check visits -c gateway.yaml --offline
    """
    from gateway.pipeline import check as rules

    settings, pipelines = load_pipelines(config)
    jobs = find_jobs(pipelines, name)
    rules.raise_for_problems(config, settings, jobs)
    found = rules.check_externals(settings, jobs) if not offline else rules.ExternalCheck([], [])
    for why in found.skipped_checks:
        typer.echo(f"{config}: not checked: {why}", err=True)
    for line in rules.format_problems(config, found.problems):
        typer.echo(line, err=True)
    if found.problems:
        raise typer.Exit(EXIT_CONFIG_ERROR)
    typer.echo(f"{config}: {len(jobs)} job{'s' * (len(jobs) != 1)}: ok")
