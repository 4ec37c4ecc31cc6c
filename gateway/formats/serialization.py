"""Name the schema to write a key or value with, and the place where a value does not fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.types.formats import SerializationFormat

__all__ = [
    "LATEST_SCHEMA",
    "EncodedData",
    "SchemaMismatch",
    "SchemaReference",
    "SchemaSelector",
    "SerializationFormat",
    "build_pointer",
    "build_subject_name",
]


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


class SchemaMismatch(Exception):
    """A part of a value does not fit its schema; the message continues "the value ...".

    It is raised where that part is checked. Each enclosing part adds its step, so that in the end
    `pointer` leads from the whole value to the part. A known `path` begins with the innermost step.
    A message that takes long to build is a function, since most mismatches in unions are not shown.
    """

    def __init__(self, message: str | Callable[[], str], path: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self._path = list(path)  # innermost step first

    def __str__(self) -> str:
        return self.message if isinstance(self.message, str) else self.message()

    def add_step(self, step: str | int) -> SchemaMismatch:
        """Add the name or index of the part in the enclosing object or array, and return self."""
        self._path.append(str(step))
        return self

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self._path)

    @property
    def pointer(self) -> str:
        return build_pointer(reversed(self._path))


def build_pointer(path: Iterable[object]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
