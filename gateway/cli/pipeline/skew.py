"""`gateway pipeline skew`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .options import AsJson, File, Name, job_of, settings_of

Last = Annotated[
    int,
    typer.Option(
        "--last",
        min=1,
        max=10**8,
        help="Records of each partition that are looked at, on the average: of busy ones more.",
    ),
]


def skew(name: Name, config: File, last: Last = 10_000, as_json: AsJson = False) -> None:
    """Is the load of a job's inputs even, over partitions and over the keys that it gathers by?
    With what to set where it is not. Reads the newest records; changes nothing.

    \b
    gateway pipeline skew paid -c gateway.yaml
    gateway pipeline skew paid -c gateway.yaml --json | jq -r '.keys[0].key'
    """
    from gateway.pipeline.skew import measured, table
    from gateway.pipeline.spark.session import session

    settings, pipelines = settings_of(config)
    job = job_of(pipelines, name)
    spark = session(pipelines.spark, f"skew {name}")
    try:
        found = measured(spark, job, settings.clusters, settings.catalogs, last)
    finally:
        spark.stop()
    for each in found:
        typer.echo(json.dumps(each.json()) if as_json else table(each) + "\n")
