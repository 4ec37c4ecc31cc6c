"""`gateway pipeline skew`: measure how evenly a job's load is spread."""

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
        help="Records that are read per partition, on average; busy partitions have more.",
    ),
]


def skew(
    name: JobArgument,
    config: ConfigFileOption,
    last: LastOption = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Measure the skew of a job's partitions and keys.

    The keys are those that the job groups by. The report says what to set if the load is uneven.
    The command reads the newest records, and changes nothing.

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
        reports = measure_skew(spark, job, settings.clusters, settings.catalogs, last)
    finally:
        spark.stop()
    for report in reports:
        typer.echo(json.dumps(report.to_json()) if as_json else render_report(report) + "\n")
