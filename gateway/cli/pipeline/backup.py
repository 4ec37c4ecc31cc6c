"""`gateway pipeline backup` and `gateway pipeline restore`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import File, Name, job_of, settings_of

if TYPE_CHECKING:
    from gateway.config import Pipelines

To = Annotated[
    str, typer.Option("--to", metavar="DIR", help="An empty directory, or a URL Hadoop reads.")
]
From = Annotated[str, typer.Option("--from", metavar="DIR", help="What backup was given as --to.")]
Same = Annotated[
    bool,
    typer.Option(
        "--same",
        help="Keep the query's identity: only if the job ran no further than the copy, as when it "
        "moves. Its exactly-once output goes on without a repeat.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="The job has ended: say so where its checkpoint is no local directory."
    ),
]


def backup(name: Name, config: File, to: To) -> None:
    """Copy what a job needs to go on after its newest finished batch. It may run meanwhile.

    Every file is looked at before, and read again after it was copied.

    \b
    gateway pipeline backup sessions -c gateway.yaml --to /mnt/backups/sessions-2026-11-21
    gateway pipeline backup sessions -c gateway.yaml --to s3a://backups/sessions/1
    """
    from gateway.pipeline.state import backup as room
    from gateway.pipeline.state import place
    from gateway.pipeline.state.files import files

    _, pipelines = settings_of(config)
    job_of(pipelines, name)
    with ExitStack() as stack:
        spark = _spark(pipelines, stack, pipelines.checkpoints, to)
        source = place.current(pipelines.checkpoints, name, spark)
        copy = room.backup(source, files(to, spark), name)
    typer.echo(f"{name}: batch {copy.batch}, {len(copy.files)} files, {copy.bytes} bytes in {to}")


def restore(
    name: Name, config: File, from_: From, same: Same = False, force: Force = False
) -> None:
    """Make a copy the next version of a job's checkpoint; older versions stay. The job must not
    run; started again it goes on after the batch of the copy.

    What it wrote after that batch it writes again, once, as the ledger of exactly-once output
    begins anew; with --same it goes on.

    \b
    gateway pipeline restore sessions -c gateway.yaml --from /mnt/backups/sessions-2026-11-21
    """
    from gateway.errors import PipelineError
    from gateway.pipeline.state import backup as room
    from gateway.pipeline.state import place
    from gateway.pipeline.state.files import files

    _, pipelines = settings_of(config)
    job_of(pipelines, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = _spark(pipelines, stack, root, from_)
        source = files(from_, spark)
        if (of := room.manifest(source).job) != name:
            raise PipelineError(f"{from_} is a copy of {of}, not of {name}")
        stack.enter_context(place.idle(root, name, spark, force=force))
        target, path = place.following(root, name, spark)
        copy = room.restore(source, target, path, same=same)
    typer.echo(f"{name}: goes on after batch {copy.batch}, from {path}")


def _spark(pipelines: Pipelines, stack: ExitStack, *places: str) -> Any:
    """A session, where one of the places needs it."""
    from gateway.pipeline.spark.session import session
    from gateway.pipeline.state import place

    if not any(map(place.remote, places)):
        return None
    spark = session(pipelines.spark, "backup")
    stack.callback(spark.stop)
    return spark
