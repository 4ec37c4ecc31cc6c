"""`gateway pipeline backup` and `gateway pipeline restore`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import ConfigFileOption, JobArgument, find_job, load_pipelines

if TYPE_CHECKING:
    from gateway.config import Pipelines

BackupTargetOption = Annotated[
    str, typer.Option("--to", metavar="DIR", help="An empty directory, or a URL Hadoop reads.")
]
BackupSourceOption = Annotated[
    str, typer.Option("--from", metavar="DIR", help="What backup was given as --to.")
]
KeepIdentityOption = Annotated[
    bool,
    typer.Option(
        "--same",
        help="Keep the query's identity: only if the job ran no further than the copy, as when it "
        "moves. Its exactly-once output goes on without a repeat.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="The job has ended: say so where its checkpoint is no local directory."
    ),
]


def backup(name: JobArgument, config: ConfigFileOption, to: BackupTargetOption) -> None:
    """Copy what a job needs to go on after its newest finished batch. It may run meanwhile.

    Every file is looked at before, and read again after it was copied.

    \b
    gateway pipeline backup sessions -c gateway.yaml --to /mnt/backups/sessions-2026-11-21
    gateway pipeline backup sessions -c gateway.yaml --to s3a://backups/sessions/1
    """
    from gateway.pipeline.state import backup as room
    from gateway.pipeline.state import location
    from gateway.pipeline.state.files import open_files

    _, pipelines = load_pipelines(config)
    find_job(pipelines, name)
    with ExitStack() as stack:
        spark = _start_spark(pipelines, stack, pipelines.checkpoints, to)
        source = location.open_current(pipelines.checkpoints, name, spark)
        copy = room.create_backup(source, open_files(to, spark), name)
    typer.echo(
        f"{name}: batch {copy.batch}, {len(copy.files)} files, {copy.total_bytes} bytes in {to}"
    )


def restore(
    name: JobArgument,
    config: ConfigFileOption,
    from_: BackupSourceOption,
    same: KeepIdentityOption = False,
    force: ForceOption = False,
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
    from gateway.pipeline.state import location
    from gateway.pipeline.state.files import open_files

    _, pipelines = load_pipelines(config)
    find_job(pipelines, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = _start_spark(pipelines, stack, root, from_)
        source = open_files(from_, spark)
        if (of := room.read_manifest(source).job) != name:
            raise PipelineError(f"{from_} is a copy of {of}, not of {name}")
        stack.enter_context(location.require_idle(root, name, spark, force=force))
        target, path = location.open_next(root, name, spark)
        copy = room.restore_backup(source, target, path, keep_identity=same)
    typer.echo(f"{name}: goes on after batch {copy.batch}, from {path}")


def _start_spark(pipelines: Pipelines, stack: ExitStack, *paths: str) -> Any:
    """A session, where one of the places needs it."""
    from gateway.pipeline.spark.session import create_session
    from gateway.pipeline.state import location

    if not any(map(location.is_remote, paths)):
        return None
    spark = create_session(pipelines.spark, "backup")
    stack.callback(spark.stop)
    return spark
