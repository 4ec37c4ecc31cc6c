"""`gateway pipeline list`."""

from __future__ import annotations

import json

import typer

from .options import AsJson, File, settings_of


def list_(config: File, as_json: AsJson = False) -> None:
    """The jobs: what kind, from and to which topics, how often, what they promise, and how far
    they are.

    \b
    gateway pipeline list -c gateway.yaml
    gateway pipeline list -c gateway.yaml --json | jq -r .name
    """
    from gateway.pipeline.listing import rows, table

    _, pipelines = settings_of(config)
    found = rows(pipelines)
    if as_json:
        for row in found:
            typer.echo(json.dumps(row._asdict()))
    else:
        typer.echo(table(found))
