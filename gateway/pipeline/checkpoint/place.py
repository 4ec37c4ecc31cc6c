"""A job's checkpoint, ready for its query: found or begun, and of the job as it is defined now."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.sections.pipeline import Job
from gateway.pipeline.state.files import Files, files

from . import checkpoints, definition


@dataclass(frozen=True, slots=True)
class Place:
    """location: as Spark is told. query: the id that the query has for as long as it lasts.
    hot: the keys that a join spreads. new: nothing was done there yet."""

    location: str
    version: int
    query: str
    hot: tuple[str, ...]
    new: bool


def ready(
    root: str,
    job: Job,
    spark: Any = None,
    *,
    fresh: bool = False,
    hot: Callable[[], Sequence[str]] = tuple,
) -> Place:
    """The version in use, or a new one.

    fresh: a new one in any case. hot: asked for the hot keys when one begins.
    Raises CheckpointRefused: it is of another definition; what to do is in the message.
    """
    known = checkpoints.found(root, job.name, spark)
    if fresh or not known:
        return _begun(root, job, (known or [0])[-1] + 1, spark, hot())
    location = checkpoints.path(root, job.name, known[-1])
    held = files(location, spark)
    try:
        data = held.read(definition.FILE)
    except FileNotFoundError:  # begun, and killed before its first file was written
        return _begun(root, job, known[-1], spark, hot())
    before, keys = definition.read(data)
    query = _query(held)
    definition.verify_identity(data, job.name, query, location)
    definition.refuse(job, before, location)
    return Place(location, known[-1], query, tuple(keys), new=False)


def settle_state(place: Place, job: Job, spark: Any = None, *, stateful: bool) -> None:
    """Hold a query against its checkpoint once Spark has said whether it keeps state.

    `ready` cannot know that. Before the first batch the definition is written anew with what state
    depends on. Raises CheckpointRefused: there were batches, of a query without state, or of one
    whose state an older version of this did not know of.
    """
    held = files(place.location, spark)
    before, hot = definition.read(held.read(definition.FILE))
    if not stateful or definition.is_of_state(before):
        return
    if any(name.startswith("offsets/") for name in held.sizes()):
        definition.refuse(job, before, place.location, stateful=True)
    data = definition.encode(job, hot, stateful=True, query=place.query)
    held.write(definition.FILE, data)


def _begun(root: str, job: Job, version: int, spark: Any, hot: Sequence[str]) -> Place:
    """The query's id is chosen here: who writes its rows needs it before Spark would make one."""
    location = checkpoints.path(root, job.name, version)
    held = files(location, spark)
    query = str(uuid.uuid4())
    held.write("metadata", json.dumps({"id": query}).encode())
    data = definition.encode(job, hot, query=query)
    held.write(definition.FILE, data)  # last: with it all is there
    return Place(location, version, query, tuple(hot), new=True)


def _query(held: Files) -> str:
    return str(json.loads(held.read("metadata"))["id"])
