"""A job's checkpoint, ready for its query: found or begun, and of the job as it is defined now."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.sections.job import Job
from gateway.pipeline.state.files import Files, open_files

from . import definition, versions


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """location: as Spark is told. query: the id that the query has for as long as it lasts.
    hot: the keys that a join spreads. new: nothing was done there yet."""

    location: str
    version: int
    query_id: str
    hot_keys: tuple[str, ...]
    is_new: bool


def prepare_checkpoint(
    root: str,
    job: Job,
    spark: Any = None,
    *,
    fresh: bool = False,
    find_hot_keys: Callable[[], Sequence[str]] = tuple,
) -> JobCheckpoint:
    """The version in use, or a new one.

    fresh: a new one in any case. hot: asked for the hot keys when one begins.
    Raises CheckpointRefused: it is of another definition; what to do is in the message.
    """
    known = versions.list_versions(root, job.name, spark)
    if fresh or not known:
        return _begin_version(root, job, (known or [0])[-1] + 1, spark, find_hot_keys())
    location = versions.version_path(root, job.name, known[-1])
    held = open_files(location, spark)
    try:
        data = held.read(definition.DEFINITION_FILE)
    except FileNotFoundError:  # begun, and killed before its first file was written
        return _begin_version(root, job, known[-1], spark, find_hot_keys())
    before, keys = definition.parse_definition(data)
    query = _read_query_id(held)
    definition.verify_identity(data, job.name, query, location)
    definition.verify_definition(job, before, location)
    return JobCheckpoint(location, known[-1], query, tuple(keys), is_new=False)


def update_definition(
    checkpoint: JobCheckpoint, job: Job, spark: Any = None, *, is_stateful: bool
) -> None:
    """Hold a query against its checkpoint once Spark has said whether it keeps state.

    `ready` cannot know that. Before the first batch the definition is written anew with what state
    depends on. Raises CheckpointRefused: there were batches, of a query without state, or of one
    whose state an older version of this did not know of.
    """
    held = open_files(checkpoint.location, spark)
    before, hot = definition.parse_definition(held.read(definition.DEFINITION_FILE))
    if not is_stateful or definition.has_state(before):
        return
    if any(name.startswith("offsets/") for name in held.list_sizes()):
        definition.verify_definition(job, before, checkpoint.location, is_stateful=True)
    data = definition.encode_definition(job, hot, is_stateful=True, query_id=checkpoint.query_id)
    held.write(definition.DEFINITION_FILE, data)


def _begin_version(
    root: str, job: Job, version: int, spark: Any, hot_keys: Sequence[str]
) -> JobCheckpoint:
    """The query's id is chosen here: who writes its rows needs it before Spark would make one."""
    location = versions.version_path(root, job.name, version)
    held = open_files(location, spark)
    query = str(uuid.uuid4())
    held.write("metadata", json.dumps({"id": query}).encode())
    data = definition.encode_definition(job, hot_keys, query_id=query)
    held.write(definition.DEFINITION_FILE, data)  # last: with it all is there
    return JobCheckpoint(location, version, query, tuple(hot_keys), is_new=True)


def _read_query_id(files: Files) -> str:
    return str(json.loads(files.read("metadata"))["id"])
