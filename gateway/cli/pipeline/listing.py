"""`gateway pipeline list`: list the jobs of a configuration."""

from __future__ import annotations

import json

import typer

from .options import ConfigFileOption, JsonOption, load_pipelines


def list_(config: ConfigFileOption, as_json: JsonOption = False) -> None:
    """List the jobs and their progress.

    Each has its kind, topics, interval and guarantee, and how far it is.

    \b
    gateway pipeline list -c gateway.yaml
    gateway pipeline list -c gateway.yaml --json | jq -r .name
    """
    from gateway.pipeline.listing import format_table, list_jobs

    _, pipelines = load_pipelines(config)
    jobs = list_jobs(pipelines)
    if as_json:
        for row in jobs:
            typer.echo(json.dumps(row._asdict()))
    else:
        typer.echo(format_table(jobs))
