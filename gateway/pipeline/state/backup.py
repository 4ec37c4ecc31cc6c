"""Copy a checkpoint to another file system, and restore such a backup.

A backup is of one finished batch and has only the files that a job needs to go on after it. It is
taken while the job runs, because the files of a finished batch do not change. Each file is verified
before and after it is copied. `backup.json` is written last: without it, a directory is not a
backup.

A restored job goes on after the batch of the backup. It gets a new query id unless the caller asks
for the old one. The ledger in Kafka knows which batches of the old query were written, and would
take new batches with the same numbers for these, although they have other records. So the batches
after the backup are written again, once, under the new query id.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import definition

from .files import Files, refuse_damaged
from .report import CheckpointInspector, find_newest_batch, select_files

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
        if definition.DEFINITION_FILE in manifest.files:
            data = definition.replace_query_id(target.read(definition.DEFINITION_FILE), query_id)
            target.write(definition.DEFINITION_FILE, data)
    target.rename_to(directory)
    return manifest


def _copy_batch(source: Files, target: Files, job: str, check_content: Any) -> BackupManifest:
    inspector = CheckpointInspector(source, check_content)
    batch = find_newest_batch(inspector.sizes, source.location)
    with refuse_damaged(source.location, "metadata"):
        query_id = json.loads(source.read("metadata"))["id"]
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
