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
from gateway.config.sections.pipeline import Fields, Input, Output
from gateway.errors import FormatError, RegistryUnavailable
from gateway.formats.codec import Codecs, Encoded, Format, compile_schema
from gateway.formats.registry import Registry, Schema
from gateway.pipeline.run.dead_letters import dead_letters_of, explain_refusal

from . import derived
from .fields import FAULT, TEXT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Arrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_HEADERS = "array<struct<key: string, value: binary>>"
_runner: asyncio.Runner | None = None
_codecs: dict[str, Codecs] = {}


def has_schema(model: str) -> bool:
    return model in ("avro", "protobuf", "jsonschema")


def decoded(
    raw: DataFrame, input: Input, catalogs: Mapping[str, SchemaRegistry]
) -> tuple[DataFrame, Mapping[str, str] | None]:
    """With the JSON text of each value, or why it has none; and the columns of the topic's latest
    schema where the input names none. Raises FormatError, RegistryUnavailable."""
    value = input.value
    if not has_schema(value.model):
        return raw, None
    catalog = catalogs[value.catalog or ""]
    found = None if value.fields else columns_of(input.topic, value, catalog)
    names = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in raw.schema)
    wanted = f"{names}, {TEXT} string, {FAULT} string"
    return raw.mapInArrow(_decode(value.model, catalog), wanted), found


def encoded(rows: DataFrame, output: Output, catalogs: Mapping[str, SchemaRegistry]) -> DataFrame:
    """Return rows whose `value`, JSON text, is in the format of the output.

    That is by the latest schema of its topic. They have columns `topic` and `headers`, which rows
    that the schema refuses need.
    """
    if not has_schema(output.model):
        return rows
    types = {each.name: each.dataType.simpleString() for each in rows.schema}
    types |= {"value": "binary", "headers": _HEADERS, "topic": "string"}
    wanted = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    return rows.mapInArrow(_encode(output, catalogs[output.catalog or ""]), wanted)


def columns_of(topic: str, value: Fields, catalog: SchemaRegistry) -> dict[str, str]:
    """The columns of a topic's latest schema. Raises FormatError, RegistryUnavailable."""

    async def asked() -> dict[str, str]:
        registry = Registry(catalog)
        try:
            schema = await registry.by_version(f"{topic}-value", None)
        finally:
            await registry.close()
        _verify_format(topic, value.model, schema)
        return derived.columns(schema.format, schema.text, schema.used)

    return asyncio.run(asked())


def _decode(model: str, catalog: SchemaRegistry) -> Arrow:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        format, codecs = Format.of(model), _kept(catalog)
        for batch in batches:
            values = batch.column("value").to_pylist()
            _await(codecs.learn(format, "", False, values))
            pairs = [_text(codecs, format, value) for value in values]
            for name, column in zip((TEXT, FAULT), zip(*pairs, strict=True), strict=False):
                batch = batch.append_column(name, pa.array(column, pa.string()))
            if not pairs:
                for name in (TEXT, FAULT):
                    batch = batch.append_column(name, pa.array([], pa.string()))
            yield batch

    return decode


def _text(codecs: Codecs, format: Format, value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return codecs.text_known(format, value).decode(), None
    except FormatError as error:
        return None, str(error)


def _encode(output: Output, catalog: SchemaRegistry) -> Arrow:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _encode_batch(batch, output, catalog)

    return encode


def _encode_batch(batch: pa.RecordBatch, output: Output, catalog: SchemaRegistry) -> pa.RecordBatch:
    import pyarrow as pa

    codecs, columns = _kept(catalog), {each: batch.column(each) for each in batch.schema.names}
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
            values[at] = _await(_encode_value(codecs, output, text)).data
        except RegistryUnavailable:
            raise
        except Exception as error:  # of the codecs' libraries too, such as OverflowError
            if not refused:
                _await(_verify_schema(output, catalog))
                refused = True
            topics[at] = dead_letters_of(output.topic)
            headers[at] = [
                *(headers[at] or ()),
                *(
                    {"key": name, "value": value}
                    for name, value in explain_refusal(output.topic, str(error))
                ),
            ]
    columns["value"] = pa.array(values, pa.binary())
    columns["headers"] = pa.array(headers, _headers_type())
    columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


async def _encode_value(codecs: Codecs, output: Output, text: bytes) -> Encoded:
    value = orjson.loads(text.decode("utf-8", "replace"))
    return await codecs.encode(Format.of(output.model), output.topic, False, value)


async def _verify_schema(output: Output, catalog: SchemaRegistry) -> None:
    """Raises FormatError, RegistryUnavailable: the fault is the schema's, not a row's."""
    registry = Registry(catalog)
    try:
        schema = await registry.by_version(f"{output.topic}-value", None)
    finally:
        await registry.close()
    _verify_format(output.topic, output.model, schema)
    compile_schema(schema)


def _verify_format(topic: str, model: str, schema: Schema) -> None:
    if schema.format is not Format.of(model):
        found = schema.format.name.lower()
        raise FormatError(f"the schema of {topic} is of format {found}; set model: {found}")


def _headers_type() -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _kept(catalog: SchemaRegistry) -> Codecs:
    name = repr(catalog)
    if name not in _codecs:
        _codecs[name] = Codecs(catalog)
    return _codecs[name]


def _await(coroutine: Any) -> Any:
    """In the one loop of this process: connections to the registry live there."""
    global _runner
    if _runner is None:
        _runner = asyncio.Runner()
    return _runner.run(coroutine)
