"""Options that several commands have, and the settings they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.run import ConfigFileOption
from gateway.errors import PipelineError

from .completion import complete_job, complete_job_or_all

if TYPE_CHECKING:
    from gateway.config import Pipelines, Settings
    from gateway.config.sections.job import Job

__all__ = [
    "ConfigFileOption",
    "JobArgument",
    "JobsArgument",
    "JsonOption",
    "find_job",
    "find_jobs",
    "load_pipelines",
]

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", show_default=False, help="Of a job.", autocompletion=complete_job
    ),
]
JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|all",
        show_default=False,
        help="Of a job, or all of them.",
        autocompletion=complete_job_or_all,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON object for each line.")]


def load_pipelines(file: Path) -> tuple[Settings, Pipelines]:
    """The whole, and its pipelines. Raises ConfigError; PipelineError: there are none."""
    from gateway.config import load

    settings = load(file)
    if settings.pipelines is None or not settings.pipelines.jobs:
        raise PipelineError(f"{file} has no jobs; add them as pipelines.jobs")
    return settings, settings.pipelines


def find_job(pipelines: Pipelines, name: str) -> Job:
    """By its name. Raises PipelineError, with the nearest one there is."""
    from gateway.config.source.expression import suggest

    found = pipelines.find_job(name)
    if found is None:
        near = suggest(name, [job.name for job in pipelines.jobs], "see `gateway pipeline list`")
        raise PipelineError(f"there is no job '{name}'; {near}")
    return found


def find_jobs(pipelines: Pipelines, name: str) -> list[Job]:
    """One, or `all`. Raises PipelineError, with the nearest one there is."""
    return list(pipelines.jobs) if name == "all" else [find_job(pipelines, name)]
