"""Encode JSON values as the bytes of keys and values, and decode them, in six formats.

Formats with a schema are framed like Confluent's serializers do: a zero byte, the schema's id (4
bytes, big-endian), for protobuf the indexes of the message, and the payload. Confluent's clients
from version 8 may put the frame into a header instead (`frame_record`), with the schema's GUID: a
byte one and 16 bytes. Null is a tombstone in every format. Zero bytes decode to the empty string,
since a framed value has at least five.

`encode` and `decode` may wait for the registry, and raise FormatError or RegistryUnavailable. Their
counterparts `*_cached` never wait, and raise `SchemaNotLoaded` instead of asking it. A schema that
is large or has patterns is compiled in a thread, once for all who wait for it, and counts as not
loaded until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from gateway.config import SchemaRegistry
from gateway.core.caches import SizedCache
from gateway.core.log.record import Record
from gateway.errors import ExtraMissing, FormatError
from gateway.extras import require_extra
from gateway.telemetry.logs import create_detached_task
from gateway.telemetry.process import run_in_thread

from .budget import COMPILED_FACTOR
from .plain import PLAIN_CODECS
from .registry import CachedRegistryClient, Schema, SchemaId
from .serialization import (
    LATEST_SCHEMA,
    EncodedData,
    SchemaReference,
    SchemaSelector,
    SerializationFormat,
    build_subject_name,
)

_FRAME = Struct(">bI")  # zero, schema id
_GUID_FRAME_SIZE = 17
# Of the texts of compiled schemas, which take up to COMPILED_FACTOR times that when compiled.
MAX_COMPILED_BYTES = 4 << 20
# A schema of this size without patterns compiles in 30 ms at most, others in a thread.
LARGE_SCHEMA_BYTES = 32 << 10
# How many schemas are looked up, and compiled in threads, at a time: those of keys and of values
# are cached together.
MAX_PARALLEL_LOADS = 4
_KEY_HEADER, _VALUE_HEADER = "__key_schema_id", "__value_schema_id"


class SchemaNotLoaded(Exception):
    """A schema must be fetched or compiled first: await `encode`, `decode` or `load_schemas`."""


class SchemaCodec(Protocol):
    """Encode and decode the payloads of one schema. Each method may raise FormatError."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...

    def decode_text(self, data: bytes) -> bytes:
        """Decode the payload into JSON text instead of a value."""


class _CompiledSchema(NamedTuple):
    format: SerializationFormat
    codec: SchemaCodec | FormatError

    def get_codec(self, id: SchemaId, format: SerializationFormat) -> SchemaCodec:
        if format is not self.format:
            name = self.format.name
            problem = f"schema {id} is of format {name}, not {format.name}"
            raise FormatError(f"{problem}; use format {name}")
        if isinstance(self.codec, FormatError):
            raise copy(self.codec)  # as `CachedRegistryClient.get_cached`
        return self.codec


