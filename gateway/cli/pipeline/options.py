"""Arguments that several pipeline commands share, and the settings that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import ConfigFileOption
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
        metavar="NAME",
        show_default=False,
        help="The name of a job.",
        autocompletion=complete_job,
    ),
]
JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|all",
        show_default=False,
        help="The name of a job, or all.",
        autocompletion=complete_job_or_all,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def load_pipelines(file: Path) -> tuple[Settings, Pipelines]:
    from gateway.config import load

    settings = load(file)
    if settings.pipelines is None or not settings.pipelines.jobs:
        raise PipelineError(f"{file} has no jobs; add them as pipelines.jobs")
    return settings, settings.pipelines


def find_job(pipelines: Pipelines, name: str) -> Job:
    from gateway.config.source.substitution import suggest

    job = pipelines.find_job(name)
    if job is None:
        hint = suggest(name, [each.name for each in pipelines.jobs], "see `gateway pipeline list`")
        raise PipelineError(f"there is no job '{name}'; {hint}")
    return job


def find_jobs(pipelines: Pipelines, name: str) -> list[Job]:
    return list(pipelines.jobs) if name == "all" else [find_job(pipelines, name)]
