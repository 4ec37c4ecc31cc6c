"""Select the schema to write a key or value with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.types.formats import SerializationFormat


class SchemaReference(NamedTuple):
    """A schema that another one refers to, as the registry describes it.

    Attributes:
        name: The name that the other schema uses for it.
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


__all__ = [
    "LATEST_SCHEMA",
    "EncodedData",
    "SchemaReference",
    "SchemaSelector",
    "SerializationFormat",
    "build_subject_name",
]
