"""`gateway pipeline state`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.commands import FAILURE

from .options import File, Name, job_of, settings_of

Keys = Annotated[
    int | None,
    typer.Option("--keys", min=0, help="Read back how many keys there are, and show so many."),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Read every file that a restart needs; 1 if one is damaged."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def state(
    name: Name, config: File, keys: Keys = None, verify: Verify = False, as_json: AsJson = False
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

    from gateway.pipeline.spark.session import session
    from gateway.pipeline.state import place, read, whole

    _, pipelines = settings_of(config)
    job_of(pipelines, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = None
        if keys is not None or place.remote(root):
            spark = session(pipelines.spark, f"state {name}")
            stack.callback(spark.stop)
        files = place.current(root, name, spark)
        deep = whole.by_jvm(spark._jvm) if verify and spark is not None else None
        found = read.state(files, name, verify=verify, deep=deep)
        if keys is not None and spark is not None:
            read.read(spark, found, files.where, keys)
    typer.echo(json.dumps(found.json()) if as_json else read.table(found))
    if any(each.damage for each in found.partitions):
        raise typer.Exit(FAILURE)
