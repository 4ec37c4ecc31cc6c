"""Name the formats of records, which options choose.

Programs that only read the configuration know a format by its entry here. Its codec is entered in
`gateway.formats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.errors import FormatError

from .substitution import find_closest


@dataclass(frozen=True, slots=True, eq=False)
class SerializationFormat:
    """A format that keys and values have in Kafka. There is one instance for each format.

    Attributes:
        number: Its number, which stands for the name in the sidecar's HTTP API.
        schema_type: The type of its schemas in a registry, if keys and values are framed with the
            id of one; None for a format without schemas.
        is_json: Whether Kafka has JSON text, so that numbers may have any number of digits.
    """

    name: str
    number: int
    schema_type: str | None = None
    is_json: bool = False

    BINARY: ClassVar[SerializationFormat]
    AVRO: ClassVar[SerializationFormat]
    JSON: ClassVar[SerializationFormat]
    JSONSCHEMA: ClassVar[SerializationFormat]
    PROTOBUF: ClassVar[SerializationFormat]
    STRING: ClassVar[SerializationFormat]

    @property
    def has_schema(self) -> bool:
        return self.schema_type is not None

    @classmethod
    def find(cls, value: object) -> SerializationFormat | None:
        """Return the format of a name (in any case) or number; None if there is none."""
        if isinstance(value, cls):
            return value
        text = "" if isinstance(value, bool) else str(value).strip().lower()  # True is not 1
        format = SERIALIZATION_FORMATS.get(text)
        if format is not None:
            return format
        numbered = (each for each in SERIALIZATION_FORMATS.values() if text == str(each.number))
        return next(numbered, None)

    @classmethod
    def parse(cls, value: object) -> SerializationFormat:
        """Return the format of a name (in any case) or number.

        Raises:
            FormatError: There is none; the message suggests one.
        """
        format = cls.find(value)
        if format is None:
            near = find_closest(str(value).strip().lower(), list(SERIALIZATION_FORMATS))
            hint = f"did you mean {near}?" if near else f"use one of {_list_names()}"
            raise FormatError(f"unknown format {value!r}; {hint}")
        return format


SerializationFormat.BINARY = SerializationFormat("binary", 0)
SerializationFormat.AVRO = SerializationFormat("avro", 1, "AVRO")
SerializationFormat.JSON = SerializationFormat("json", 2, is_json=True)
SerializationFormat.JSONSCHEMA = SerializationFormat("jsonschema", 3, "JSON", is_json=True)
SerializationFormat.PROTOBUF = SerializationFormat("protobuf", 4, "PROTOBUF")
SerializationFormat.STRING = SerializationFormat("string", 5)

SERIALIZATION_FORMATS: dict[str, SerializationFormat] = {
    format.name: format
    for format in (
        SerializationFormat.BINARY,
        SerializationFormat.AVRO,
        SerializationFormat.JSON,
        SerializationFormat.JSONSCHEMA,
        SerializationFormat.PROTOBUF,
        SerializationFormat.STRING,
    )
}
"""All serialization formats, by name. `gateway.formats.codec` has their codecs."""

EVENT_FORMATS = ["value", "envelope", "cloudevents"]
"""The names of all event formats, from which routes choose. `gateway.formats` has the formats."""

NUMBER_MODELS = ("int", "long", "float", "double", "boolean")
"""Models of topics only: numbers as Kafka's own serializers write them."""


def list_topic_models() -> list[str]:
    """Return the models of keys and values of topics.

    They are the formats and `NUMBER_MODELS`; the format `binary` is called `bytes` there.
    """
    names = [name for name in SERIALIZATION_FORMATS if name != SerializationFormat.BINARY.name]
    return ["bytes", *NUMBER_MODELS, *names]


def list_job_models(*, with_text: bool) -> list[str]:
    """Return the models of values of Spark jobs; `string` has a single column, and no fields."""
    names = [format.name for format in SERIALIZATION_FORMATS.values() if format.has_schema]
    return ["json", *names, *(["string"] if with_text else [])]


def needs_catalog(model: object) -> bool:
    format = SERIALIZATION_FORMATS.get(model) if isinstance(model, str) else None
    return format is not None and format.has_schema


def _list_names() -> str:
    return ", ".join(SERIALIZATION_FORMATS)
