"""`gateway pipeline backup` and `gateway pipeline restore`: copy a job's checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import ConfigFileOption, JobArgument, find_job, load_pipelines

if TYPE_CHECKING:
    from gateway.config import Pipelines

BackupTargetOption = Annotated[
    str,
    typer.Option("--to", metavar="DIR", help="An empty directory, or a URL that Hadoop can write."),
]
BackupSourceOption = Annotated[
    str, typer.Option("--from", metavar="DIR", help="The directory or URL of the backup.")
]
KeepIdentityOption = Annotated[
    bool,
    typer.Option(
        "--same",
        help="Keep the query's identity, so that exactly-once output is not repeated. Only for a "
        "job that did not run after the backup, for example to move it.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Confirm that the job has ended, if its checkpoint is not a local directory.",
    ),
]


def backup(name: JobArgument, config: ConfigFileOption, to: BackupTargetOption) -> None:
    """Copy what a job needs to continue.

    The copy continues after the job's newest finished batch. The job may run meanwhile. Every file
    is checked before it is copied, and read again afterwards.

    \b
    gateway pipeline backup sessions -c gateway.yaml --to /mnt/backups/sessions-2026-11-21
    gateway pipeline backup sessions -c gateway.yaml --to s3a://backups/sessions/1
    """
    from gateway.pipeline.state import location
    from gateway.pipeline.state.backup import create_backup
    from gateway.pipeline.state.files import open_files

    _, pipelines = load_pipelines(config)
    find_job(pipelines, name)
    with ExitStack() as stack:
        spark = _start_spark(pipelines, stack, pipelines.checkpoints, to)
        source = location.open_current(pipelines.checkpoints, name, spark)
        copy = create_backup(source, open_files(to, spark), name)
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
    """Let a job continue from a backup.

    The backup becomes the next version of the job's checkpoint; older versions stay. The job must
    not run. When it is started again, it continues after the batch of the backup. Output that it
    wrote after that batch is written a second time, unless --same is given.

    \b
    gateway pipeline restore sessions -c gateway.yaml --from /mnt/backups/sessions-2026-11-21
    """
    from gateway.errors import PipelineError
    from gateway.pipeline.state import location
    from gateway.pipeline.state.backup import read_manifest, restore_backup
    from gateway.pipeline.state.files import open_files

    _, pipelines = load_pipelines(config)
    find_job(pipelines, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = _start_spark(pipelines, stack, root, from_)
        source = open_files(from_, spark)
        if (job := read_manifest(source).job) != name:
            raise PipelineError(f"{from_} is a backup of {job}, not of {name}")
        stack.enter_context(location.require_idle(root, name, spark, force=force))
        target, path = location.open_next(root, name, spark)
        copy = restore_backup(source, target, path, keep_identity=same)
    typer.echo(f"{name}: continues after batch {copy.batch}, from {path}")


def _start_spark(pipelines: Pipelines, stack: ExitStack, *paths: str) -> Any:
    from gateway.pipeline.spark.session import create_session
    from gateway.pipeline.state import location

    if not any(map(location.is_remote, paths)):
        return None
    spark = create_session(pipelines.spark, "backup")
    stack.callback(spark.stop)
    return spark
