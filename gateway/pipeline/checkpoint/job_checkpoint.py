"""Prepare a job's checkpoint for its query: find or create it, and verify its definition.

A checkpoint is in `checkpoints/<job>/v<N>`, of which the highest is in use. The first run,
`--fresh` and `restore` create a version. Older versions stay until an operator removes them. To go
back to an earlier definition, remove the versions since. With `guarantee: exactly-once` the earlier
version is then refused if a later one has written rows (see `exactly_once.writer_plan`); `backup`
and `restore` make it a new version, which writes those rows once more.

State is meaningless to a job with another definition, which is stored as `definition.json`.
Settings that may change (triggers, sizes of batches, the output, the treatment of bad records) are
not part of it, nor are columns that the job does not use. Spark itself checks some of this, late
and with other messages; it does not notice a changed gap or window.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job
from gateway.errors import CheckpointRefused
from gateway.pipeline.job_settings import Program, get_inputs, local_path

from .checkpoint import read_query_id
from .files import Files, open_files, refuse_damaged

_VERSION_PATTERN = re.compile(r"v(\d{1,9})/")


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """The version of a job's checkpoint that a query uses."""

    location: str
    version: int
    query_id: str
    hot_keys: tuple[str, ...]


def list_versions(root: str, job: str, spark: Any = None) -> list[int]:
    """Return the numbers of a job's versions, ascending."""
    names = open_files(f"{root.rstrip('/')}/{job}", spark).list_names()
    return sorted(int(match[1]) for name in names if (match := _VERSION_PATTERN.fullmatch(name)))


def version_path(root: str, job: str, version: int) -> str:
    """Return the location of a version as Spark takes it: an absolute path or a URL."""
    path = local_path(root)
    return f"{root.rstrip('/') if path is None else path}/{job}/v{version}"


def prepare_checkpoint(
    root: str,
    job: Job,
    spark: Any = None,
    *,
    fresh: bool = False,
    find_hot_keys: Callable[[], Sequence[str]] = tuple,
) -> JobCheckpoint:
    """Return the version in use of a job's checkpoint, or create one with its hot keys."""
    existing = list_versions(root, job.name, spark)
    if fresh or not existing:
        number = (existing or [0])[-1] + 1
        return _begin_version(root, job, number, spark, find_hot_keys(), is_first=not fresh)
    location = version_path(root, job.name, existing[-1])
    files = open_files(location, spark)
    names = files.list_sizes()
    if DEFINITION_FILE not in names and _is_begun(names, is_first=len(existing) == 1):
        return _begin_version(root, job, existing[-1], spark, find_hot_keys(), is_first=True)
    for name in (DEFINITION_FILE, "metadata"):
        if name not in names:
            raise CheckpointRefused(
                f"{location} has no {name}, so it is no checkpoint, or a part of one; put the "
                "whole one back, remove the directory, or start again with --fresh"
            )
    query_id = read_query_id(files)
    with refuse_damaged(location, DEFINITION_FILE):
        data = files.read(DEFINITION_FILE)
        stored, hot_keys = parse_definition(data)
        verify_identity(data, job.name, query_id, location)
    try:
        verify_definition(job, stored, location)
    except CheckpointRefused:
        if has_batches(files):
            raise
        # An earlier start has failed before its first batch, such as by a mistake in the job's SQL.
        hot_keys = list(find_hot_keys())
        files.write(DEFINITION_FILE, encode_definition(job, hot_keys, query_id=query_id))
    return JobCheckpoint(location, existing[-1], query_id, tuple(hot_keys))


def update_definition(
    checkpoint: JobCheckpoint, job: Job, shape: QueryShape, spark: Any = None
) -> None:
    """Complete the definition of a query's checkpoint, before which its shape is not known.

    Raises:
        CheckpointRefused: There are batches, and the query reads its tables in another order, or
            keeps state while that of the batches did not.
    """
    files = open_files(checkpoint.location, spark)
    stored, hot_keys = parse_definition(files.read(DEFINITION_FILE))
    shape = shape._replace(is_stateful=shape.is_stateful or has_state(stored))
    if shape == QueryShape(has_state(stored), get_table_order(stored)):
        return
    if has_batches(files):
        verify_definition(job, stored, checkpoint.location, shape)
    files.write(DEFINITION_FILE, encode_definition(job, hot_keys, shape, checkpoint.query_id))


