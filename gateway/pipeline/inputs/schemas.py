"""Values with a schema, by the gateway's codecs: Arrow batches go through Python's workers.

A row that the schema of its output refuses becomes a dead letter: it goes to `<output>.dlq` as
JSON, with the reason in a header. A schema that is missing or cannot be used ends the job.

A worker process keeps its codecs, with the schemas and the connection to the registry that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from gateway.config.sections.catalog import SchemaRegistry
from gateway.config.sections.job import Fields, Input, Output
from gateway.errors import FormatError, RegistryUnavailable
from gateway.formats.codec import Codecs, EncodedData, SerializationFormat, compile_schema
from gateway.formats.registry import CachedRegistryClient, Schema
from gateway.pipeline.run.dead_letters import build_dead_letter_headers, get_dead_letter_topic

from . import schema_columns
from .fields import FAULT_COLUMN, TEXT_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_HEADERS_DDL = "array<struct<key: string, value: binary>>"
_runner: asyncio.Runner | None = None
_codecs_by_catalog: dict[str, Codecs] = {}


def has_schema(model: str) -> bool:
    return model in ("avro", "protobuf", "jsonschema")


def decode_values(
    raw: DataFrame, input: Input, catalogs: Mapping[str, SchemaRegistry]
) -> tuple[DataFrame, Mapping[str, str] | None]:
    """With the JSON text of each value, or why it has none; and the columns of the topic's latest
    schema where the input names none. Raises FormatError, RegistryUnavailable."""
    value = input.value
    if not has_schema(value.model):
        return raw, None
    catalog = catalogs[value.catalog or ""]
    found = None if value.fields else fetch_schema_columns(input.topic, value, catalog)
    names = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in raw.schema)
    wanted = f"{names}, {TEXT_COLUMN} string, {FAULT_COLUMN} string"
    return raw.mapInArrow(_create_decoder(value.model, catalog), wanted), found


def encode_values(
    rows: DataFrame, output: Output, catalogs: Mapping[str, SchemaRegistry]
) -> DataFrame:
    """Return rows whose `value`, JSON text, is in the format of the output.

    That is by the latest schema of its topic. They have columns `topic` and `headers`, which rows
    that the schema refuses need.
    """
    if not has_schema(output.model):
        return rows
    types = {each.name: each.dataType.simpleString() for each in rows.schema}
    types |= {"value": "binary", "headers": _HEADERS_DDL, "topic": "string"}
    wanted = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    return rows.mapInArrow(_create_encoder(output, catalogs[output.catalog or ""]), wanted)


def fetch_schema_columns(topic: str, value: Fields, catalog: SchemaRegistry) -> dict[str, str]:
    """The columns of a topic's latest schema. Raises FormatError, RegistryUnavailable."""

    async def fetch() -> dict[str, str]:
        registry = CachedRegistryClient(catalog)
        try:
            schema = await registry.get_by_version(f"{topic}-value", None)
        finally:
            await registry.close()
        _verify_format(topic, value.model, schema)
        return schema_columns.parse_schema_columns(schema.format, schema.text, schema.references)

    return asyncio.run(fetch())


def _create_decoder(model: str, catalog: SchemaRegistry) -> ArrowFunction:
    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        format, codecs = SerializationFormat.parse(model), _get_codecs(catalog)
        for batch in batches:
            values = batch.column("value").to_pylist()
            _run_coroutine(codecs.load_schemas(format, "", False, values))
            pairs = [_decode_text(codecs, format, value) for value in values]
            for name, column in zip(
                (TEXT_COLUMN, FAULT_COLUMN), zip(*pairs, strict=True), strict=False
            ):
                batch = batch.append_column(name, pa.array(column, pa.string()))
            if not pairs:
                for name in (TEXT_COLUMN, FAULT_COLUMN):
                    batch = batch.append_column(name, pa.array([], pa.string()))
            yield batch

    return decode_batches


def _decode_text(
    codecs: Codecs, format: SerializationFormat, value: bytes | None
) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return codecs.decode_text_cached(format, value).decode(), None
    except FormatError as error:
        return None, str(error)


def _create_encoder(output: Output, catalog: SchemaRegistry) -> ArrowFunction:
    def encode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _encode_batch(batch, output, catalog)

    return encode_batches


def _encode_batch(batch: pa.RecordBatch, output: Output, catalog: SchemaRegistry) -> pa.RecordBatch:
    import pyarrow as pa

    codecs, columns = (
        _get_codecs(catalog),
        {each: batch.column(each) for each in batch.schema.names},
    )
    # as bytes: a text of Spark's may be no UTF-8
    values = columns["value"].cast("binary").to_pylist()
    headers = columns["headers"].to_pylist() if "headers" in columns else [None] * len(values)
    topics = columns["topic"].to_pylist() if "topic" in columns else [None] * len(values)
    topics = [each or output.topic for each in topics]
    refused = False
    for at, text in enumerate(values):
        if text is None:
            continue
        try:
            values[at] = _run_coroutine(_encode_value(codecs, output, text)).data
        except RegistryUnavailable:
            raise
        except Exception as error:  # of the codecs' libraries too, such as OverflowError
            if not refused:
                _run_coroutine(_fetch_and_verify_schema(output, catalog))
                refused = True
            topics[at] = get_dead_letter_topic(output.topic)
            headers[at] = [
                *(headers[at] or ()),
                *(
                    {"key": name, "value": value}
                    for name, value in build_dead_letter_headers(output.topic, str(error))
                ),
            ]
    columns["value"] = pa.array(values, pa.binary())
    columns["headers"] = pa.array(headers, _build_headers_type())
    columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


async def _encode_value(codecs: Codecs, output: Output, text: bytes) -> EncodedData:
    value = orjson.loads(text.decode("utf-8", "replace"))
    return await codecs.encode(SerializationFormat.parse(output.model), output.topic, False, value)


async def _fetch_and_verify_schema(output: Output, catalog: SchemaRegistry) -> None:
    """Raises FormatError, RegistryUnavailable: the fault is the schema's, not a row's."""
    registry = CachedRegistryClient(catalog)
    try:
        schema = await registry.get_by_version(f"{output.topic}-value", None)
    finally:
        await registry.close()
    _verify_format(output.topic, output.model, schema)
    compile_schema(schema)


def _verify_format(topic: str, model: str, schema: Schema) -> None:
    if schema.format is not SerializationFormat.parse(model):
        found = schema.format.name.lower()
        raise FormatError(f"the schema of {topic} is of format {found}; set model: {found}")


def _build_headers_type() -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _get_codecs(catalog: SchemaRegistry) -> Codecs:
    name = repr(catalog)
    if name not in _codecs_by_catalog:
        _codecs_by_catalog[name] = Codecs(catalog)
    return _codecs_by_catalog[name]


def _run_coroutine(coroutine: Any) -> Any:
    """In the one loop of this process: connections to the registry live there."""
    global _runner
    if _runner is None:
        _runner = asyncio.Runner()
    return _runner.run(coroutine)
