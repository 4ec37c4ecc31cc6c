"""Look after a job's checkpoint: find it, ensure that no job uses it, copy, restore, rescale it.

Only one process at a time runs a job or changes its checkpoint. On a local disk the lease is a lock
on a file. The operating system releases it when the process ends, however that happens. Other file
systems have no such lock. There, a job counts as active while its newest batch has begun or ended
recently.

A backup is of one finished batch and has only the files that a job needs to go on after it. It is
taken while the job runs, because the files of a finished batch do not change. Each file is verified
before and after it is copied. `backup.json` is written last: without it, a directory is not a
backup. A restored job goes on after the batch of the backup. It gets a new query id unless the
caller asks for the old one. The ledger in Kafka knows which batches of the old query were written,
and would take new batches with the same numbers for these, although they have other records. So the
batches after the backup are written again, once, under the new query id.

`spark.sql.shuffle.partitions` is stored in the checkpoint, and a changed setting is ignored. To
rescale, Spark 4.2 rewrites the state of all operators in place, as one more batch that reads
nothing (SPARK-53720). The query id and the batch numbers continue, so the ledger of exactly-once
output stays valid: it just has no entries of that batch. The number of writers is another setting
and does not change. If the process is killed meanwhile, the job refuses to start until the same
call has succeeded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError
from gateway.pipeline.job_settings import local_path
from gateway.pipeline.spark import internals

from .checkpoint import LEASE_FILE, parse_batches, parse_partition_count, read_query_id
from .files import Files, open_files, refuse_damaged
from .job_checkpoint import DEFINITION_FILE, list_versions, update_fields, version_path
from .report import CheckpointInspector, find_newest_batch, select_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(root: str) -> bool:
    """Return whether a location is only reached through a session of Spark."""
    return local_path(root) is None


def find_newest_version(root: str, job: str, spark: Any = None) -> int | None:
    return max(list_versions(root, job, spark), default=None)


def open_current(root: str, job: str, spark: Any = None) -> Files:
    version = find_newest_version(root, job, spark)
    if version is None:
        raise PipelineError(f"{job} has no checkpoint in {root}; run it first")
    return open_files(version_path(root, job, version), spark)


def open_next(root: str, job: str, spark: Any = None) -> tuple[Files, str]:
    """Return a temporary directory for a restored checkpoint, and the location of the next version.

    When the directory is renamed to that location, it becomes the version in use. Older versions
    are kept.
    """
    path = version_path(root, job, (find_newest_version(root, job, spark) or 0) + 1)
    return open_files(f"{path}.restoring", spark), path


@contextlib.contextmanager
def require_idle(root: str, job: str, spark: Any = None, *, force: bool = False) -> Iterator[None]:
    """Hold the lease of a job, after verifying that the job does not run.

    Args:
        force: Whether to assume that the job does not run if that cannot be known.
    """
    version = find_newest_version(root, job, spark)
    is_known_idle = force or version is None or not is_remote(root)
    if not is_known_idle and is_active(open_current(root, job, spark)):
        raise PipelineError(
            f"{job} had a batch within the last {ACTIVE_WINDOW_S / 60:.0f} minutes; end it, "
            "and wait so long, or say --force if you know that it has ended"
        )
    with hold_lease(f"{root.rstrip('/')}/{job}", job):
        yield


ACTIVE_WINDOW_S = 300.0


@contextlib.contextmanager
def hold_lease(directory: str, job: str) -> Iterator[None]:
    """Hold the lease of a local job; raise PipelineError if it is held, even by this process."""
    root = local_path(directory)
    if root is None:
        yield
        return
    # "a+" creates the file and does not truncate it: another process's text is needed below.
    root.mkdir(parents=True, exist_ok=True)
    with (root / LEASE_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(f"{job} is run by {holder}; end that first") from None
        # The text is only for the error above. Closing the file releases the lock.
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


def is_active(files: Files, now: float | None = None) -> bool:
    """Return whether the newest batch of a checkpoint has begun or ended within five minutes."""
    sizes = files.list_sizes()
    now = time.time() if now is None else now
    for log in ("offsets", "commits"):
        for batch in parse_batches(sizes, log)[-1:]:
            with contextlib.suppress(FileNotFoundError):
                if now - files.get_mtime(f"{log}/{batch}") < ACTIVE_WINDOW_S:
                    return True
    return False


MANIFEST_FILE = "backup.json"
MAX_ATTEMPTS = 3  # a running job may delete a file between its listing and its copy


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of `backup.json`: sizes and SHA-256 of files, `taken` in seconds since 1970."""

    job: str
    query: str
    batch: int
    taken: float
    files: dict[str, tuple[int, str]]

    @property
    def total_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def create_backup(
    source: Files, target: Files, job: str, *, check_content: Any = None
) -> BackupManifest:
    """Copy the newest finished batch into an empty directory. The job may run."""
    if target.list_sizes():
        raise PipelineError(f"{target.location} is not empty; name another directory")
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        try:
            return _copy_batch(source, target, job, check_content)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            for name in target.list_sizes():
                target.remove(name)
            if not attempts_left:
                raise PipelineError(f"{source.location} cannot be copied: {error}") from error
    raise AssertionError


