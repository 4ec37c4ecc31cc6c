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

from .named import LATEST, Encoded, Format, Reference, SchemaRef, subject_of
from .plain import plain_bytes, plain_value
from .registry import Registry, Schema

_FRAME = Struct(">bI")


class SchemaUnknown(Exception):
    """The registry must be asked first: await `encode`, `decode` or `learn`."""


class Compiled(Protocol):
    """A schema that is ready for use; each raises FormatError."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...

    def text(self, data: bytes) -> bytes:
        """JSON text, of which `decode` has the value."""


class Codecs:
    """catalog: where schemas are; without one, formats that need a schema are refused."""

    def __init__(self, catalog: SchemaRegistry | None = None) -> None:
        self._registry = None if catalog is None else Registry(catalog)
        self._compiled: dict[int, Compiled | FormatError] = {}
        self._formats: dict[int, Format] = {}

    async def close(self) -> None:
        """Close the connections to the registry; it may be asked again later."""
        if self._registry is not None:
            await self._registry.close()

    async def encode(
        self, format: Format, topic: str, is_key: bool, value: Any, schema: SchemaRef = LATEST
    ) -> Encoded:
        """The bytes of a JSON value. Raises FormatError, RegistryUnavailable."""
        if value is None or not format.has_schema:
            return self.encode_known(format, topic, is_key, value, schema)
        found = await self._found(format, topic, is_key, schema)
        return self._written(format, value, found)

    async def decode(self, format: Format, topic: str, is_key: bool, data: bytes | None) -> Any:
        """The JSON value of bytes. Raises FormatError, RegistryUnavailable."""
        await self.learn(format, topic, is_key, (data,))
        return self.decode_known(format, topic, is_key, data)

    def encode_known(
        self, format: Format, topic: str, is_key: bool, value: Any, schema: SchemaRef = LATEST
    ) -> Encoded:
        """As `encode`. Raises SchemaUnknown where that would have to ask the registry."""
        if value is None:
            return Encoded(None)
        if not format.has_schema:
            return Encoded(plain_bytes(format, value))
        subject = schema.subject or subject_of(topic, is_key)
        found = self._asked(format).known(_key(format, subject, schema))
        if found is None:
            raise SchemaUnknown
        return self._written(format, value, found)

    def decode_known(self, format: Format, topic: str, is_key: bool, data: bytes | None) -> Any:
        """As `decode`. Raises SchemaUnknown where that would have to ask the registry."""
        if not data:
            return None if data is None else ""
        if not format.has_schema:
            return plain_value(format, data)
        return self._read(format, data).decode(data[_FRAME.size :])

    def text_known(self, format: Format, data: bytes) -> bytes:
        """As JSON text, of bytes with a schema. Raises FormatError, SchemaUnknown."""
        return self._read(format, data).text(data[_FRAME.size :])

    async def learn(
        self, format: Format, topic: str, is_key: bool, datas: Iterable[bytes | None]
    ) -> None:
        """Ask at once for every schema that a batch was written with: `decode_known` then knows
        what there is to know of it. Raises RegistryUnavailable."""
        if format.has_schema:
            ids = {_FRAME.unpack_from(data)[1] for data in datas if data and _is_framed(data)}
            await self.learn_ids(id for id in ids if id not in self._compiled)

    async def learn_ids(self, ids: Iterable[int]) -> None:
        """Ask for schemas. Raises RegistryUnavailable; not for those that are not there."""
        if self._registry is None:
            return
        asked = (self._registry.by_id(id) for id in ids)
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, FormatError):
                raise found

    def unknown_id(self, data: bytes) -> int | None:
        """Of the schema that must be asked for before bytes can be read."""
        id = int(_FRAME.unpack_from(data)[1])
        if id in self._compiled or self._registry is None:
            return None
        try:
            return id if self._registry.known(id) is None else None
        except FormatError:
            return None

    def _asked(self, format: Format) -> Registry:
        if self._registry is None:
            what = f"format {format.name.lower()} needs a schema registry"
            raise FormatError(f"{what}; add one to catalogs, or use format json")
        return self._registry

    async def _found(self, format: Format, topic: str, is_key: bool, ref: SchemaRef) -> Schema:
        registry = self._asked(format)
        subject = ref.subject or subject_of(topic, is_key)
        if ref.text is not None:
            return await registry.written(subject, format, ref.text, ref.references)
        if ref.id is not None:
            return await registry.by_id(ref.id)
        return await registry.by_version(subject, ref.version)

    def _written(self, format: Format, value: Any, schema: Schema) -> Encoded:
        made = self._usable(format, schema)
        return Encoded(_FRAME.pack(0, schema.id) + made.encode(value), schema.id)

    def _read(self, format: Format, data: bytes) -> Compiled:
        if not _is_framed(data):
            name = format.name.lower()
            what = f"the bytes are not {name} as a schema registry's clients write it"
            raise FormatError(f"{what}: they begin with {data[:5].hex(' ')}, not with 00 and an id")
        id = int(_FRAME.unpack_from(data)[1])
        made = self._compiled.get(id)
        if made is None:
            schema = self._asked(format).known(id)
            if schema is None:
                raise SchemaUnknown
            return self._usable(format, schema)
        if isinstance(made, FormatError):
            raise made.with_traceback(None)
        if self._formats[id] is not format:
            raise _other(id, self._formats[id], format)
        return made

    def _usable(self, format: Format, schema: Schema) -> Compiled:
        """Made once of each schema."""
        if schema.format is not format:
            raise _other(schema.id, schema.format, format)
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


def _other(id: int, has: Format, wanted: Format) -> FormatError:
    is_, asked = has.name.lower(), wanted.name.lower()
    return FormatError(f"schema {id} is of format {is_}, not {asked}; use format {is_}")


def _key(format: Format, subject: str, ref: SchemaRef) -> Any:
    """As the registry keeps it."""
    if ref.text is not None:
        return subject, format, ref.text, ref.references
    return ref.id if ref.id is not None else (subject, ref.version)


def compile_schema(schema: Schema) -> Compiled:
    """Return what reads and writes values of a schema. Raises FormatError."""
    return _MAKERS[schema.format](schema.text, schema.used)


def _avro(text: str, used: Mapping[str, str]) -> Compiled:
    from gateway.formats.avro.codec import Avro  # 40 ms, as below: only who uses it pays

    return Avro(text, used)


def _protobuf(text: str, used: Mapping[str, str]) -> Compiled:
    from .protobuf import Protobuf

    return Protobuf(text, used)


def _json_schema(text: str, used: Mapping[str, str]) -> Compiled:
    from .json_schema import JsonSchema

    return JsonSchema(text, used)


_MAKERS: Mapping[Format, Callable[[str, Mapping[str, str]], Compiled]] = {
    Format.AVRO: _avro,
    Format.PROTOBUF: _protobuf,
    Format.JSONSCHEMA: _json_schema,
}

__all__ = ["LATEST", "Codecs", "Encoded", "Format", "Reference", "SchemaRef", "SchemaUnknown"]
