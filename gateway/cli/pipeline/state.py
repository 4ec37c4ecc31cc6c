"""`gateway pipeline state`: show the state of a job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE

from .options import ConfigFileOption, JobArgument, find_job, load_pipelines

KeysOption = Annotated[
    int | None,
    typer.Option("--keys", min=0, help="Count the keys, and print this many of them."),
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Read every file that a restart needs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def state(
    name: JobArgument,
    config: ConfigFileOption,
    keys: KeysOption = None,
    verify: VerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a job, and whether it is intact.

    A line for each operator and partition has the bytes, the newest snapshot, and how many
    changelogs a restart replays after it. The job may run meanwhile. If the checkpoint is on this
    machine and --keys is not given, neither Spark nor Java is needed.

    \b
    gateway pipeline state sessions -c gateway.yaml
    gateway pipeline state sessions -c gateway.yaml --keys 5
    gateway pipeline state sessions -c gateway.yaml --verify --json | jq .bytes
    """
    from contextlib import ExitStack

    from gateway.pipeline.spark.session import create_session
    from gateway.pipeline.state import integrity, location, report

    _, pipelines = load_pipelines(config)
    find_job(pipelines, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = None
        if keys is not None or location.is_remote(root):
            spark = create_session(pipelines.spark, f"state {name}")
            stack.callback(spark.stop)
        files = location.open_current(root, name, spark)
        check_content = (
            integrity.create_content_check(spark._jvm) if verify and spark is not None else None
        )
        job_state = report.read_state(files, name, verify=verify, check_content=check_content)
        if keys is not None and spark is not None:
            report.count_keys(spark, job_state, files.location, keys)
    typer.echo(json.dumps(job_state.to_json()) if as_json else report.format_table(job_state))
    if any(each.damage for each in job_state.partitions):
        raise typer.Exit(EXIT_FAILURE)
