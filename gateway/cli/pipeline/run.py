"""`gateway pipeline run`."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import ConfigFileOption, JobsArgument, find_jobs, load_pipelines

FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Begin a new checkpoint, from the job's `start`; the old one stays."
    ),
]


def run(name: JobsArgument, config: ConfigFileOption, fresh: FreshOption = False) -> None:
    """Run a job, or all of a configuration in one Spark session, until SIGTERM or ^C: it then
    ends after the batch that is under way.

    What was read and written is in the checkpoint: the next start goes on from there. Kafka being
    away is waited for; a job that fails for another reason ends, and the others go on.

    \b
    gateway pipeline run sessions -c gateway.yaml
    gateway pipeline run all -c gateway.yaml
    """
    from gateway.pipeline import check
    from gateway.pipeline.run.runner import run_jobs as run_jobs
    from gateway.telemetry import logs

    settings, pipelines = load_pipelines(config)
    jobs = find_jobs(pipelines, name)
    configured = settings.telemetry.logs
    levels = {str(room): str(level) for room, level in configured.levels.items()}
    logs.configure(configured.format, configured.level, levels)
    check.raise_for_problems(config, settings, jobs)
    if status := run_jobs(settings, pipelines, jobs, fresh=fresh):
        raise typer.Exit(status)
