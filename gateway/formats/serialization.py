"""Select the schema to write a key or value with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.types.formats import SerializationFormat


class SchemaReference(NamedTuple):
    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaSelector:
    """The schema to write with; by default the latest of the topic's subject.

    A `text` is registered if the registry does not have it and may be changed by the gateway.
    """

    id: int | None = None
    version: int | None = None
    subject: str | None = None
    text: str | None = None
    references: tuple[SchemaReference, ...] = ()


LATEST_SCHEMA = SchemaSelector()


class EncodedData(NamedTuple):
    data: bytes | None
    schema_id: int | None = None


def build_subject_name(topic: str, is_key: bool) -> str:
    """Return the registry's subject for a topic's keys or values (TopicNameStrategy)."""
    return f"{topic}-{'key' if is_key else 'value'}"


__all__ = [
    "LATEST_SCHEMA",
    "EncodedData",
    "SchemaReference",
    "SchemaSelector",
    "SerializationFormat",
    "build_subject_name",
]
