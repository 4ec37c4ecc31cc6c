"""Convert the keys or values of a topic between Kafka's bytes and what clients see.

Clients see JSON text. The exception is a key that is a JSON string: clients see its text without
the quotes, so that filters and paths name keys as people do. What clients write is converted back
in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import Any

import orjson

from gateway.config.types.formats import NUMBER_MODELS
from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Record
from gateway.errors import FormatError
from gateway.formats.avro.types import NON_FINITE_FLOATS, float_to_json

from .codec import Codecs, SerializationFormat, frame_record
from .exact_values import parse_decimals
from .plain import PLAIN_CODECS, describe_json_type
from .registry import SchemaId

_NUMBER_STRUCTS: Mapping[str, Struct] = {  # as Kafka's own serializers write numbers
    "int": Struct(">i"), "long": Struct(">q"), "float": Struct(">f"), "double": Struct(">d"),
}  # fmt: skip


class Model:
    """The model of a topic's keys or values. The hub creates one for each topic that has one."""

    def __init__(self, name: str, codecs: Codecs | None = None, *, is_key: bool = False) -> None:
        """Create a model.

        Args:
            name: With codecs a format that has a schema; without codecs one that has none, or
                `boolean`, `int`, `long`, `float` or `double`.
        """
        self.name = name
        self._codecs = codecs or Codecs()
        self._is_key = is_key
        self._format = SerializationFormat.parse(name) if codecs is not None else None
        self._plain = None
        if codecs is None and name not in NUMBER_MODELS:
            self._plain = PLAIN_CODECS[SerializationFormat.parse(name)]

    def frame_record(self, record: Record) -> Record:
        format = self._format or SerializationFormat.BINARY
        key = format if self._is_key else SerializationFormat.BINARY
        value = SerializationFormat.BINARY if self._is_key else format
        return frame_record(record, key, value)

    def find_missing_id(self, data: bytes) -> SchemaId | None:
        return None if self._format is None else self._codecs.find_missing_id(data)

    async def load_schema_ids(self, ids: Sequence[SchemaId]) -> None:
        await self._codecs.load_schema_ids(ids)

    def decode(self, data: bytes) -> bytes:
        """Convert Kafka's bytes to a client's; raises FormatError or SchemaNotLoaded."""
        text = self._decode_text(data)
        if self._is_key and text[:1] == b'"':
            return str(parse_json(text)).encode()
        return text

    def _decode_text(self, data: bytes) -> bytes:
        if self._format is not None:
            return self._codecs.decode_text_cached(self._format, data)
        if self._plain is not None:
            return orjson.dumps(self._plain.decode_fragment(data))
        if self.name == "boolean":
            if data not in (b"\0", b"\1"):
                raise FormatError(f"a boolean is one byte, 00 or 01, not {data[:9].hex(' ')}")
            return b"true" if data == b"\1" else b"false"
        number_struct = _NUMBER_STRUCTS[self.name]
        if len(data) != number_struct.size:
            raise FormatError(f"model {self.name} has {number_struct.size} bytes, not {len(data)}")
        (number,) = number_struct.unpack(data)
        return orjson.dumps(float_to_json(number) if type(number) is float else number)

    async def encode(self, topic: str, data: bytes) -> bytes:
        """Convert a client's bytes to Kafka's; raises FormatError or RegistryUnavailable."""
        if self._is_key:
            try:
                return await self._encode_value(topic, data.decode())
            except (FormatError, UnicodeDecodeError):
                pass  # no key of this model is that text: take it as JSON below
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise FormatError(f"it is not JSON: {exc}; {self.name} is written as JSON") from None
        if self._format is SerializationFormat.AVRO:
            value = parse_decimals(data, value)
        return await self._encode_value(topic, value)

    async def _encode_value(self, topic: str, value: Any) -> bytes:
        if self._format is not None:
            encoded = await self._codecs.encode(self._format, topic, self._is_key, value)
            if encoded.data is None:
                raise FormatError("null is no value of a model; leave it out to delete")
            return encoded.data
        return self._encode_number(value) if self._plain is None else self._plain.encode(value)

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
            if type(value) is bool:  # `struct` would take it as 0 or 1
                raise TypeError
            return _NUMBER_STRUCTS[self.name].pack(value)
        except (error, TypeError, OverflowError):
            shown = value if type(value) in (int, float) else describe_json_type(value)
            raise FormatError(f"model {self.name} does not take {shown}") from None
