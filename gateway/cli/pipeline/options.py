"""Options that several commands have, and the settings they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import PipelineError

from ..run import File

if TYPE_CHECKING:
    from gateway.config import Pipelines, Settings
    from gateway.config.pipeline import Job

__all__ = ["AsJson", "File", "Name", "job_of", "settings_of"]

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Of a job.")]
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
    from gateway.config.expression import nearest

    found = pipelines.job(name)
    if found is None:
        near = nearest(name, [job.name for job in pipelines.jobs], "see `gateway pipeline list`")
        raise PipelineError(f"there is no job '{name}'; {near}")
    return found
