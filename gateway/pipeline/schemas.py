"""Values with a schema, by the gateway's codecs: Arrow batches go through Python's workers.

A worker process keeps its codecs, with the schemas and the connection to the registry that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from gateway.config.catalog import SchemaRegistry
from gateway.config.pipeline import Fields, Input, Output
from gateway.errors import FormatError
from gateway.formats.codec import Codecs, Format
from gateway.formats.registry import Registry

from . import derived
from .fields import FAULT, TEXT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    Arrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

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
    """With `value`, JSON text, in the format of the output, by the latest schema of its topic."""
    if not has_schema(output.model):
        return rows
    types = {each.name: each.dataType.simpleString() for each in rows.schema} | {"value": "binary"}
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
        wanted = Format.of(value.model)
        if schema.format is not wanted:
            is_ = schema.format.name.lower()
            raise FormatError(f"the schema of {topic} is of format {is_}; set model: {is_}")
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
        import pyarrow as pa

        format, codecs = Format.of(output.model), _kept(catalog)
        for batch in batches:
            at = batch.schema.get_field_index("value")
            values = [
                None
                if text is None
                else _await(codecs.encode(format, output.topic, False, orjson.loads(text))).data
                for text in batch.column(at).to_pylist()
            ]
            yield batch.set_column(at, "value", pa.array(values, pa.binary()))

    return encode


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
