"""Which Kafka, which topics, and how patient to be with each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from gateway.config.source.template import MESSAGE_ROOTS, Template, require_roots
from gateway.config.types.address import Servers
from gateway.config.types.fields import Duration, Size, Text, TopicName, in_range, validate_text
from gateway.config.types.section import Problem, Section, create_section_error, create_value_error
from gateway.config.types.units import format_duration

from .security import Security

ModelName = Literal[
    "string", "json", "bytes", "int", "long", "float", "double", "boolean",
    "avro", "protobuf", "jsonschema",
]  # fmt: skip
CATALOG_MODELS = frozenset({"avro", "protobuf", "jsonschema"})
RAW_MODELS = frozenset({"string", "json", "bytes"})
"""What is passed on as it is."""


def _validate_message_template(template: Template) -> Template:
    return require_roots(template, MESSAGE_ROOTS, "${message.value.field}")


MessageTemplate = Annotated[Template, AfterValidator(_validate_message_template)]


class Reconnect(Section):
    initial: Annotated[Duration, in_range(0.001, 60)] = Field(
        default=0.05,
        description="The first wait after a lost connection. For operators of flaky networks.",
    )
    max: Annotated[Duration, in_range(0.001, 600)] = Field(
        default=1.0,
        description="The longest wait between attempts. For operators of flaky networks.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max < self.initial:
            low, high = format_duration(self.initial), format_duration(self.max)
            what = f"{high} is less than initial, {low}; use {low} or more"
            raise create_section_error(
                Problem(("max",) if "max" in self.model_fields_set else ("initial",), what)
            )
        return self


class Cache(Section):
    bytes: Annotated[Size, in_range(1, 1024**4, str)] = Field(
        default=64 * 1024**2,
        description="Memory for recent records. For late joiners and reconnects.",
    )
    age: Annotated[Duration, in_range(0, 30 * 86_400)] = Field(
        default=600.0, description="How long they are kept. For late joiners and reconnects."
    )


class Model(Section):
    """How bytes become a value."""

    model: ModelName = Field(
        default="bytes", description="The encoding. For the consumers of records."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`. For avro, protobuf and jsonschema."
    )
    on_invalid: Literal["error", "skip", "raw"] = Field(
        default="error",
        description="What is shown for bytes that are none of the model: an error event, nothing, "
        "or the bytes. For topics of many writers.",
    )

    @property
    def is_decoded(self) -> bool:
        """Are bytes something else than what is shown?"""
        return self.model not in RAW_MODELS

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        model = raw.get("model")
        if isinstance(model, str) and model in CATALOG_MODELS and "catalog" not in raw:
            what = f"model {model} needs a schema; add catalog: and a name of catalogs"
            yield Problem(("model",), what)
        if "catalog" in raw and isinstance(model, str) and model not in CATALOG_MODELS:
            yield Problem(("catalog",), f"model {model} has no schema; remove catalog", is_key=True)
        if raw.get("onInvalid", "error") != "error" and raw.get("model", "bytes") in RAW_MODELS:
            what = f"model {raw.get('model', 'bytes')} is passed on as it is; remove onInvalid"
            yield Problem(("onInvalid",), what, is_key=True)


class Transform(Section):
    """Makes filters possible on what is inside the value, in zilla's words."""

    extract_key: MessageTemplate | None = Field(
        default=None,
        alias="extract-key",
        description="A key from the value. For topics without keys.",
    )
    extract_headers: dict[Text, MessageTemplate] = Field(
        default={},
        alias="extract-headers",
        description="Headers from the value. For header filters.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not raw:
            yield Problem((), "an empty transform; add extract-key or extract-headers")


class Topic(Section):
    name: TopicName = Field(description="The topic. For everyone.")
    default_offset: Literal["live", "historical"] = Field(
        default="live", description="Where a client without a position starts. For route owners."
    )
    partition_ready_timeout: Annotated[Duration, in_range(0, 300)] = Field(
        default=5.0,
        description="When BEGIN goes out with none ready. For clients of slow clusters.",
    )
    offset_out_of_range: Literal["earliest", "latest", "fail"] = Field(
        default="earliest",
        description="Where to go on when records are gone. For aggressive retention.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(),
        description="Waits between attempts; default kafka.reconnect. For operators.",
    )
    cache: Cache = Field(default=Cache(), description="Recent records in memory. For late joiners.")
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Whether open transactions are seen. For producers of them.",
    )
    clock_skew: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=60.0, description="How wrong the producers' clocks may be. For starts by time."
    )
    key: Model = Field(default=Model(), description="How keys are read. For clients that filter.")
    value: Model = Field(default=Model(), description="How values are read. For the consumers.")
    transforms: tuple[Transform, ...] = Field(
        default=(), description="Keys and headers taken from values. For filters."
    )
    partitioner: Literal["murmur2"] | None = Field(
        default=None,
        description="How all producers place keys; murmur2 is Kafka's. For clients of few keys.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("partitioner") is None:
            return
        key = raw.get("key")
        if isinstance(key, Mapping) and key.get("model", "bytes") not in RAW_MODELS:
            what = "partitions hold keys as they are written, not as they are shown; remove one"
            yield Problem(("partitioner",), what)
        transforms = raw.get("transforms")
        if not isinstance(transforms, list | tuple):
            return
        if any(isinstance(each, Mapping) and "extract-key" in each for each in transforms):
            what = "partitions hold the keys of producers, not those of extract-key; remove one"
            yield Problem(("partitioner",), what)


class Kafka(Section):
    servers: Servers = Field(
        description="host:port of some brokers, or embedded for a demo. For everyone."
    )
    bootstrap: tuple[TopicName, ...] = Field(
        default=(), description="Topics warmed before readiness says yes. For operators."
    )
    topics: tuple[Topic, ...] = Field(
        default=(), description="The topics that may be read. For everyone."
    )
    client_id: Text = Field(
        default="", description="Name in the brokers' logs; default gateway-<name>. For operators."
    )
    rack: Text | None = Field(
        default=None,
        description="Rack or zone, to read from near replicas (KIP-392). For cloud bills.",
    )
    security: Security = Field(
        default=Security(), description="TLS and SASL. For secured clusters."
    )
    request_timeout: Annotated[Duration, in_range(0.1, 300)] = Field(
        default=5.0,
        description="When a silent broker counts as lost. For operators of slow networks.",
    )
    metadata_max_age: Annotated[Duration, in_range(0.05, 3600)] = Field(
        default=2.0,
        description="How soon a new leader is noticed. For operators of large clusters.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(), description="Default of the topics' reconnect. For operators."
    )

    @model_validator(mode="after")
    def _inherit_reconnect(self) -> Self:
        """Topics without a `reconnect` of their own have this one."""
        topics = tuple(
            topic
            if "reconnect" in topic.model_fields_set
            else topic.model_copy(update={"reconnect": self.reconnect})
            for topic in self.topics
        )
        object.__setattr__(self, "topics", topics)
        return self

    def find_topic(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)


KAFKA_OPTIONS = frozenset(field.alias or name for name, field in Kafka.model_fields.items())


def is_cluster_mapping(value: object) -> bool:
    """Are these clusters by name, and not the options of one?"""
    if not isinstance(value, Mapping) or KAFKA_OPTIONS & value.keys():
        return False
    return any(isinstance(each, (Mapping, Kafka)) for each in value.values())


def _validate_cluster_name(value: object) -> str:
    given = validate_text(value)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", given):
        raise create_value_error(
            f"'{given}' is no name of a cluster; use letters, digits, '-' and '_'"
        )
    return given


def _validate_clusters(value: object, info: ValidationInfo) -> Kafka | dict[str, Kafka]:
    """Told apart here: a union would tell what is wrong as seen by each of its members."""
    if is_cluster_mapping(value):
        return _CLUSTERS_ADAPTER.validate_python(value, context=info.context)
    return Kafka.model_validate(value, context=info.context)


def _serialize_clusters(value: Kafka | dict[str, Kafka], info: SerializationInfo) -> Any:
    if isinstance(value, Kafka):
        return value.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
    return {name: _serialize_clusters(each, info) for name, each in value.items()}


_CLUSTERS_ADAPTER = TypeAdapter(
    dict[Annotated[str, BeforeValidator(_validate_cluster_name)], Kafka]
)

Clusters: TypeAlias = Annotated[
    Kafka | dict[str, Kafka],
    PlainValidator(_validate_clusters, json_schema_input_type=Kafka | dict[str, Kafka]),
    PlainSerializer(_serialize_clusters, return_type=Any),
]
"""One, or several by name."""
