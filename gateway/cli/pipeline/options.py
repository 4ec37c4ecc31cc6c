"""Options that several commands have, and the settings they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.run import File
from gateway.errors import PipelineError

from .completion import names, names_or_all

if TYPE_CHECKING:
    from gateway.config import Pipelines, Settings
    from gateway.config.sections.pipeline import Job

__all__ = ["AsJson", "File", "Jobs", "Name", "job_of", "jobs_of", "settings_of"]

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="Of a job.", autocompletion=names),
]
Jobs = Annotated[
    str,
    typer.Argument(
        metavar="NAME|all",
        show_default=False,
        help="Of a job, or all of them.",
        autocompletion=names_or_all,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="A JSON object for each line.")]


def settings_of(file: Path) -> tuple[Settings, Pipelines]:
    """The whole, and its pipelines. Raises ConfigError; PipelineError: there are none."""
    from gateway.config import load

    settings = load(file)
    if settings.pipelines is None or not settings.pipelines.jobs:
        raise PipelineError(f"{file} has no jobs; add them as pipelines.jobs")
    return settings, settings.pipelines


def job_of(pipelines: Pipelines, name: str) -> Job:
    """By its name. Raises PipelineError, with the nearest one there is."""
    from gateway.config.source.expression import nearest

    found = pipelines.job(name)
    if found is None:
        near = nearest(name, [job.name for job in pipelines.jobs], "see `gateway pipeline list`")
        raise PipelineError(f"there is no job '{name}'; {near}")
    return found


def jobs_of(pipelines: Pipelines, name: str) -> list[Job]:
    """One, or `all`. Raises PipelineError, with the nearest one there is."""
    return list(pipelines.jobs) if name == "all" else [job_of(pipelines, name)]
