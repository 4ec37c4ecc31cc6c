"""How a key or value is written, and with which schema: what a caller names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.config.source.expression import closest
from gateway.errors import FormatError


class Format(Enum):
    """How JSON becomes the bytes of a key or value, and back. The numbers are the contract's."""

    BINARY = 0
    AVRO = 1
    JSON = 2
    JSONSCHEMA = 3
    PROTOBUF = 4
    STRING = 5

    @property
    def has_schema(self) -> bool:
        return self in _WITH_SCHEMA

    @classmethod
    def of(cls, given: object) -> Format:
        """By name (of any case) or number. Raises FormatError."""
        if isinstance(given, cls):
            return given
        text = "" if isinstance(given, bool) else str(given).strip()
        if text in _NUMBERS:
            return _NUMBERS[text]
        if text.upper() in cls.__members__:
            return cls[text.upper()]
        names = [name.lower() for name in cls.__members__]
        near = closest(text.lower(), names)
        hint = f"did you mean {near}?" if near else f"use one of {', '.join(names)}"
        raise FormatError(f"unknown format {given!r}; {hint}")


_WITH_SCHEMA = frozenset({Format.AVRO, Format.JSONSCHEMA, Format.PROTOBUF})
_NUMBERS = {str(each.value): each for each in Format}


class Reference(NamedTuple):
    """A schema that another one uses, as the registry has it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaRef:
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
    references: tuple[Reference, ...] = ()


LATEST = SchemaRef()


class Encoded(NamedTuple):
    """data: None is a tombstone. schema_id: of what has a schema."""

    data: bytes | None
    schema_id: int | None = None


def subject_of(topic: str, is_key: bool) -> str:
    """The registry's name for a topic's keys or values (its TopicNameStrategy)."""
    return f"{topic}-{'key' if is_key else 'value'}"