def _begin_version(
    root: str, job: Job, version: int, spark: Any, hot_keys: Sequence[str], *, is_first: bool
) -> JobCheckpoint:
    """Create a version with a query id, which the writer needs before Spark would choose one.

    Args:
        is_first: Whether the job is taken for one that has never run (see `Checkpoint.is_first`).
    """
    location = version_path(root, job.name, version)
    files = open_files(location, spark)
    query_id = str(uuid.uuid4())
    files.write("metadata", json.dumps({"id": query_id, "first": is_first}).encode())
    data = encode_definition(job, hot_keys, query_id=query_id)
    files.write(DEFINITION_FILE, data)  # last: a version is complete once it has this
    return JobCheckpoint(location, version, query_id, tuple(hot_keys))


def has_batches(files: Files) -> bool:
    return any(name.startswith(("offsets/", "sources/")) for name in files.list_sizes())


def _is_begun(names: Collection[str], *, is_first: bool) -> bool:
    """Return whether a version has no more than what `_begin_version` writes first.

    An empty directory beside other versions is not one: the job would begin once more.
    """
    return (is_first or "metadata" in names) and not set(names) - {"metadata"}


DEFINITION_FILE = "definition.json"
FORMAT_VERSION = 2
# Options that may change, such as those of all jobs, and those that the definition describes in
# another way (the inputs).
_EXCLUDED_OPTIONS = {*Job.model_fields, "type", "to", "from_", "left", "right", "tables"}
_PARTITIONS_KEY = "state.partitions"
_ORDER_KEY = "order of tables"
INPUT_PREFIX = "input "
"""Of the names of inputs in `describe_rows`. No option has such a name, whereas a table may be
named `sql`."""
_WORD_PATTERN = re.compile(r"\w+")
# Parts of SQL that use columns without their names: `TABLE t`, NATURAL JOIN, and `FROM t |> ...`.
_ALL_COLUMNS_PATTERN = re.compile(r"\*|\|>|\b(natural|table)\b", re.IGNORECASE)


class QueryShape(NamedTuple):
    """What only Spark's plan says of a query, of SQL or of a program. Other types have none.

    Attributes:
        is_stateful: Whether it keeps state besides offsets.
        table_order: Its tables in the order of `Sources.lines`, since Spark stores offsets without
            the name of their source. Empty before the first start.
    """

    is_stateful: bool = False
    table_order: tuple[str, ...] = ()


_UNKNOWN_SHAPE = QueryShape()


def build_definition(job: Job, shape: QueryShape = _UNKNOWN_SHAPE) -> dict[str, Any]:
    """Return the settings of a job that must not change, by dotted names, as JSON values."""
    settings: dict[str, Any] = {"type": type(job).__name__.lower()}
    if shape.table_order:
        settings[_ORDER_KEY] = list(shape.table_order)
    is_stateful = shape.is_stateful
    if not isinstance(job, (config.Query, Program)):
        is_stateful = not isinstance(job, (config.Enrich, config.Load))
    if not is_stateful:
        for name, input in get_inputs(job).items():
            settings |= {f"{name}.{key}": value for key, value in _describe_source(input).items()}
        return settings
    options = _dump_options(job)
    settings |= _flatten(options)
    for name, input in get_inputs(job).items():
        description = _describe_input(input, _find_used_columns(job, options))
        settings |= {f"{name}.{key}": value for key, value in description.items()}
    return settings | {_PARTITIONS_KEY: job.state.partitions}


