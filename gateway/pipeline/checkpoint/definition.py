"""What of a job its checkpoint is of: state means nothing to a job that is defined otherwise.

Kept beside the checkpoint as `definition.json`. What may change under it (triggers, sizes of
batches, the output, what becomes of bad records) is no part of it, nor are columns that the job
does not use. Spark itself checks some of this, late and in other words; of a changed gap or window
it notices nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job
from gateway.errors import CheckpointRefused
from gateway.pipeline.jobs import get_inputs

DEFINITION_FILE = "definition.json"
FORMAT_VERSION = 1
_EXCLUDED_OPTIONS = {
    "name",
    "type",
    "trigger",
    "alert_late",
    "state",
    "to",
    "from_",
    "left",
    "right",
    "tables",
}
_PARTITIONS_KEY = "state.partitions"
_WORD_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def build_definition(job: Job, *, is_stateful: bool = False) -> dict[str, Any]:
    """By dotted names, what must stay; JSON.

    stateful: of a query, whether it keeps more than offsets: Spark knows, by its plan.
    """
    found: dict[str, Any] = {"type": type(job).__name__.lower()}
    if not isinstance(job, config.Query):
        is_stateful = not isinstance(job, (config.Enrich, config.Load))
    if not is_stateful:
        for name, input in get_inputs(job).items():
            found |= {f"{name}.{key}": value for key, value in _describe_source(input).items()}
        return found
    own = job.model_dump(mode="json", by_alias=True, exclude=_EXCLUDED_OPTIONS)
    found |= _flatten(own)
    for name, input in get_inputs(job).items():
        found |= {f"{name}.{key}": value for key, value in _describe_input(job, input, own).items()}
    return found | {_PARTITIONS_KEY: job.state.partitions}


def has_state(definition: Mapping[str, Any]) -> bool:
    """Return whether a definition is of a job that keeps more than offsets."""
    return _PARTITIONS_KEY in definition


def find_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line for each name that is not what it was."""
    names = [*stored, *(name for name in current if name not in stored)]
    return [
        f"{name}: {_format_value(stored.get(name))} before, {_format_value(current.get(name))} now"
        for name in names
        if stored.get(name) != current.get(name)
    ]


def encode_definition(
    job: Job, hot_keys: Sequence[str] = (), *, is_stateful: bool = False, query_id: str = ""
) -> bytes:
    """Return the file.

    Args:
        job: Whose definition it is.
        hot: The keys that a join spreads, which must stay the same, too.
        stateful: As of `of`.
        query: The id of the checkpoint's query, "" for none.
    """
    found = build_definition(job, is_stateful=is_stateful)
    content: dict[str, Any] = {"format": FORMAT_VERSION, "job": job.name}
    if query_id:
        content["query"] = query_id
    if _PARTITIONS_KEY in found:
        content["partitions"] = found.pop(_PARTITIONS_KEY)  # apart: rescaling changes it
    content |= {"definition": found, "hot": list(hot_keys)}
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def parse_definition(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """What it is of, and the hot keys. Raises CheckpointRefused: of another version of this."""
    content = json.loads(data)
    if content.get("format") != FORMAT_VERSION:
        what = f"{DEFINITION_FILE} is of format {content.get('format')!r}, not {FORMAT_VERSION}"
        raise CheckpointRefused(f"{what}; run it with the version that wrote it, or with --fresh")
    found = dict(content["definition"])
    if "partitions" in content:
        found[_PARTITIONS_KEY] = content["partitions"]
    return found, content["hot"]


def replace_query_id(data: bytes, query_id: str) -> bytes:
    """Return the file for a checkpoint whose query has another id."""
    content = json.loads(data)
    return json.dumps(content | {"query": query_id}, indent=2, ensure_ascii=False).encode() + b"\n"


def verify_identity(data: bytes, job: str, query_id: str, location: str) -> None:
    """Verify that a checkpoint is the job's own, and that all of it is of one query.

    Args:
        data: The file; those of older versions do not name the query.
        job: The name of the job.
        query: The id that Spark's own file in the checkpoint names.
        where: The checkpoint.

    Raises:
        CheckpointRefused: It is of another job, or was copied together from two.
    """
    content = json.loads(data)
    if content["job"] != job:
        fault = f"is of job {content['job']}"
    elif content.get("query", query_id) != query_id:
        fault = f"has {DEFINITION_FILE} of query {content['query']}, and the batches of query {query_id}"
    else:
        return
    what = f"the checkpoint {location} of job {job} {fault}"
    raise CheckpointRefused(f"{what}; put the job's own checkpoint back, or start with --fresh")


def verify_definition(
    job: Job, stored: Mapping[str, Any], location: str, *, is_stateful: bool | None = None
) -> None:
    """Raises CheckpointRefused where the job is not what its checkpoint is of.

    stateful: as of `of`; None: as the checkpoint was.
    """
    kept = has_state(stored) if is_stateful is None else is_stateful
    found = find_differences(stored, build_definition(job, is_stateful=kept))
    if not found:
        return
    first = next(iter(get_inputs(job).values())).start
    if len(found) == 1 and found[0].startswith(f"{_PARTITIONS_KEY}:"):
        fix = f"`gateway pipeline rescale {job.name} --partitions {job.state.partitions}`"
        hint = f"{fix} changes the checkpoint, or take the change back"
    else:
        hint = f"take the change back, or `--fresh` begins a new checkpoint, from {first}"
    what = f"job {job.name} is defined otherwise than its checkpoint {location}"
    raise CheckpointRefused(f"{what} ({'; '.join(found)}); {hint}", differences=found)


def _describe_input(job: Job, input: Input, options: Mapping[str, Any]) -> dict[str, Any]:
    found = _describe_source(input)
    used = _find_used_columns(job, options)
    fields = input.value.fields
    kept = {k: v for k, v in fields.items() if used is None or k in used or k == input.time}
    return found | {"time": input.time, "model": input.value.model} | _flatten({"fields": kept})


def _describe_source(input: Input) -> dict[str, Any]:
    return {"topic": input.topic} | ({} if input.kafka is None else {"kafka": input.kafka})


def _find_used_columns(job: Job, options: Mapping[str, Any]) -> set[str] | None:
    """The words of its settings, columns among them; None where all columns count."""
    if isinstance(job, config.Join) and not job.select:
        return None
    if isinstance(job, config.Query) and "*" in job.sql:
        return None
    return set(_WORD_PATTERN.findall(json.dumps(options)))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value
    return found


def _format_value(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False).strip('"')