class Codecs:
    """Encode and decode keys and values, with the schemas of one registry.

    The hub and the pipeline create one for each catalog that they use, the sidecar a single one.
    Compiled schemas, and the errors of unusable ones, are kept under their ids while there is room.
    Without a catalog, formats that need a schema are refused.
    """

    def __init__(self, catalog: SchemaRegistry | None = None) -> None:
        self._registry = None if catalog is None else CachedRegistryClient(catalog)
        self._compiled: SizedCache[SchemaId, _CompiledSchema] = SizedCache(MAX_COMPILED_BYTES)
        self._compilations: dict[SchemaId, asyncio.Task[_CompiledSchema]] = {}
        self._threads = asyncio.Semaphore(MAX_PARALLEL_LOADS)

    async def close(self) -> None:
        for task in list(self._compilations.values()):
            task.cancel()
        if self._registry is not None:
            await self._registry.close()

    async def encode(
        self,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        value: Any,
        schema: SchemaSelector = LATEST_SCHEMA,
    ) -> EncodedData:
        """Encode a JSON value; None is a tombstone. The subject is that of the topic by default."""
        if value is None or not format.has_schema:
            return self.encode_cached(format, topic, is_key, value, schema)
        return (await self.load_encoder(format, topic, is_key, schema))(value)

    async def load_encoder(
        self, format: SerializationFormat, topic: str, is_key: bool, schema: SchemaSelector
    ) -> Callable[[Any], EncodedData]:
        """Look up a schema, and return the function that encodes values with it."""
        resolved = await self._find_schema(format, topic, is_key, schema)
        return partial(_encode_with, await self._compile(resolved), format, schema=resolved)

    async def decode(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        while True:
            await self.load_schemas(format, topic, is_key, (data,))
            try:
                return self.decode_cached(format, topic, is_key, data)
            except SchemaNotLoaded:  # those of others have taken its place in the cache
                continue

    def encode_cached(
        self,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        value: Any,
        schema: SchemaSelector = LATEST_SCHEMA,
    ) -> EncodedData:
        if value is None:
            return EncodedData(None)
        if not format.has_schema:
            return EncodedData(PLAIN_CODECS[format].encode(value))
        subject = schema.subject or build_subject_name(topic, is_key)
        cached = self._require_registry(format).get_cached(_build_key(format, subject, schema))
        if cached is None:
            raise SchemaNotLoaded
        return _encode_with(self._compile_small(cached), format, value, cached)

    def decode_cached(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        if not data:
            return None if data is None else ""
        if not format.has_schema:
            return PLAIN_CODECS[format].decode(data)
        codec, size = self._get_codec(format, data)
        return codec.decode(data[size:])

    def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
        """Decode bytes with a schema into JSON text."""
        codec, size = self._get_codec(format, data)
        return codec.decode_text(data[size:])

    async def load_schemas(
        self,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        payloads: Iterable[bytes | None],
    ) -> None:
        """Look up all schemas of some keys or values; raises RegistryUnavailable.

        After that `decode_cached` does not raise SchemaNotLoaded for them, unless they are more
        than the caches hold.
        """
        if format.has_schema:
            ids = {frame[0] for data in payloads if data and (frame := _read_frame(data))}
            missing = [id for id in ids if id not in self._compiled]
            for start in range(0, len(missing), MAX_PARALLEL_LOADS):
                await self.load_schema_ids(missing[start : start + MAX_PARALLEL_LOADS])

    async def load_schema_ids(self, ids: Sequence[SchemaId]) -> None:
        """Look up schemas in parallel, at most MAX_PARALLEL_LOADS; raises RegistryUnavailable.

        A schema that does not exist raises nothing here: decoding raises it, for one record.
        """
        if self._registry is None:
            return
        lookups = (self._registry.get_by_id(id) for id in ids)
        schemas = await asyncio.gather(*lookups, return_exceptions=True)
        for result in schemas:
            if isinstance(result, BaseException) and not isinstance(result, FormatError):
                raise result
        # The first is the one that is needed next. So it is the last to take a place in the cache.
        for schema in reversed(schemas):
            if isinstance(schema, Schema) and _is_slow(schema):
                await self._compile(schema)

    def find_missing_id(self, data: bytes) -> SchemaId | None:
        """Return the id of the schema to load before framed bytes are decoded, if any."""
        frame = _read_frame(data)
        if frame is None or frame[0] in self._compiled or self._registry is None:
            return None
        id, _ = frame
        try:
            schema = self._registry.get_cached(id)
        except FormatError:  # it is known that there is no such schema
            return None
        return id if schema is None or _is_slow(schema) else None

    def _require_registry(self, format: SerializationFormat) -> CachedRegistryClient:
        if self._registry is None:
            problem = f"format {format.name} needs a schema registry"
            raise FormatError(f"{problem}; add one to catalogs, or use format json")
        return self._registry

    async def _find_schema(
        self, format: SerializationFormat, topic: str, is_key: bool, selector: SchemaSelector
    ) -> Schema:
        """Ask the registry for the schema to write with. `_build_key` has the same precedence."""
        registry = self._require_registry(format)
        subject = selector.subject or build_subject_name(topic, is_key)
        if selector.text is not None:
            return await registry.get_or_register(
                subject, format, selector.text, selector.references
            )
        if selector.id is not None:
            return await registry.get_by_id(selector.id)
        return await registry.get_by_version(subject, selector.version)

    def _get_codec(self, format: SerializationFormat, data: bytes) -> tuple[SchemaCodec, int]:
        if (frame := _read_frame(data)) is None:
            name = format.name.lower()
            problem = f"the bytes are not {name} as a schema registry's clients write it"
            raise FormatError(
                f"{problem}: they begin with {data[:5].hex(' ')}, not with 00 and an id, and no "
                "header has the id"
            )
        id, size = frame
        compiled = self._compiled.get(id)
        if compiled is None:
            schema = self._require_registry(format).get_cached(id)
            if schema is None:
                raise SchemaNotLoaded
            compiled = self._compile_small(schema)
        return compiled.get_codec(id, format), size

    def _compile_small(self, schema: Schema) -> _CompiledSchema:
        compiled = self._compiled.get(schema.id)
        if compiled is None:
            if _is_slow(schema):
                raise SchemaNotLoaded
            compiled = self._store(schema, _compile(schema))
        return compiled

    async def _compile(self, schema: Schema) -> _CompiledSchema:
        if (compiled := self._compiled.get(schema.id)) is not None:
            return compiled
        if not _is_slow(schema):
            return self._compile_small(schema)
        task = self._compilations.get(schema.id)
        if task is None:
            task = self._compilations[schema.id] = create_detached_task(self._run_compiler(schema))
            task.add_done_callback(lambda _: self._compilations.pop(schema.id))
        # Shielded, as others may wait for the same task when this caller is cancelled.
        return await asyncio.shield(task)

    async def _run_compiler(self, schema: Schema) -> _CompiledSchema:
        async with self._threads:
            compiled = await run_in_thread(partial(_compile, schema), "schema-compiler")
        return self._store(schema, compiled)

    def _store(self, schema: Schema, compiled: _CompiledSchema) -> _CompiledSchema:
        pattern_bytes = getattr(compiled.codec, "pattern_bytes", 0)  # of JSON Schemas
        size = max(schema.size, pattern_bytes // COMPILED_FACTOR)
        self._compiled.store(schema.id, compiled, size)
        return compiled


def _encode_with(
    compiled: _CompiledSchema, format: SerializationFormat, value: Any, schema: Schema
) -> EncodedData:
    assert isinstance(schema.id, int)
    codec = compiled.get_codec(schema.id, format)
    return EncodedData(_FRAME.pack(0, schema.id) + codec.encode(value), schema.id)


def frame_record(
    record: Record, key_format: SerializationFormat, value_format: SerializationFormat
) -> Record:
    """Prepend the frames in the headers of a record to its key and value."""
    if not record.headers or not (key_format.has_schema or value_format.has_schema):
        return record
    frames = dict(record.headers)  # of several with one name the last counts, as in Kafka's clients
    if key_format.has_schema and record.key and (frame := frames.get(_KEY_HEADER)):
        record = record._replace(key=frame + record.key)
    if value_format.has_schema and record.value and (frame := frames.get(_VALUE_HEADER)):
        record = record._replace(value=frame + record.value)
    return record


def _read_frame(data: bytes) -> tuple[SchemaId, int] | None:
    if data[:1] == b"\0" and len(data) >= _FRAME.size:
        return int(_FRAME.unpack_from(data)[1]), _FRAME.size
    if data[:1] == b"\1" and len(data) >= _GUID_FRAME_SIZE:
        return str(UUID(bytes=data[1:_GUID_FRAME_SIZE])), _GUID_FRAME_SIZE
    return None


def _build_key(format: SerializationFormat, subject: str, selector: SchemaSelector) -> Any:
    if selector.text is not None:
        return subject, format, selector.text, selector.references
    return selector.id if selector.id is not None else (subject, selector.version)


def _is_slow(schema: Schema) -> bool:
    """Return whether compiling a schema may stall the event loop.

    A pattern of a few bytes may take 0.5 s. The name of its keyword may be written with escapes.
    """
    if schema.size > LARGE_SCHEMA_BYTES:
        return True
    texts = (schema.text, *schema.references.values())
    is_json = schema.format is SerializationFormat.JSONSCHEMA
    return is_json and any("pattern" in text or "\\u" in text for text in texts)


def compile_schema(schema: Schema) -> SchemaCodec:
    """Compile a schema; raises FormatError if it cannot be used."""
    return SCHEMA_CODECS[schema.format](schema.text, schema.references)


def _compile(schema: Schema) -> _CompiledSchema:
    try:
        return _CompiledSchema(schema.format, compile_schema(schema))
    except FormatError as exc:
        return _CompiledSchema(schema.format, copy(exc))


def _require_codec(extra: str) -> None:
    try:
        require_extra(extra, f"this schema ({extra})")
    except ExtraMissing as exc:
        raise FormatError(str(exc)) from None


def _create_avro(text: str, references: Mapping[str, str]) -> SchemaCodec:
    _require_codec("avro")
    from gateway.formats.avro.codec import AvroCodec  # takes 40 ms, as below: loaded if used

    return AvroCodec(text, references)


def _create_protobuf(text: str, references: Mapping[str, str]) -> SchemaCodec:
    _require_codec("protobuf")
    from .protobuf import ProtobufCodec

    return ProtobufCodec(text, references)


def _create_json_schema(text: str, references: Mapping[str, str]) -> SchemaCodec:
    from .json_schema import JsonSchemaCodec

    return JsonSchemaCodec(text, references)


SCHEMA_CODECS: dict[SerializationFormat, Callable[[str, Mapping[str, str]], SchemaCodec]] = {
    SerializationFormat.AVRO: _create_avro,
    SerializationFormat.PROTOBUF: _create_protobuf,
    SerializationFormat.JSONSCHEMA: _create_json_schema,
}
"""What compiles schemas, by their format, from a text and the texts that it refers to."""

__all__ = [
    "LATEST_SCHEMA",
    "SCHEMA_CODECS",
    "Codecs",
    "EncodedData",
    "SchemaNotLoaded",
    "SchemaReference",
    "SchemaSelector",
    "SerializationFormat",
    "frame_record",
]
