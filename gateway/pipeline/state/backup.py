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

from .chosen import Look, batch_of, needed
from .files import Files

MANIFEST = "backup.json"
TRIES = 3  # while retention deletes what was listed


@dataclass(frozen=True, slots=True)
class Copy:
    """What `backup.json` says. files: names, and their bytes and SHA-256."""

    job: str
    query: str
    batch: int
    taken: float
    files: dict[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def backup(source: Files, target: Files, job: str, *, deep: Any = None) -> Copy:
    """Copy the newest finished batch into an empty directory. deep: see `whole.by_jvm`.

    Raises PipelineError: there is no finished batch, it is damaged, or the directory is in use.
    """
    if target.sizes():
        raise PipelineError(f"{target.where} is not empty; name another directory")
    for last in reversed(range(TRIES)):
        try:
            return _copied(source, target, job, deep)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            for name in target.sizes():
                target.remove(name)
            if not last:
                raise PipelineError(f"{source.where} cannot be copied: {error}") from error
    raise AssertionError


def manifest(source: Files) -> Copy:
    """Raises PipelineError: it is no copy, or an unfinished one."""
    try:
        found = json.loads(source.read(MANIFEST))
        files = {name: (size, digest) for name, (size, digest) in found.pop("files").items()}
        return Copy(**found, files=files)
    except FileNotFoundError:
        raise PipelineError(f"{source.where} is no finished backup; it has no {MANIFEST}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{source.where}/{MANIFEST} is damaged: {error}") from None


def verify(source: Files) -> Copy:
    """Read all of a copy. Raises PipelineError: a file is not what was copied."""
    copy = manifest(source)
    for name, (size, digest) in copy.files.items():
        if (found := _digest(source, name)) != (size, digest):
            what = "is missing" if found is None else "is damaged"
            raise PipelineError(f"{source.where}: {name} {what}; take another backup")
    return copy


def restore(source: Files, target: Files, directory: str, *, same: bool = False) -> Copy:
    """Put a copy where a job finds it.

    target: a directory beside, which becomes `directory` when all is there: a job never sees
    half of it. same: keep the identity; only right if the job ran no further than the copy.
    Raises PipelineError: the copy is damaged.
    """
    copy = verify(source)
    for name in target.sizes():
        target.remove(name)
    for name, wanted in copy.files.items():
        with source.fetched(name) as path:
            target.put(path, name)
        if _digest(target, name) != wanted:
            raise PipelineError(f"{target.where}: {name} did not arrive whole; try again")
    if not same:
        query = str(uuid.uuid4())
        target.write("metadata", json.dumps({"id": query}).encode())
        if definition.FILE in copy.files:
            data = definition.rename_query(target.read(definition.FILE), query)
            target.write(definition.FILE, data)
    target.become(directory)
    return copy


def _copied(source: Files, target: Files, job: str, deep: Any) -> Copy:
    look = Look(source, deep)
    batch = batch_of(look.sizes, source.where)
    copied = {}
    for name in needed(look, batch):
        with source.fetched(name) as path:
            wanted = _sum(path)
            target.put(path, name)
        if _digest(target, name) != wanted:
            raise OSError(f"{name} did not arrive whole")
        copied[name] = wanted
    query = json.loads(source.read("metadata"))["id"]
    copy = Copy(job, query, batch, time.time(), copied)
    target.write(MANIFEST, json.dumps(asdict(copy), indent=1).encode())
    return copy


def _digest(files: Files, name: str) -> tuple[int, str] | None:
    try:
        with files.fetched(name) as path:
            return _sum(path)
    except FileNotFoundError:
        return None


def _sum(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
