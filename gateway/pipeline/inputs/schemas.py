"""Decode and encode values with a schema by the gateway's codecs, in Spark's Python workers.

A row that the schema of its output refuses becomes a dead letter: it is written to `<output>.dlq`
as JSON, with the reason in a header. A schema that is missing or cannot be used ends the job, by a
FormatError. A worker process keeps its codecs, with their schemas and connections to the registry,
for all its tasks.

Whether a value of an input is invalid is decided twice, by the batch and by the scan for dead
letters, and again if a batch is repeated. So its bytes alone may decide that: a schema that the
registry does not have (yet) is none of its faults, nor is a library that a worker lacks, and
`resolve_fields` names the columns once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

import orjson

from gateway.config.sections.job import Input, Output
from gateway.config.sections.security import SchemaRegistry
from gateway.config.types.formats import needs_catalog
from gateway.errors import FormatError, PipelineUnavailable, RegistryUnavailable, SchemaNotFound
from gateway.extras import EXTRA_MODULES, require_extra
from gateway.formats.codec import (
    Codecs,
    EncodedData,
    SchemaNotLoaded,
    SerializationFormat,
    compile_schema,
)
from gateway.formats.exact_values import ExactJson, has_inexact_number
from gateway.formats.registry import CachedRegistryClient, Schema
from gateway.pipeline.job_settings import build_dead_letter_headers, get_dead_letter_topic

from . import schema_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

TEXT_COLUMN = "_text"
"""The JSON text of values with a schema."""
FAULT_COLUMN = "_fault"
"""Why a value with a schema has no JSON text."""
_HEADERS_DDL = "array<struct<key: string, value: binary>>"


def resolve_fields(input: Input, catalogs: Mapping[str, SchemaRegistry]) -> Input:
    """Return an input with `fields`: by default those of the latest schema of its topic.

    Raises:
        FormatError: The schema is missing or cannot be used.
        RegistryUnavailable: The registry does not answer.
    """
    value = input.value
    if value.fields or not needs_catalog(value.model):
        return input

    # This is in the driver, before the query starts. The loop of `_get_runner` is for workers.
    schema = asyncio.run(_fetch_schema(input.topic, value.model, catalogs[value.catalog or ""]))
    columns = schema_columns.parse_schema_columns(schema.format, schema.text, schema.references)
    return input.model_copy(update={"value": value.model_copy(update={"fields": columns})})


def decode_values(
    raw: DataFrame, input: Input, catalogs: Mapping[str, SchemaRegistry]
) -> DataFrame:
    """Return the rows with the JSON text of values with a schema; those without as they are.

    The columns `_text` and `_fault` are added, one of which is null (both are for a tombstone).
    """
    value = input.value
    if not needs_catalog(value.model):
        return raw
    catalog = catalogs[value.catalog or ""]
    raw_ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in raw.schema)
    ddl = f"{raw_ddl}, {TEXT_COLUMN} string, {FAULT_COLUMN} string"
    return raw.mapInArrow(_create_decoder(value.model, catalog), ddl)


def encode_values(
    rows: DataFrame, output: Output, catalogs: Mapping[str, SchemaRegistry]
) -> DataFrame:
    """Encode values, given as JSON text, by the latest schema of the output's topic.

    Returns:
        The rows with the columns `topic` and `headers`, in which rows that the schema refuses have
        the topic of dead letters and the reason. Without a schema, the rows as they are.
    """
    if not needs_catalog(output.model):
        return rows
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    types |= {"value": "binary", "headers": _HEADERS_DDL, "topic": "string"}
    ddl = ", ".join(f"`{name}` {type_text}" for name, type_text in types.items())
    return rows.mapInArrow(_create_encoder(output, catalogs[output.catalog or ""]), ddl)


def _create_decoder(model: str, catalog: SchemaRegistry) -> ArrowFunction:
    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if model in EXTRA_MODULES:  # which this worker may lack, unlike the driver
            require_extra(model, f"a worker of a job with model {model}")
        format, codecs = SerializationFormat.parse(model), _get_codecs(catalog)
        for batch in batches:
            values = batch.column("value").to_pylist()
            pairs = []  # the text and the fault
            for index, value in enumerate(values):
                try:
                    pairs.append(_decode_text(codecs, format, value))
                except SchemaNotFound as error:
                    topic, partition, offset = (
                        batch.column(name)[index] for name in ("topic", "partition", "offset")
                    )
                    place = f"topic {topic} partition {partition} offset {offset}"
                    raise PipelineUnavailable(
                        f"{place}: {error}; the job waits until the registry has it"
                    ) from None
            for i, name in enumerate((TEXT_COLUMN, FAULT_COLUMN)):
                column = pa.array([pair[i] for pair in pairs], pa.string())
                batch = batch.append_column(name, column)
            yield batch

    return decode_batches


def _decode_text(
    codecs: Codecs, format: SerializationFormat, value: bytes | None
) -> tuple[str | None, str | None]:
    """Return the JSON text of a value and None, or None and the fault of the value.

    Raises:
        SchemaNotFound: The registry does not have the schema.
    """
    if value is None:
        return None, None
    try:
        while True:
            try:
                return codecs.decode_text_cached(format, value).decode(), None
            except SchemaNotLoaded:
                _get_runner().run(codecs.load_schemas(format, "", False, [value]))
    except SchemaNotFound:
        raise
    except FormatError as error:
        return None, str(error)


def _create_encoder(output: Output, catalog: SchemaRegistry) -> ArrowFunction:
    def encode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _encode_batch(batch, output, catalog)

    return encode_batches


def _encode_batch(batch: pa.RecordBatch, output: Output, catalog: SchemaRegistry) -> pa.RecordBatch:
    """Encode the values of a batch; rows that the schema refuses become dead letters."""
    import pyarrow as pa

    codecs = _get_codecs(catalog)
    columns = {name: batch.column(name) for name in batch.schema.names}
    # As bytes, because a text of Spark need not be UTF-8.
    values = columns["value"].cast("binary").to_pylist()
    headers = columns["headers"].to_pylist() if "headers" in columns else [None] * len(values)
    topics = columns["topic"].to_pylist() if "topic" in columns else [None] * len(values)
    topics = [topic or output.topic for topic in topics]
    is_schema_verified = False
    for i, text in enumerate(values):
        if text is None:
            continue
        try:
            values[i] = _get_runner().run(_encode_value(codecs, output, text)).data
        except (RegistryUnavailable, SchemaNotFound):
            raise
        except Exception as error:  # also errors of the codecs' libraries, such as OverflowError
            # If the schema itself is the problem, the job ends. Otherwise every row would become
            # a dead letter.
            if not is_schema_verified:
                compile_schema(
                    _get_runner().run(_fetch_schema(output.topic, output.model, catalog))
                )
                is_schema_verified = True
            topics[i] = get_dead_letter_topic(output.topic)
            headers[i] = [
                *(headers[i] or ()),
                *(
                    {"key": name, "value": value}
                    for name, value in build_dead_letter_headers(output.topic, str(error))
                ),
            ]
    columns["value"] = pa.array(values, pa.binary())
    header_type = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns["headers"] = pa.array(headers, pa.list_(header_type))
    columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


async def _encode_value(codecs: Codecs, output: Output, text: bytes) -> EncodedData:
    format = SerializationFormat.parse(output.model)
    text = text.decode("utf-8", "replace").encode()
    value = orjson.loads(text)
    # A double has 15 to 17 digits, a decimal of Spark up to 38.
    if format is SerializationFormat.JSONSCHEMA:
        value = ExactJson(value, text)
    elif format is SerializationFormat.AVRO and has_inexact_number(text, value):
        value = json.loads(text, parse_float=Decimal)
    return await codecs.encode(format, output.topic, False, value)


async def _fetch_schema(topic: str, model: str, catalog: SchemaRegistry) -> Schema:
    """Return the latest schema of a topic; raise FormatError if there is none of the model."""
    registry = CachedRegistryClient(catalog)
    try:
        schema = await registry.get_by_version(f"{topic}-value", None)
    finally:
        await registry.close()
    if schema.format is not SerializationFormat.parse(model):
        actual = schema.format.name.lower()
        raise FormatError(f"the schema of {topic} is of format {actual}; set model: {actual}")
    return schema


@cache
def _get_codecs(catalog: SchemaRegistry) -> Codecs:
    # Each task unpickles settings of its own. They are compared by value, as their text has
    # asterisks in place of a password.
    return Codecs(catalog)


@cache
def _get_runner() -> asyncio.Runner:
    """Return the event loop of this process, which has the registry's connections."""
    return asyncio.Runner()
