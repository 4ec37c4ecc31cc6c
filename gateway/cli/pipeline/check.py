"""`gateway pipeline check`: find what is wrong with jobs before Spark starts."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.commands import EXIT_CONFIG_ERROR

from .completion import complete_job_or_all
from .options import ConfigFileOption, find_jobs, load_pipelines

JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="[NAME|all]",
        help="The name of a job, or all.",
        autocompletion=complete_job_or_all,
    ),
]
OfflineOption = Annotated[
    bool,
    typer.Option("--offline", help="Do not connect to Kafka and registries.", show_default=False),
]


def check(
    config: ConfigFileOption, name: JobsArgument = "all", offline: OfflineOption = False
) -> None:
    """Print everything that is wrong with jobs, without Spark.

    It checks the columns and types that a job names, whether Spark allows its plan, whether its
    topics exist and whether schemas match. It needs no Java. Each problem is one line,
    FILE:LINE:COLUMN: what is wrong; what to do. If Kafka or a registry does not answer, that is
    printed, but it is no problem of the file.

    \b
    gateway pipeline check -c gateway.yaml
    gateway pipeline check visits -c gateway.yaml --offline
    """
    from gateway.pipeline import check as checks

    settings, pipelines = load_pipelines(config)
    jobs = find_jobs(pipelines, name)
    checks.raise_for_problems(config, settings, jobs)
    external = (
        checks.check_externals(settings, jobs) if not offline else checks.ExternalCheck([], [])
    )
    for reason in external.skipped_checks:
        typer.echo(f"{config}: not checked: {reason}", err=True)
    for line in checks.format_problems(config, external.problems):
        typer.echo(line, err=True)
    if external.problems:
        raise typer.Exit(EXIT_CONFIG_ERROR)
    typer.echo(f"{config}: {len(jobs)} job{'s' * (len(jobs) != 1)}: ok")
