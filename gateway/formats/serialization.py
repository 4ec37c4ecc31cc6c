"""How a key or value is written, and with which schema: what a caller names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.config.source.expression import find_closest
from gateway.errors import FormatError


class SerializationFormat(Enum):
    """How JSON becomes the bytes of a key or value, and back. The numbers are the contract's."""

    BINARY = 0
    AVRO = 1
    JSON = 2
    JSONSCHEMA = 3
    PROTOBUF = 4
    STRING = 5

    @property
    def has_schema(self) -> bool:
        return self in _SCHEMA_FORMATS

    @classmethod
    def parse(cls, value: object) -> SerializationFormat:
        """By name (of any case) or number. Raises FormatError."""
        if isinstance(value, cls):
            return value
        text = "" if isinstance(value, bool) else str(value).strip()
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
_FORMATS_BY_NUMBER = {str(each.value): each for each in SerializationFormat}


class SchemaReference(NamedTuple):
    """A schema that another one uses, as the registry has it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaSelector:
    """Which schema to write with; without any of these, the latest of the subject.

    id:         of the registry.
    version:    of the subject.
    subject:    else `<topic>-key` or `<topic>-value`.
    text:       the schema itself, registered under the subject where the registry lacks it.
    references: of the text.
    """

    id: int | None = None
    version: int | None = None
    subject: str | None = None
    text: str | None = None
    references: tuple[SchemaReference, ...] = ()


LATEST_SCHEMA = SchemaSelector()


class EncodedData(NamedTuple):
    """data: None is a tombstone. schema_id: of what has a schema."""

    data: bytes | None
    schema_id: int | None = None


def build_subject_name(topic: str, is_key: bool) -> str:
    """The registry's name for a topic's keys or values (its TopicNameStrategy)."""
    return f"{topic}-{'key' if is_key else 'value'}"