def describe_rows(
    job: Job, key_columns: Sequence[str], types: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the settings that the rows of a job and their keys depend on, by name.

    Args:
        types: The types of the columns of each input, which a schema may define.
    """
    options = _dump_options(job)
    options.pop("table", None)  # its columns are refused as keys
    settings = {"to.key": key_columns, **options}
    for name, input in get_inputs(job).items():
        source = _describe_source(input) | {"time": input.time, "model": input.value.model}
        settings[f"{INPUT_PREFIX}{name}"] = source
        # All columns decide which records are valid.
        for column, text in _describe_fields(input, input.value.fields or types[name]).items():
            settings[f"{INPUT_PREFIX}{name}.{column}"] = text
    return settings


def has_state(definition: Mapping[str, Any]) -> bool:
    return _PARTITIONS_KEY in definition


def get_table_order(definition: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(definition.get(_ORDER_KEY, ()))


def find_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    names = [*stored, *(name for name in current if name not in stored)]
    return [
        f"{name}: {_format_value(stored.get(name))} before, {_format_value(current.get(name))} now"
        for name in names
        if stored.get(name) != current.get(name)
    ]


def encode_definition(
    job: Job,
    hot_keys: Sequence[str] = (),
    shape: QueryShape = _UNKNOWN_SHAPE,
    query_id: str = "",
) -> bytes:
    settings = build_definition(job, shape)
    content: dict[str, Any] = {"format": FORMAT_VERSION, "job": job.name, "query": query_id}
    if _PARTITIONS_KEY in settings:
        # On its own, because `rescale` changes it.
        content["partitions"] = settings.pop(_PARTITIONS_KEY)
    content |= {"definition": settings, "hot": list(hot_keys)}
    return _encode(content)


def parse_definition(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the settings and the hot keys that a `definition.json` has."""
    content = json.loads(data)
    if content.get("format") != FORMAT_VERSION:
        problem = f"{DEFINITION_FILE} is of format {content.get('format')!r}, not {FORMAT_VERSION}"
        raise CheckpointRefused(
            f"{problem}; run it with the version that wrote it, or with --fresh"
        )
    settings = dict(content["definition"])
    if "partitions" in content:
        settings[_PARTITIONS_KEY] = content["partitions"]
    return settings, content["hot"]


def update_fields(data: bytes, **fields: Any) -> bytes:
    """Return the content of a `definition.json` with other values, such as of `partitions`."""
    return _encode(json.loads(data) | fields)


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def verify_identity(data: bytes, job: str, query_id: str, location: str) -> None:
    """Raise CheckpointRefused if a checkpoint is of another job, or mixed from two queries.

    `data` is the content of `definition.json`.
    """
    content = json.loads(data)
    if content["job"] != job:
        fault = f"is of job {content['job']}"
    elif content["query"] != query_id:
        fault = (
            f"has {DEFINITION_FILE} of query {content['query']}, "
            f"and the batches of query {query_id}"
        )
    else:
        return
    problem = f"the checkpoint {location} of job {job} {fault}"
    raise CheckpointRefused(f"{problem}; put the job's own checkpoint back, or start with --fresh")


def verify_definition(
    job: Job, stored: Mapping[str, Any], location: str, shape: QueryShape | None = None
) -> None:
    """Raise CheckpointRefused if a job is not defined as its checkpoint is.

    Without a shape, that of the checkpoint is taken.
    """
    shape = shape or QueryShape(has_state(stored), get_table_order(stored))
    current = build_definition(job, shape)
    differences = find_differences(stored, current)
    if not differences:
        return
    start = next(iter(get_inputs(job).values())).start
    # `rescale` only helps if the number of partitions is all that differs.
    if len(differences) == 1 and differences[0].startswith(f"{_PARTITIONS_KEY}:"):
        command = f"`gateway pipeline rescale {job.name} --partitions {job.state.partitions}`"
        hint = f"{command} changes the checkpoint, or take the change back"
    else:
        hint = f"take the change back, or `--fresh` begins a new checkpoint, from {start}"
    problem = f"job {job.name} is defined otherwise than its checkpoint {location}"
    raise CheckpointRefused(
        f"{problem} ({'; '.join(differences)}); {hint}", differences=differences
    )


def _dump_options(job: Job) -> dict[str, Any]:
    """Return the options of a job by which its rows are computed, without those of its inputs."""
    return job.model_dump(mode="json", by_alias=True, exclude=_EXCLUDED_OPTIONS)


def _describe_input(input: Input, used: Collection[str] | None) -> dict[str, Any]:
    source = _describe_source(input)
    fields = _describe_fields(input, input.value.fields)
    kept = {k: v for k, v in fields.items() if _is_used(k, used) or k.lower() == input.time.lower()}
    return source | {"time": input.time, "model": input.value.model} | _flatten({"fields": kept})


def _describe_fields(input: Input, fields: Mapping[str, str]) -> dict[str, str]:
    names = input.value.json_names
    return {
        column: f"{type_text} from {names[column]}" if column in names else type_text
        for column, type_text in fields.items()
    }


def _describe_source(input: Input) -> dict[str, Any]:
    return {"topic": input.topic} | ({} if input.kafka is None else {"kafka": input.kafka})


def _find_used_columns(job: Job, options: Mapping[str, Any]) -> set[str] | None:
    """Return the words in a job's settings, in lower case, since Spark ignores the case of columns.

    They include the columns that the job uses. None means that it uses all.
    """
    if isinstance(job, config.Join) and not job.select:
        return None
    if isinstance(job, config.Query) and _ALL_COLUMNS_PATTERN.search(job.sql):
        return None
    return _find_words(options)


def _is_used(column: str, used: Collection[str] | None) -> bool:
    return used is None or _find_words(column) <= set(used)


def _find_words(value: object) -> set[str]:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return set().union(*map(_find_words, value))
    return set(_WORD_PATTERN.findall(str(value).lower()))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def _format_value(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False).strip('"')
