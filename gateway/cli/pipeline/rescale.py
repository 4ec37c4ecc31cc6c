"""`gateway pipeline rescale`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from .backup import Force
from .options import File, Name, job_of, settings_of

Partitions = Annotated[int, typer.Option("--partitions", min=1, max=10_000, help="How many.")]


def rescale(name: Name, config: File, partitions: Partitions, force: Force = False) -> None:
    """Divide a job's state among another number of partitions. The job must have ended, after a
    batch; then set state.partitions to the same number.

    Nothing is read from or written to Kafka; the job goes on where it was, exactly once as before.

    \b
    gateway pipeline rescale sessions -c gateway.yaml --partitions 8
    """
    from gateway.pipeline.spark.session import session
    from gateway.pipeline.state import place
    from gateway.pipeline.state import rescale as room

    _, pipelines = settings_of(config)
    job = job_of(pipelines, name)
    with ExitStack() as stack:
        spark = session(pipelines.spark, f"rescale {name}")
        stack.callback(spark.stop)
        stack.enter_context(place.idle(pipelines.checkpoints, name, spark, force=force))
        files = place.current(pipelines.checkpoints, name, spark)
        done = room.rescale(spark, files, partitions)
    typer.echo(
        f"{name}: {done.before} -> {done.after} partitions in {done.seconds:.1f} s (batch "
        f"{done.batch})"
    )
    if job.state.partitions != partitions:
        typer.echo(f"now set state.partitions of {name} to {partitions} in {config}")
