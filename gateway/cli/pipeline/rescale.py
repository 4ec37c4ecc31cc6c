"""`gateway pipeline rescale`: change the number of partitions of a job's state."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from .backup import ForceOption
from .options import ConfigFileOption, JobArgument, find_job, load_pipelines

PartitionsOption = Annotated[
    int, typer.Option("--partitions", min=1, max=10_000, help="The new number of partitions.")
]


def rescale(
    name: JobArgument,
    config: ConfigFileOption,
    partitions: PartitionsOption,
    force: ForceOption = False,
) -> None:
    """Divide a job's state among more or fewer partitions.

    The job must have ended after a batch. Afterwards, set state.partitions to the same number.
    Nothing is read from or written to Kafka. The job continues where it was, exactly once as
    before.

    \b
    gateway pipeline rescale sessions -c gateway.yaml --partitions 8
    """
    from gateway.pipeline.spark.session import create_session
    from gateway.pipeline.state import location
    from gateway.pipeline.state.rescale import rescale_state

    _, pipelines = load_pipelines(config)
    job = find_job(pipelines, name)
    with ExitStack() as stack:
        spark = create_session(pipelines.spark, f"rescale {name}")
        stack.callback(spark.stop)
        stack.enter_context(location.require_idle(pipelines.checkpoints, name, spark, force=force))
        files = location.open_current(pipelines.checkpoints, name, spark)
        result = rescale_state(spark, files, partitions)
    typer.echo(
        f"{name}: {result.old_partitions} -> {result.new_partitions} partitions "
        f"in {result.seconds:.1f} s (batch {result.batch})"
    )
    if job.state.partitions != partitions:
        typer.echo(f"now set state.partitions of {name} to {partitions} in {config}")
