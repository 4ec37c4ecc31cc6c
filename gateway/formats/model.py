"""A model of a topic's keys or values: bytes as Kafka has them to what clients are shown.

Values are JSON text. So are keys, but for a JSON string, which is its text: filters and paths
name keys as people do. What clients write takes the same way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error
from typing import Any

import orjson

from gateway.errors import FormatError
from gateway.formats.avro.types import NON_FINITE_FLOATS, float_to_json

from .codec import Codecs, SerializationFormat
from .plain import describe_json_type

_NUMBER_STRUCTS: Mapping[str, Struct] = {  # as Kafka's own serializers write them
    "int": Struct(">i"), "long": Struct(">q"), "float": Struct(">f"), "double": Struct(">d"),
}  # fmt: skip


class Model:
    """One that decodes. codecs: of its catalog, where it has one."""

    def __init__(self, name: str, codecs: Codecs | None = None, *, is_key: bool = False) -> None:
        self.name = name
        self._codecs = codecs or Codecs()
        self._is_key = is_key
        self._format = SerializationFormat.parse(name) if codecs is not None else None

    def find_missing_id(self, data: bytes) -> int | None:
        """The schema that must be asked for first."""
        if self._format is None or len(data) < 5 or data[0]:
            return None
        return self._codecs.find_missing_id(data)

    async def load_schema_ids(self, ids: set[int]) -> None:
        """Raises RegistryUnavailable."""
        await self._codecs.load_schema_ids(ids)

    def decode(self, data: bytes) -> bytes:
        """Raises FormatError, SchemaUnknown."""
        text = self._decode_text(data)
        if self._is_key and text[:1] == b'"':
            return str(orjson.loads(text)).encode()
        return text

    def _decode_text(self, data: bytes) -> bytes:
        if self._format is not None:
            return self._codecs.decode_text_cached(self._format, data)
        if self.name == "boolean":
            if data not in (b"\0", b"\1"):
                raise FormatError(f"a boolean is one byte, 00 or 01, not {data[:9].hex(' ')}")
            return b"true" if data == b"\1" else b"false"
        form = _NUMBER_STRUCTS[self.name]
        if len(data) != form.size:
            raise FormatError(f"model {self.name} has {form.size} bytes, not {len(data)}")
        (number,) = form.unpack(data)
        return orjson.dumps(float_to_json(number) if type(number) is float else number)

    async def encode(self, topic: str, data: bytes) -> bytes:
        """The bytes of what a client wrote. Raises FormatError, RegistryUnavailable."""
        if self._is_key:
            try:
                return await self._encode_value(topic, data.decode())
            except (FormatError, UnicodeDecodeError):
                pass  # it is no text, but what the text says
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise FormatError(f"it is not JSON: {exc}; {self.name} is written as JSON") from None
        return await self._encode_value(topic, value)

    async def _encode_value(self, topic: str, value: Any) -> bytes:
        if self._format is not None:
            made = await self._codecs.encode(self._format, topic, self._is_key, value)
            if made.data is None:
                raise FormatError("null is no value of a model; leave it out to delete")
            return made.data
        return self._encode_number(value)

    def _encode_number(self, value: Any) -> bytes:
        if self.name == "boolean":
            if type(value) is not bool:
                raise FormatError(
                    f"model boolean takes true or false, not {describe_json_type(value)}"
                )
            return bytes([value])
        if type(value) is str and self.name in ("float", "double"):
            value = NON_FINITE_FLOATS.get(value, value)
        try:
            if type(value) is bool:
                raise TypeError
            return _NUMBER_STRUCTS[self.name].pack(value)
        except (error, TypeError, OverflowError):
            shown = value if type(value) in (int, float) else describe_json_type(value)
            raise FormatError(f"model {self.name} does not take {shown}") from None
