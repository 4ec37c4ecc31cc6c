"""JSON values as the bytes of keys and values, and back, in six formats.

Those with a schema are framed as Confluent's serializers do: a zero byte, the schema's id
(4 bytes, big-endian), for protobuf the way to the message, the payload. Null is a tombstone in
every format, and no bytes at all are the empty string: nothing was framed.

Asking a registry takes time, so each of `encode` and `decode` has a twin `.._known` that never
waits: it raises `SchemaUnknown` for what has to be asked for first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any, Protocol

from gateway.config import SchemaRegistry
from gateway.errors import FormatError

from .plain import decode_plain, encode_plain
from .registry import CachedRegistryClient, Schema
from .serialization import (
    LATEST_SCHEMA,
    EncodedData,
    SchemaReference,
    SchemaSelector,
    SerializationFormat,
    build_subject_name,
)

_FRAME = Struct(">bI")


class SchemaNotLoaded(Exception):
    """The registry must be asked first: await `encode`, `decode` or `learn`."""


class SchemaCodec(Protocol):
    """A schema that is ready for use; each raises FormatError."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...

    def decode_text(self, data: bytes) -> bytes:
        """JSON text, of which `decode` has the value."""


class Codecs:
    """catalog: where schemas are; without one, formats that need a schema are refused."""

    def __init__(self, catalog: SchemaRegistry | None = None) -> None:
        self._registry = None if catalog is None else CachedRegistryClient(catalog)
        self._compiled: dict[int, SchemaCodec | FormatError] = {}
        self._formats: dict[int, SerializationFormat] = {}

    async def close(self) -> None:
        """Close the connections to the registry; it may be asked again later."""
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
        """The bytes of a JSON value. Raises FormatError, RegistryUnavailable."""
        if value is None or not format.has_schema:
            return self.encode_cached(format, topic, is_key, value, schema)
        found = await self._find_schema(format, topic, is_key, schema)
        return self._encode_with(format, value, found)

    async def decode(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        """The JSON value of bytes. Raises FormatError, RegistryUnavailable."""
        await self.load_schemas(format, topic, is_key, (data,))
        return self.decode_cached(format, topic, is_key, data)

    def encode_cached(
        self,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        value: Any,
        schema: SchemaSelector = LATEST_SCHEMA,
    ) -> EncodedData:
        """As `encode`. Raises SchemaUnknown where that would have to ask the registry."""
        if value is None:
            return EncodedData(None)
        if not format.has_schema:
            return EncodedData(encode_plain(format, value))
        subject = schema.subject or build_subject_name(topic, is_key)
        found = self._require_registry(format).get_cached(_build_key(format, subject, schema))
        if found is None:
            raise SchemaNotLoaded
        return self._encode_with(format, value, found)

    def decode_cached(
        self, format: SerializationFormat, topic: str, is_key: bool, data: bytes | None
    ) -> Any:
        """As `decode`. Raises SchemaUnknown where that would have to ask the registry."""
        if not data:
            return None if data is None else ""
        if not format.has_schema:
            return decode_plain(format, data)
        return self._get_codec(format, data).decode(data[_FRAME.size :])

    def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
        """As JSON text, of bytes with a schema. Raises FormatError, SchemaUnknown."""
        return self._get_codec(format, data).decode_text(data[_FRAME.size :])

    async def load_schemas(
        self,
        format: SerializationFormat,
        topic: str,
        is_key: bool,
        payloads: Iterable[bytes | None],
    ) -> None:
        """Ask at once for every schema that a batch was written with: `decode_known` then knows
        what there is to know of it. Raises RegistryUnavailable."""
        if format.has_schema:
            ids = {_FRAME.unpack_from(data)[1] for data in payloads if data and _is_framed(data)}
            await self.load_schema_ids(id for id in ids if id not in self._compiled)

    async def load_schema_ids(self, ids: Iterable[int]) -> None:
        """Ask for schemas. Raises RegistryUnavailable; not for those that are not there."""
        if self._registry is None:
            return
        asked = (self._registry.get_by_id(id) for id in ids)
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, FormatError):
                raise found

    def find_missing_id(self, data: bytes) -> int | None:
        """Of the schema that must be asked for before bytes can be read."""
        id = int(_FRAME.unpack_from(data)[1])
        if id in self._compiled or self._registry is None:
            return None
        try:
            return id if self._registry.get_cached(id) is None else None
        except FormatError:
            return None

    def _require_registry(self, format: SerializationFormat) -> CachedRegistryClient:
        if self._registry is None:
            what = f"format {format.name.lower()} needs a schema registry"
            raise FormatError(f"{what}; add one to catalogs, or use format json")
        return self._registry

    async def _find_schema(
        self, format: SerializationFormat, topic: str, is_key: bool, ref: SchemaSelector
    ) -> Schema:
        registry = self._require_registry(format)
        subject = ref.subject or build_subject_name(topic, is_key)
        if ref.text is not None:
            return await registry.get_or_register(subject, format, ref.text, ref.references)
        if ref.id is not None:
            return await registry.get_by_id(ref.id)
        return await registry.get_by_version(subject, ref.version)

    def _encode_with(self, format: SerializationFormat, value: Any, schema: Schema) -> EncodedData:
        made = self._compile_once(format, schema)
        return EncodedData(_FRAME.pack(0, schema.id) + made.encode(value), schema.id)

    def _get_codec(self, format: SerializationFormat, data: bytes) -> SchemaCodec:
        if not _is_framed(data):
            name = format.name.lower()
            what = f"the bytes are not {name} as a schema registry's clients write it"
            raise FormatError(f"{what}: they begin with {data[:5].hex(' ')}, not with 00 and an id")
        id = int(_FRAME.unpack_from(data)[1])
        made = self._compiled.get(id)
        if made is None:
            schema = self._require_registry(format).get_cached(id)
            if schema is None:
                raise SchemaNotLoaded
            return self._compile_once(format, schema)
        if isinstance(made, FormatError):
            raise made.with_traceback(None)
        if self._formats[id] is not format:
            raise _build_format_error(id, self._formats[id], format)
        return made

    def _compile_once(self, format: SerializationFormat, schema: Schema) -> SchemaCodec:
        """Made once of each schema."""
        if schema.format is not format:
            raise _build_format_error(schema.id, schema.format, format)
        made = self._compiled.get(schema.id)
        if made is None:
            try:
                made = compile_schema(schema)
            except FormatError as exc:
                made = exc
            self._compiled[schema.id], self._formats[schema.id] = made, schema.format
        if isinstance(made, FormatError):
            raise made.with_traceback(None)
        return made


