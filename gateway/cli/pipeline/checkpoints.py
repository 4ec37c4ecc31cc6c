"""`gateway pipeline state`, `backup`, `restore` and `rescale`: look after a job's checkpoint."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.commands import EXIT_FAILURE
from gateway.cli.options import ConfigFileOption, JsonOption
from gateway.cli.output import format_table

from .jobs import JobArgument, load_job

if TYPE_CHECKING:
    from gateway.config import Pipelines
    from gateway.pipeline.checkpoint.report import StateReport


def state(
    name: JobArgument,
    config: ConfigFileOption,
    keys: Annotated[
        int | None,
        typer.Option("--keys", min=0, help="Count the keys, and print this many of them."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file that a restart needs.")
    ] = False,
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
    from gateway.pipeline.checkpoint import damage, maintenance, report

    _, pipelines, _ = load_job(config, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        needs_spark = keys is not None or maintenance.is_remote(root)
        spark = _start_spark(pipelines, stack, f"state {name}") if needs_spark else None
        files = maintenance.open_current(root, name, spark)
        check_content = damage.create_content_check(spark) if verify and spark is not None else None
        job_state = report.read_state(files, name, verify=verify, check_content=check_content)
        if keys is not None and spark is not None:
            report.count_keys(spark, job_state, files.location, keys)
    typer.echo(json.dumps(job_state.to_json()) if as_json else format_state(job_state))
    if any(each.damage for each in job_state.partitions):
        raise typer.Exit(EXIT_FAILURE)


def format_state(report: StateReport) -> str:
    rows: list[tuple[str, ...]] = [
        ("OPERATOR", "STORE", "PARTITION", "KEYS", "BYTES", "SNAPSHOT", "CHANGELOGS AFTER")
    ]
    for each in report.partitions:
        operator = f"{each.operator} {report.operators.get(each.operator, '')}".rstrip()
        numbers = (each.keys, each.bytes, each.snapshot, each.behind)
        cells = ("-" if number is None else str(number) for number in numbers)
        rows.append((operator, each.store, str(each.partition), *cells))
    keys = "" if report.keys is None else f", {report.keys} keys"
    lines = [f"{report.job}: after batch {report.batch}{keys}, {report.bytes} bytes"]
    lines += [*format_table(rows), *map(json.dumps, report.sample)]
    return "\n".join(
        [*lines, *(f"damaged: {text}" for each in report.partitions for text in each.damage)]
    )


ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Confirm that the job has ended, if its checkpoint is not a local directory.",
    ),
]


def backup(
    name: JobArgument,
    config: ConfigFileOption,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="DIR", help="An empty directory, or a URL that Hadoop can write."
        ),
    ],
) -> None:
    """Copy what a job needs to continue.

    The copy continues after the job's newest finished batch. The job may run meanwhile. Every file
    is checked before it is copied, and read again afterwards.

    \b
    gateway pipeline backup sessions -c gateway.yaml --to /mnt/backups/sessions-2026-11-21
    gateway pipeline backup sessions -c gateway.yaml --to s3a://backups/sessions/1
    """
    from gateway.pipeline.checkpoint import maintenance
    from gateway.pipeline.checkpoint.files import open_files
    from gateway.pipeline.checkpoint.maintenance import create_backup

    _, pipelines, _ = load_job(config, name)
    with ExitStack() as stack:
        spark = _start_spark_for_files(pipelines, stack, to)
        source = maintenance.open_current(pipelines.checkpoints, name, spark)
        copy = create_backup(source, open_files(to, spark), name)
    typer.echo(
        f"{name}: batch {copy.batch}, {len(copy.files)} files, {copy.total_bytes} bytes in {to}"
    )


def restore(
    name: JobArgument,
    config: ConfigFileOption,
    from_: Annotated[
        str, typer.Option("--from", metavar="DIR", help="The directory or URL of the backup.")
    ],
    same: Annotated[
        bool,
        typer.Option(
            "--same",
            help="Keep the query's identity, so that exactly-once output is not repeated. Only "
            "for a job that did not run after the backup, for example to move it.",
        ),
    ] = False,
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
    from gateway.pipeline.checkpoint import maintenance
    from gateway.pipeline.checkpoint.files import open_files
    from gateway.pipeline.checkpoint.maintenance import read_manifest, restore_backup

    _, pipelines, _ = load_job(config, name)
    root = pipelines.checkpoints
    with ExitStack() as stack:
        spark = _start_spark_for_files(pipelines, stack, from_)
        source = open_files(from_, spark)
        if (job := read_manifest(source).job) != name:
            raise PipelineError(f"{from_} is a backup of {job}, not of {name}")
        stack.enter_context(maintenance.require_idle(root, name, spark, force=force))
        target, path = maintenance.open_next(root, name, spark)
        copy = restore_backup(source, target, path, keep_identity=same)
    typer.echo(f"{name}: continues after batch {copy.batch}, from {path}")


def _start_spark(pipelines: Pipelines, stack: ExitStack, purpose: str) -> Any:
    from gateway.pipeline.spark.session import create_session

    spark = create_session(pipelines.spark, purpose)
    stack.callback(spark.stop)
    return spark


def _start_spark_for_files(pipelines: Pipelines, stack: ExitStack, path: str) -> Any:
    from gateway.pipeline.checkpoint.maintenance import is_remote

    is_needed = is_remote(path) or is_remote(pipelines.checkpoints)
    return _start_spark(pipelines, stack, "backup") if is_needed else None


def rescale(
    name: JobArgument,
    config: ConfigFileOption,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, max=10_000, help="The new number of partitions.")
    ],
    force: ForceOption = False,
) -> None:
    """Divide a job's state among more or fewer partitions.

    The job must have ended after a batch. Afterwards, set state.partitions to the same number.
    Nothing is read from or written to Kafka. The job continues where it was, exactly once as
    before.

    \b
    gateway pipeline rescale sessions -c gateway.yaml --partitions 8
    """
    from gateway.pipeline.checkpoint import maintenance
    from gateway.pipeline.checkpoint.maintenance import rescale_state

    _, pipelines, job = load_job(config, name)
    with ExitStack() as stack:
        spark = _start_spark(pipelines, stack, f"rescale {name}")
        stack.enter_context(
            maintenance.require_idle(pipelines.checkpoints, name, spark, force=force)
        )
        files = maintenance.open_current(pipelines.checkpoints, name, spark)
        result = rescale_state(spark, files, partitions)
    typer.echo(
        f"{name}: {result.old_partitions} -> {result.new_partitions} partitions "
        f"in {result.seconds:.1f} s (batch {result.batch})"
    )
    if job.state.partitions != partitions:
        typer.echo(f"now set state.partitions of {name} to {partitions} in {config}")
