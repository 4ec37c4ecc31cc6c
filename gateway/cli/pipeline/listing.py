"""`gateway pipeline list`."""

from __future__ import annotations

import json

import typer

from .options import ConfigFileOption, JsonOption, load_pipelines


def list_(config: ConfigFileOption, as_json: JsonOption = False) -> None:
    """The jobs: what kind, from and to which topics, how often, what they promise, and how far
    they are.

    \b
    gateway pipeline list -c gateway.yaml
    gateway pipeline list -c gateway.yaml --json | jq -r .name
    """
    from gateway.pipeline.listing import format_table, list_jobs

    _, pipelines = load_pipelines(config)
    found = list_jobs(pipelines)
    if as_json:
        for row in found:
            typer.echo(json.dumps(row._asdict()))
    else:
        typer.echo(format_table(found))
