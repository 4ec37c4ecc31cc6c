"""`gateway pipeline run`: run jobs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import ConfigFileOption, JobsArgument, find_jobs, load_pipelines

FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Begin a new checkpoint, at the job's `start`; the old one stays."
    ),
]


def run(name: JobsArgument, config: ConfigFileOption, fresh: FreshOption = False) -> None:
    """Run a job, or all jobs, until SIGTERM or ^C.

    All jobs run in one Spark session. They end after the present batch. The checkpoint holds what
    was read and written, and the next start continues from there. While Kafka cannot be reached,
    jobs wait. A job that fails for another reason ends, and the others go on.

    \b
    gateway pipeline run sessions -c gateway.yaml
    gateway pipeline run all -c gateway.yaml
    """
    from gateway.pipeline import check
    from gateway.pipeline.run.runner import run_jobs
    from gateway.telemetry import logs

    settings, pipelines = load_pipelines(config)
    jobs = find_jobs(pipelines, name)
    configured = settings.telemetry.logs
    levels = {str(package): str(level) for package, level in configured.levels.items()}
    logs.configure(configured.format, configured.level, levels)
    check.raise_for_problems(config, settings, jobs)
    if status := run_jobs(settings, pipelines, jobs, fresh=fresh):
        raise typer.Exit(status)
