"""Prepare a job's checkpoint for its query: find or create it, and verify its definition."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.sections.job import Job
from gateway.errors import CheckpointRefused
from gateway.pipeline.state.files import open_files, refuse_damaged

from . import definition, versions


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """The version of a job's checkpoint that a query uses."""

    location: str
    version: int
    query_id: str
    hot_keys: tuple[str, ...]


def prepare_checkpoint(
    root: str,
    job: Job,
    spark: Any = None,
    *,
    fresh: bool = False,
    find_hot_keys: Callable[[], Sequence[str]] = tuple,
) -> JobCheckpoint:
    """Return the version in use of a job's checkpoint, or create one with its hot keys."""
    existing = versions.list_versions(root, job.name, spark)
    if fresh or not existing:
        number = (existing or [0])[-1] + 1
        return _begin_version(root, job, number, spark, find_hot_keys(), is_first=not fresh)
    location = versions.version_path(root, job.name, existing[-1])
    files = open_files(location, spark)
    names = files.list_sizes()
    if definition.DEFINITION_FILE not in names and _is_begun(names, is_first=len(existing) == 1):
        return _begin_version(root, job, existing[-1], spark, find_hot_keys(), is_first=True)
    for name in (definition.DEFINITION_FILE, "metadata"):
        if name not in names:
            raise CheckpointRefused(
                f"{location} has no {name}, so it is no checkpoint, or a part of one; put the "
                "whole one back, remove the directory, or start again with --fresh"
            )
    with refuse_damaged(location, "metadata"):
        query_id = str(json.loads(files.read("metadata"))["id"])
    with refuse_damaged(location, definition.DEFINITION_FILE):
        data = files.read(definition.DEFINITION_FILE)
        stored, hot_keys = definition.parse_definition(data)
        definition.verify_identity(data, job.name, query_id, location)
    definition.verify_definition(job, stored, location)
    return JobCheckpoint(location, existing[-1], query_id, tuple(hot_keys))


def update_definition(
    checkpoint: JobCheckpoint,
    job: Job,
    spark: Any = None,
    *,
    is_stateful: bool,
    table_order: Sequence[str],
) -> None:
    """Complete the definition of a query's checkpoint by what only Spark's plan says.

    `prepare_checkpoint` cannot know whether the query keeps state, nor the order of its sources.

    Raises:
        CheckpointRefused: There are batches, and the query reads its tables in another order. Or it
            keeps state, and the batches are of a query without state, or of a query whose state an
            older version of the gateway did not know of.
    """
    files = open_files(checkpoint.location, spark)
    stored, hot_keys = definition.parse_definition(files.read(definition.DEFINITION_FILE))
    is_complete = definition.has_state(stored) or not is_stateful
    if is_complete and definition.get_table_order(stored) == list(table_order):
        return
    if any(name.startswith(("offsets/", "sources/")) for name in files.list_sizes()):
        definition.verify_definition(
            job,
            stored,
            checkpoint.location,
            is_stateful=is_stateful,
            table_order=table_order,
        )
    data = definition.encode_definition(
        job,
        hot_keys,
        is_stateful=is_stateful or definition.has_state(stored),
        table_order=table_order,
        query_id=checkpoint.query_id,
    )
    files.write(definition.DEFINITION_FILE, data)


def _begin_version(
    root: str, job: Job, version: int, spark: Any, hot_keys: Sequence[str], *, is_first: bool
) -> JobCheckpoint:
    """Create a version with a query id, which the writer needs before Spark would choose one.

    Args:
        is_first: Whether the job is taken for one that has never run (see `Checkpoint.is_first`).
    """
    location = versions.version_path(root, job.name, version)
    files = open_files(location, spark)
    query_id = str(uuid.uuid4())
    files.write("metadata", json.dumps({"id": query_id, "first": is_first}).encode())
    data = definition.encode_definition(job, hot_keys, query_id=query_id)
    files.write(definition.DEFINITION_FILE, data)  # last: a version is complete once it has this
    return JobCheckpoint(location, version, query_id, tuple(hot_keys))


def _is_begun(names: Collection[str], *, is_first: bool) -> bool:
    """Return whether a version has no more than what `_begin_version` writes first.

    An empty directory beside other versions is not one: the job would begin once more.
    """
    return (is_first or "metadata" in names) and not set(names) - {"metadata"}
