"""Complete the names of jobs in a shell; see `gateway.cli.completion`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from gateway.cli.completion import read_configuration


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    names = _iter_job_names(read_configuration(ctx))
    return [name for name in names if name.startswith(incomplete)]


def complete_job_or_all(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*complete_job(ctx, incomplete), *(["all"] if "all".startswith(incomplete) else [])]


def _iter_job_names(document: dict[str, Any]) -> Iterator[str]:
    section = document.get("pipelines")
    jobs = section.get("jobs") if isinstance(section, dict) else None
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and isinstance(job.get("name"), str):
            yield job["name"]