def read_manifest(source: Files) -> BackupManifest:
    try:
        content = json.loads(source.read(MANIFEST_FILE))
        files = {name: (size, digest) for name, (size, digest) in content.pop("files").items()}
        return BackupManifest(**content, files=files)
    except FileNotFoundError:
        raise PipelineError(
            f"{source.location} has no finished backup: {MANIFEST_FILE} is missing"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{source.location}/{MANIFEST_FILE} is damaged: {error}") from None


def verify_backup(source: Files) -> BackupManifest:
    """Read all files of a backup, and return its manifest."""
    manifest = read_manifest(source)
    for name, (size, digest) in manifest.files.items():
        if (actual := _read_digest(source, name)) != (size, digest):
            problem = "is missing" if actual is None else "is damaged"
            raise PipelineError(f"{source.location}: {name} {problem}; take another backup")
    return manifest


def restore_backup(
    source: Files, target: Files, directory: str, *, keep_identity: bool = False
) -> BackupManifest:
    """Make a backup the checkpoint that a job uses.

    Args:
        target: A temporary directory. It is renamed to `directory`, the location of the new
            checkpoint, when it is complete, so that a job never sees a part of a checkpoint.
        keep_identity: Whether to keep the query id. This is only correct if the job has not run
            further than the backup.
    """
    manifest = verify_backup(source)
    for name in target.list_sizes():  # of an earlier restore that was interrupted
        target.remove(name)
    for name, expected in manifest.files.items():
        with source.fetch(name) as path:
            target.put(path, name)
        if _read_digest(target, name) != expected:
            raise PipelineError(f"{target.location}: {name} was not copied correctly; try again")
    # The id is in Spark's own file and in ours, and both must agree (`definition.verify_identity`).
    if not keep_identity:
        query_id = str(uuid.uuid4())
        target.write("metadata", json.dumps({"id": query_id}).encode())
        if DEFINITION_FILE in manifest.files:
            data = update_fields(target.read(DEFINITION_FILE), query=query_id)
            target.write(DEFINITION_FILE, data)
    target.rename_to(directory)
    return manifest


def _copy_batch(source: Files, target: Files, job: str, check_content: Any) -> BackupManifest:
    inspector = CheckpointInspector(source, check_content)
    batch = find_newest_batch(inspector.sizes, source.location)
    query_id = read_query_id(source)
    copied = {}
    for name in select_files(inspector, batch):
        with source.fetch(name) as path:
            digest = _compute_digest(path)
            target.put(path, name)
        if _read_digest(target, name) != digest:
            raise OSError(f"{name} was not copied correctly")
        copied[name] = digest
    manifest = BackupManifest(job, query_id, batch, time.time(), copied)
    target.write(MANIFEST_FILE, json.dumps(asdict(manifest), indent=1).encode())
    return manifest


def _read_digest(files: Files, name: str) -> tuple[int, str] | None:
    try:
        with files.fetch(name) as path:
            return _compute_digest(path)
    except FileNotFoundError:
        return None


def _compute_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


# What Spark's error classes mean, and what to do.
_REFUSAL_MESSAGES = {
    "LAST_BATCH_FAILED": "its last batch is not finished; run the job until a batch ends, end it "
    "with SIGTERM, then rescale again",
    "NO_COMMITTED_BATCH": "it has no finished batch; set state.partitions and run it",
    "NO_BATCH_FOUND": "it has no batch; set state.partitions and run it",
    "MISSING_OPERATOR_METADATA": "it keeps no state; there is nothing to do",
}


@dataclass(frozen=True, slots=True)
class RescaleResult:
    old_partitions: int
    new_partitions: int
    batch: int
    seconds: float


def read_partition_count(files: Files) -> int | None:
    """Return the number of partitions after the last finished batch, or None before the first."""
    sizes = files.list_sizes()
    batches = [n for n in parse_batches(sizes, "commits") if f"offsets/{n}" in sizes]
    return parse_partition_count(files.read(f"offsets/{batches[-1]}")) if batches else None


def rescale_state(spark: SparkSession, files: Files, new_partitions: int) -> RescaleResult:
    """Change the number of partitions of a job's state. The job must not run."""
    from py4j.protocol import Py4JJavaError

    old_partitions = read_partition_count(files)
    if old_partitions is None:
        raise PipelineError(f"{files.location}: {_REFUSAL_MESSAGES['NO_COMMITTED_BATCH']}")
    sizes = files.list_sizes()
    is_finished = parse_batches(sizes, "offsets")[-1:] == parse_batches(sizes, "commits")[-1:]
    if old_partitions == new_partitions and is_finished:
        # An earlier call may have been killed just before it updated the definition.
        _update_definition(files, new_partitions)
        raise PipelineError(f"{files.location} has {new_partitions} partitions already")
    began = time.monotonic()
    try:
        internals.repartition_state(spark, files.location, new_partitions)
    except Py4JJavaError as error:
        raise PipelineError(f"{files.location}: {_format_error(error)}") from None
    _update_definition(files, new_partitions)
    batch = parse_batches(files.list_sizes(), "commits")[-1]
    return RescaleResult(old_partitions, new_partitions, batch, time.monotonic() - began)


def _format_error(error: Any) -> str:
    text = str(error.java_exception.getMessage())
    for error_class, message in _REFUSAL_MESSAGES.items():
        if error_class in text:
            return message
    if "LAST_BATCH_ABANDONED_REPARTITION" in text:
        return f"an earlier rescaling was not finished; call it again with its number ({text})"
    return text


def _update_definition(files: Files, new_partitions: int) -> None:
    """Store the number in the definition of the checkpoint, so that the job is not refused."""
    if DEFINITION_FILE in files.list_sizes():
        with refuse_damaged(files.location, DEFINITION_FILE):
            data = update_fields(files.read(DEFINITION_FILE), partitions=new_partitions)
        files.write(DEFINITION_FILE, data)
