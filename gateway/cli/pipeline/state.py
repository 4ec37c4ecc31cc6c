"""`gateway pipeline state`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE

from .options import ConfigFileOption, JobArgument, find_job, load_pipelines

KeysOption = Annotated[
    int | None,
    typer.Option("--keys", min=0, help="Read back how many keys there are, and show so many."),
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Read every file that a restart needs; 1 if one is damaged."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def state(
    name: JobArgument,
    config: ConfigFileOption,
    keys: KeysOption = None,
    verify: VerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a job remembers, by operator and partition: bytes, the newest snapshot and how many
    changelogs a restart replays after it. The job may run meanwhile.

    Of a checkpoint on this machine, without --keys, it needs neither Spark nor Java.

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
        deep = integrity.create_content_check(spark._jvm) if verify and spark is not None else None
        found = report.read_state(files, name, verify=verify, check_content=deep)
        if keys is not None and spark is not None:
            report.count_keys(spark, found, files.location, keys)
    typer.echo(json.dumps(found.to_json()) if as_json else report.format_table(found))
    if any(each.damage for each in found.partitions):
        raise typer.Exit(EXIT_FAILURE)
