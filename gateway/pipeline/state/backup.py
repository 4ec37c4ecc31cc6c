"""Copies of a checkpoint on another file system, and back.

A copy is of one finished batch: only what a job needs to go on after it, taken while the job runs
(files of a finished batch do not change), each file looked at before and after. `backup.json`
is written last: a directory without it is no copy.

Restored, a job goes on after the batch of the copy. Its identity is a new one unless asked
otherwise: the ledger in Kafka knows which batches of the old one have been written, and would
take the batches to come, of other records under the same numbers, for those. So what was
written after the copy is written again, once, under the new identity.
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

from .files import Files
from .inspector import CheckpointInspector, find_newest_batch, select_files

MANIFEST_FILE = "backup.json"
MAX_ATTEMPTS = 3  # while retention deletes what was listed


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What `backup.json` says. files: names, and their bytes and SHA-256."""

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
    """Copy the newest finished batch into an empty directory. deep: see `whole.by_jvm`.

    Raises PipelineError: there is no finished batch, it is damaged, or the directory is in use.
    """
    if target.list_sizes():
        raise PipelineError(f"{target.location} is not empty; name another directory")
    for last in reversed(range(MAX_ATTEMPTS)):
        try:
            return _copy_batch(source, target, job, check_content)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            for name in target.list_sizes():
                target.remove(name)
            if not last:
                raise PipelineError(f"{source.location} cannot be copied: {error}") from error
    raise AssertionError


def read_manifest(source: Files) -> BackupManifest:
    """Raises PipelineError: it is no copy, or an unfinished one."""
    try:
        found = json.loads(source.read(MANIFEST_FILE))
        files = {name: (size, digest) for name, (size, digest) in found.pop("files").items()}
        return BackupManifest(**found, files=files)
    except FileNotFoundError:
        raise PipelineError(
            f"{source.location} is no finished backup; it has no {MANIFEST_FILE}"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{source.location}/{MANIFEST_FILE} is damaged: {error}") from None


def verify_backup(source: Files) -> BackupManifest:
    """Read all of a copy. Raises PipelineError: a file is not what was copied."""
    copy = read_manifest(source)
    for name, (size, digest) in copy.files.items():
        if (found := _read_digest(source, name)) != (size, digest):
            what = "is missing" if found is None else "is damaged"
            raise PipelineError(f"{source.location}: {name} {what}; take another backup")
    return copy


def restore_backup(
    source: Files, target: Files, directory: str, *, keep_identity: bool = False
) -> BackupManifest:
    """Put a copy where a job finds it.

    target: a directory beside, which becomes `directory` when all is there: a job never sees
    half of it. same: keep the identity; only right if the job ran no further than the copy.
    Raises PipelineError: the copy is damaged.
    """
    copy = verify_backup(source)
    for name in target.list_sizes():
        target.remove(name)
    for name, wanted in copy.files.items():
        with source.fetch(name) as path:
            target.put(path, name)
        if _read_digest(target, name) != wanted:
            raise PipelineError(f"{target.location}: {name} did not arrive whole; try again")
    if not keep_identity:
        query = str(uuid.uuid4())
        target.write("metadata", json.dumps({"id": query}).encode())
        if definition.DEFINITION_FILE in copy.files:
            data = definition.replace_query_id(target.read(definition.DEFINITION_FILE), query)
            target.write(definition.DEFINITION_FILE, data)
    target.rename_to(directory)
    return copy


def _copy_batch(source: Files, target: Files, job: str, check_content: Any) -> BackupManifest:
    look = CheckpointInspector(source, check_content)
    batch = find_newest_batch(look.sizes, source.location)
    copied = {}
    for name in select_files(look, batch):
        with source.fetch(name) as path:
            wanted = _compute_digest(path)
            target.put(path, name)
        if _read_digest(target, name) != wanted:
            raise OSError(f"{name} did not arrive whole")
        copied[name] = wanted
    query = json.loads(source.read("metadata"))["id"]
    copy = BackupManifest(job, query, batch, time.time(), copied)
    target.write(MANIFEST_FILE, json.dumps(asdict(copy), indent=1).encode())
    return copy


def _read_digest(files: Files, name: str) -> tuple[int, str] | None:
    try:
        with files.fetch(name) as path:
            return _compute_digest(path)
    except FileNotFoundError:
        return None


def _compute_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