def _is_framed(data: bytes) -> bool:
    return len(data) >= _FRAME.size and data[0] == 0


def _build_format_error(
    id: int, actual: SerializationFormat, expected: SerializationFormat
) -> FormatError:
    is_, asked = actual.name.lower(), expected.name.lower()
    return FormatError(f"schema {id} is of format {is_}, not {asked}; use format {is_}")


def _build_key(format: SerializationFormat, subject: str, ref: SchemaSelector) -> Any:
    """As the registry keeps it."""
    if ref.text is not None:
        return subject, format, ref.text, ref.references
    return ref.id if ref.id is not None else (subject, ref.version)


def compile_schema(schema: Schema) -> SchemaCodec:
    """Return what reads and writes values of a schema. Raises FormatError."""
    return _FACTORIES[schema.format](schema.text, schema.references)


def _create_avro(text: str, used: Mapping[str, str]) -> SchemaCodec:
    from gateway.formats.avro.codec import AvroCodec  # 40 ms, as below: only who uses it pays

    return AvroCodec(text, used)


def _create_protobuf(text: str, used: Mapping[str, str]) -> SchemaCodec:
    from .protobuf import ProtobufCodec

    return ProtobufCodec(text, used)


def _create_json_schema(text: str, used: Mapping[str, str]) -> SchemaCodec:
    from .json_schema import JsonSchemaCodec

    return JsonSchemaCodec(text, used)


_FACTORIES: Mapping[SerializationFormat, Callable[[str, Mapping[str, str]], SchemaCodec]] = {
    SerializationFormat.AVRO: _create_avro,
    SerializationFormat.PROTOBUF: _create_protobuf,
    SerializationFormat.JSONSCHEMA: _create_json_schema,
}

__all__ = [
    "LATEST_SCHEMA",
    "Codecs",
    "EncodedData",
    "SchemaNotLoaded",
    "SchemaReference",
    "SchemaSelector",
    "SerializationFormat",
]
