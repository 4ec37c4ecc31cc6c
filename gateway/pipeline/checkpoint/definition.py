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
from gateway.config.sections.pipeline import Input, Job
from gateway.errors import CheckpointRefused
from gateway.pipeline.jobs import inputs

FILE = "definition.json"
FORMAT = 1
_ASIDE = {
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
_PARTITIONS = "state.partitions"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def of(job: Job, *, stateful: bool = False) -> dict[str, Any]:
    """By dotted names, what must stay; JSON.

    stateful: of a query, whether it keeps more than offsets: Spark knows, by its plan.
    """
    found: dict[str, Any] = {"type": type(job).__name__.lower()}
    if not isinstance(job, config.Query):
        stateful = not isinstance(job, (config.Enrich, config.Load))
    if not stateful:
        for name, input in inputs(job).items():
            found |= {f"{name}.{key}": value for key, value in _source(input).items()}
        return found
    own = job.model_dump(mode="json", by_alias=True, exclude=_ASIDE)
    found |= _flat(own)
    for name, input in inputs(job).items():
        found |= {f"{name}.{key}": value for key, value in _input(job, input, own).items()}
    return found | {_PARTITIONS: job.state.partitions}


def is_of_state(definition: Mapping[str, Any]) -> bool:
    """Return whether a definition is of a job that keeps more than offsets."""
    return _PARTITIONS in definition


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each name that is not what it was."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name}: {_shown(before.get(name))} before, {_shown(now.get(name))} now"
        for name in names
        if before.get(name) != now.get(name)
    ]


def encode(job: Job, hot: Sequence[str] = (), *, stateful: bool = False, query: str = "") -> bytes:
    """Return the file.

    Args:
        job: Whose definition it is.
        hot: The keys that a join spreads, which must stay the same, too.
        stateful: As of `of`.
        query: The id of the checkpoint's query, "" for none.
    """
    found = of(job, stateful=stateful)
    content: dict[str, Any] = {"format": FORMAT, "job": job.name}
    if query:
        content["query"] = query
    if _PARTITIONS in found:
        content["partitions"] = found.pop(_PARTITIONS)  # apart: rescaling changes it
    content |= {"definition": found, "hot": list(hot)}
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def read(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """What it is of, and the hot keys. Raises CheckpointRefused: of another version of this."""
    content = json.loads(data)
    if content.get("format") != FORMAT:
        what = f"{FILE} is of format {content.get('format')!r}, not {FORMAT}"
        raise CheckpointRefused(f"{what}; run it with the version that wrote it, or with --fresh")
    found = dict(content["definition"])
    if "partitions" in content:
        found[_PARTITIONS] = content["partitions"]
    return found, content["hot"]


def rename_query(data: bytes, query: str) -> bytes:
    """Return the file for a checkpoint whose query has another id."""
    content = json.loads(data)
    return json.dumps(content | {"query": query}, indent=2, ensure_ascii=False).encode() + b"\n"


def verify_identity(data: bytes, job: str, query: str, where: str) -> None:
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
    elif content.get("query", query) != query:
        fault = f"has {FILE} of query {content['query']}, and the batches of query {query}"
    else:
        return
    what = f"the checkpoint {where} of job {job} {fault}"
    raise CheckpointRefused(f"{what}; put the job's own checkpoint back, or start with --fresh")


def refuse(
    job: Job, before: Mapping[str, Any], where: str, *, stateful: bool | None = None
) -> None:
    """Raises CheckpointRefused where the job is not what its checkpoint is of.

    stateful: as of `of`; None: as the checkpoint was.
    """
    kept = is_of_state(before) if stateful is None else stateful
    found = differences(before, of(job, stateful=kept))
    if not found:
        return
    first = next(iter(inputs(job).values())).start
    if len(found) == 1 and found[0].startswith(f"{_PARTITIONS}:"):
        fix = f"`gateway pipeline rescale {job.name} --partitions {job.state.partitions}`"
        hint = f"{fix} changes the checkpoint, or take the change back"
    else:
        hint = f"take the change back, or `--fresh` begins a new checkpoint, from {first}"
    what = f"job {job.name} is defined otherwise than its checkpoint {where}"
    raise CheckpointRefused(f"{what} ({'; '.join(found)}); {hint}", differences=found)


def _input(job: Job, input: Input, own: Mapping[str, Any]) -> dict[str, Any]:
    found = _source(input)
    used = _used(job, own)
    fields = input.value.fields
    kept = {k: v for k, v in fields.items() if used is None or k in used or k == input.time}
    return found | {"time": input.time, "model": input.value.model} | _flat({"fields": kept})


def _source(input: Input) -> dict[str, Any]:
    return {"topic": input.topic} | ({} if input.kafka is None else {"kafka": input.kafka})


def _used(job: Job, own: Mapping[str, Any]) -> set[str] | None:
    """The words of its settings, columns among them; None where all columns count."""
    if isinstance(job, config.Join) and not job.select:
        return None
    if isinstance(job, config.Query) and "*" in job.sql:
        return None
    return set(_WORD.findall(json.dumps(own)))


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        elif value is not None:
            found[f"{before}{name}"] = value
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False).strip('"')
