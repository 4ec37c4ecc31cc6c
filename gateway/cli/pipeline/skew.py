"""`gateway pipeline skew`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .options import ConfigFileOption, JobArgument, JsonOption, find_job, load_pipelines

LastOption = Annotated[
    int,
    typer.Option(
        "--last",
        min=1,
        max=10**8,
        help="Records of each partition that are looked at, on the average: of busy ones more.",
    ),
]


def skew(
    name: JobArgument,
    config: ConfigFileOption,
    last: LastOption = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Is the load of a job's inputs even, over partitions and over the keys that it gathers by?
    With what to set where it is not. Reads the newest records; changes nothing.

    \b
    gateway pipeline skew paid -c gateway.yaml
    gateway pipeline skew paid -c gateway.yaml --json | jq -r '.keys[0].key'
    """
    from gateway.pipeline.skew import measure_skew, render_report
    from gateway.pipeline.spark.session import create_session

    settings, pipelines = load_pipelines(config)
    job = find_job(pipelines, name)
    spark = create_session(pipelines.spark, f"skew {name}")
    try:
        found = measure_skew(spark, job, settings.clusters, settings.catalogs, last)
    finally:
        spark.stop()
    for each in found:
        typer.echo(json.dumps(each.to_json()) if as_json else render_report(each) + "\n")
