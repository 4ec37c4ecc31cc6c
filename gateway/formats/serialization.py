"""Name the serialization formats, and select the schema to write with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.config.source.expression import find_closest
from gateway.errors import FormatError


class SerializationFormat(Enum):
    """How JSON becomes the bytes of a key or value, and back.

    The numbers are part of the sidecar's HTTP API.
    """

    BINARY = 0
    AVRO = 1
    JSON = 2
    JSONSCHEMA = 3
    PROTOBUF = 4
    STRING = 5

    @property
    def has_schema(self) -> bool:
        """Return whether keys and values of it are framed with the id of a schema."""
        return self in _SCHEMA_FORMATS

    @classmethod
    def parse(cls, value: object) -> SerializationFormat:
        """Return the format of a name (in any case) or number.

        Raises:
            FormatError: There is none; the message suggests one.
        """
        if isinstance(value, cls):
            return value
        text = "" if isinstance(value, bool) else str(value).strip()  # True is not format 1
        if text in _FORMATS_BY_NUMBER:
            return _FORMATS_BY_NUMBER[text]
        if text.upper() in cls.__members__:
            return cls[text.upper()]
        names = [name.lower() for name in cls.__members__]
        near = find_closest(text.lower(), names)
        hint = f"did you mean {near}?" if near else f"use one of {', '.join(names)}"
        raise FormatError(f"unknown format {value!r}; {hint}")


_SCHEMA_FORMATS = frozenset(
    {SerializationFormat.AVRO, SerializationFormat.JSONSCHEMA, SerializationFormat.PROTOBUF}
)
_FORMATS_BY_NUMBER = {str(format.value): format for format in SerializationFormat}


class SchemaReference(NamedTuple):
    """A schema that another one refers to, as the registry describes it.

    Attributes:
        name: The name that the other schema uses for it.
        subject: Its subject in the registry.
        version: Its version of the subject.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaSelector:
    """Which schema to write with; by default the latest of the subject.

    Attributes:
        id: The schema with this id in the registry.
        version: This version of the subject.
        subject: The subject; by default `<topic>-key` or `<topic>-value`.
        text: The schema itself, which is registered under the subject if the registry does not have
            it and may be changed by the gateway.
        references: The schemas that the text refers to.
    """

    id: int | None = None
    version: int | None = None
    subject: str | None = None
    text: str | None = None
    references: tuple[SchemaReference, ...] = ()


LATEST_SCHEMA = SchemaSelector()


class EncodedData(NamedTuple):
    """The bytes of a key or value.

    Attributes:
        data: The bytes; None for a tombstone.
        schema_id: The id of the schema that it was written with; None for none.
    """

    data: bytes | None
    schema_id: int | None = None


def build_subject_name(topic: str, is_key: bool) -> str:
    """Return the registry's subject for a topic's keys or values (TopicNameStrategy)."""
    return f"{topic}-{'key' if is_key else 'value'}"
