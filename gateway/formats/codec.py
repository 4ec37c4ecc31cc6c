"""JSON values as the bytes of keys and values, and back, in six formats.

Those with a schema are framed as Confluent's serializers do: a zero byte, the schema's id
(4 bytes, big-endian), for protobuf the way to the message, the payload. Null is a tombstone in
every format, and no bytes at all are the empty string: nothing was framed.

Asking a registry takes time, so each of `encode` and `decode` has a twin `.._known` that never
waits: it raises `SchemaUnknown` for what has to be asked for first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..config import SchemaRegistry
from ..errors import FormatError
from .named import LATEST, Encoded, Format, Reference, SchemaRef
from .plain import plain_bytes, plain_value


class SchemaUnknown(Exception):
    """The registry must be asked first: await `encode`, `decode` or `learn`."""


class Codecs:
    """catalog: where schemas are; without one, formats that need a schema are refused."""

    def __init__(self, catalog: SchemaRegistry | None = None) -> None:
        self._catalog = catalog

    async def close(self) -> None:
        """Close the connections to the registry."""

    async def encode(
        self, format: Format, topic: str, is_key: bool, value: Any, schema: SchemaRef = LATEST
    ) -> Encoded:
        """The bytes of a JSON value. Raises FormatError, RegistryUnavailable."""
        return self.encode_known(format, topic, is_key, value, schema)

    async def decode(self, format: Format, topic: str, is_key: bool, data: bytes | None) -> Any:
        """The JSON value of bytes. Raises FormatError, RegistryUnavailable."""
        return self.decode_known(format, topic, is_key, data)

    def encode_known(
        self, format: Format, topic: str, is_key: bool, value: Any, schema: SchemaRef = LATEST
    ) -> Encoded:
        """As `encode`. Raises SchemaUnknown where that would have to ask the registry."""
        if value is None:
            return Encoded(None)
        if format.has_schema:
            raise FormatError(f"format {format.name.lower()} needs a registry; add it to catalogs")
        return Encoded(plain_bytes(format, value))

    def decode_known(self, format: Format, topic: str, is_key: bool, data: bytes | None) -> Any:
        """As `decode`. Raises SchemaUnknown where that would have to ask the registry."""
        if not data:
            return None if data is None else ""
        if format.has_schema:
            raise FormatError(f"format {format.name.lower()} needs a registry; add it to catalogs")
        return plain_value(format, data)

    async def learn(
        self, format: Format, topic: str, is_key: bool, datas: Iterable[bytes | None]
    ) -> None:
        """Ask at once for every schema that a batch was written with: `decode_known` then knows
        what there is to know of it. Raises RegistryUnavailable."""


__all__ = ["LATEST", "Codecs", "Encoded", "Format", "Reference", "SchemaRef", "SchemaUnknown"]
