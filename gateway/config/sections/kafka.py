"""Define the section `kafka`: the cluster or clusters, and the topics that routes may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from gateway.config.types.address import Servers
from gateway.config.types.fields import (
    TOPIC_NAME_SCHEMA,
    Choice,
    Duration,
    Size,
    Text,
    TopicName,
    in_range,
    matching,
)
from gateway.config.types.formats import list_topic_models, needs_catalog
from gateway.config.types.forms import Shorthand
from gateway.config.types.section import (
    Problem,
    Section,
    WrittenForm,
    create_section_error,
)
from gateway.config.types.template import MESSAGE_ROOTS, Template, require_roots
from gateway.config.types.units import format_duration

from .security import Security, suggest_cluster_option

ModelName = Annotated[str, Choice(list_topic_models)]
RAW_MODELS = frozenset({"string", "json", "bytes"})
"""The models whose bytes are passed on unchanged, because clients can be shown them."""


def _validate_message_template(template: Template) -> Template:
    return require_roots(template, MESSAGE_ROOTS, "${message.value.field}")


MessageTemplate = Annotated[Template, AfterValidator(_validate_message_template)]


class Reconnect(Section):
    """The delays between attempts to connect: random, below a bound that doubles each time."""

    initial: Annotated[Duration, in_range(0.001, 60)] = Field(
        default=0.05, description="The first bound of the delay."
    )
    max: Annotated[Duration, in_range(0.001, 600)] = Field(
        default=1.0,
        description="The largest bound: how late at most a returned broker is noticed.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max < self.initial:
            low, high = format_duration(self.initial), format_duration(self.max)
            what = f"{high} is less than initial, {low}; use {low} or more"
            # The problem is reported at an option that the file has, so that it has a line.
            raise create_section_error(
                Problem(("max",) if "max" in self.model_fields_set else ("initial",), what)
            )
        return self


class Cache(Section):
    """How much of each partition's recent records is kept in memory, by size and by age."""

    bytes: Annotated[Size, in_range(1, 1024**4, str)] = Field(
        default=64 * 1024**2, description="Memory for the recent records of each partition."
    )
    age: Annotated[Duration, in_range(0, 30 * 86_400)] = Field(
        default=600.0, description="How long records are kept."
    )


class Model(Section):
    """How the bytes of a key or value are decoded."""

    model: ModelName = Field(
        default="bytes", description="The encoding; `bytes` shows them as they are."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`, for avro, protobuf and jsonschema."
    )
    on_invalid: Literal["error", "skip", "raw"] = Field(
        default="error",
        description="What clients get for bytes that cannot be decoded: an error event (error), "
        "nothing (skip) or the bytes (raw).",
    )

    @property
    def is_decoded(self) -> bool:
        """Whether clients are shown something other than the bytes."""
        return self.model not in RAW_MODELS

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        model = raw.get("model")
        if needs_catalog(model) and "catalog" not in raw:
            what = f"model {model} needs a schema; add catalog: and a name of catalogs"
            yield Problem(("model",), what)
        if "catalog" in raw and model is None:
            what = "'catalog' needs a model with a schema; add such as model: avro, or remove it"
            yield Problem(("catalog",), what, is_key=True)
        elif "catalog" in raw and isinstance(model, str) and not needs_catalog(model):
            yield Problem(("catalog",), f"model {model} has no schema; remove catalog", is_key=True)
        if raw.get("onInvalid", "error") != "error" and raw.get("model", "bytes") in RAW_MODELS:
            what = f"model {raw.get('model', 'bytes')} is passed on as it is; remove onInvalid"
            yield Problem(("onInvalid",), what, is_key=True)


class Transform(Section):
    """Keys and headers that are taken from the value, so that filters can match them.

    The options are Zilla's. Only what clients see of a record changes, not the record in Kafka.
    """

    extract_key: MessageTemplate | None = Field(
        default=None,
        alias="extract-key",
        description="Template of the key, such as ${message.value.id}.",
    )
    extract_headers: dict[Text, MessageTemplate] = Field(
        default={},
        alias="extract-headers",
        description="Headers by name, each with its template, such as ${message.value.region}.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not raw:
            yield Problem((), "an empty transform; add extract-key or extract-headers")


class Topic(Section):
    """A topic, and how it is read and shown. The name alone is a topic with the defaults."""

    @classmethod
    def expand_written(cls, value: Any) -> WrittenForm | None:
        """Return the options of a topic that is written as its name.

        A number is meant as a name, too, and is refused as one that needs quotes.
        """
        if not isinstance(value, (Mapping, list, tuple, Section)):
            return WrittenForm({"name": value}, {("name",): ()})
        return super().expand_written(value)

    name: TopicName = Field(description="Name of the topic in Kafka.")
    default_offset: Literal["live", "historical"] = Field(
        default="live",
        description="Where a client without a position starts: at the end (live) or the oldest "
        "record (historical).",
    )
    partition_ready_timeout: Annotated[Duration, in_range(0, 300)] = Field(
        default=5.0, description="How long BEGIN waits for the first partition; others join later."
    )
    offset_out_of_range: Literal["earliest", "latest", "fail"] = Field(
        default="earliest",
        description="Where to continue if Kafka no longer has the offset: at the oldest record "
        "(earliest) or the end (latest); fail ends the stream.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(),
        description="Delays between attempts to read; default `kafka.reconnect`.",
    )
    cache: Cache = Field(
        default=Cache(),
        description="Recent records in memory, for late and returning clients.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="read_committed shows a transaction's records once it is committed, "
        "read_uncommitted at once.",
    )
    clock_skew: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=60.0,
        description="How far producers' clocks may be behind; a live start that is found by time "
        "begins earlier by it.",
    )
    key: Model = Field(default=Model(), description="How keys are decoded.")
    value: Model = Field(default=Model(), description="How values are decoded.")
    transforms: tuple[Transform, ...] = Field(
        default=(), description="Keys and headers that are taken from values."
    )
    partitioner: Literal["murmur2"] | None = Field(
        default=None,
        description="The partitioner of all producers, so that only the partitions of a client's "
        "keys are read for it; murmur2 is the default of Kafka's Java client.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of a partitioner if clients do not filter by the key in Kafka.

        A partition follows from the bytes of a key, which cannot be derived from the decoded or
        extracted key that a filter names.
        """
        if raw.get("partitioner") is None:
            return
        key = raw.get("key")
        if isinstance(key, Mapping) and key.get("model", "bytes") not in RAW_MODELS:
            what = "partitions depend on the bytes of keys, and filters on decoded keys; remove one"
            yield Problem(("partitioner",), what)
        transforms = raw.get("transforms")
        if not isinstance(transforms, list | tuple):
            return
        if any(isinstance(item, Mapping) and "extract-key" in item for item in transforms):
            what = "partitions depend on the keys of producers, not on extract-key; remove one"
            yield Problem(("partitioner",), what)


NamedTopic: TypeAlias = Annotated[Topic, Shorthand(Topic.expand_written, TOPIC_NAME_SCHEMA)]


class Kafka(Section):
    """A Kafka cluster, and the topics of it that routes may use."""

    servers: Servers = Field(
        description="host:port of some brokers, as a list or with commas; or `embedded`, a mock "
        "Kafka in the process for demos."
    )
    bootstrap: tuple[TopicName, ...] = Field(
        default=(),
        description="Topics that are read from the start: /health/ready is 503 until all of "
        "their partitions were reached.",
    )
    topics: tuple[NamedTopic, ...] = Field(
        default=(),
        description="The topics that routes may read and write: names, or topics with options.",
    )
    client_id: Text = Field(
        default="",
        description="Client id in the logs and quotas of the brokers; default gateway-<name>.",
    )
    rack: Text | None = Field(
        default=None,
        description="Rack or zone of the gateway, to read from replicas nearby (KIP-392).",
    )
    security: Security = Field(default=Security(), description="TLS and SASL; default plaintext.")
    request_timeout: Annotated[Duration, in_range(0.1, 300)] = Field(
        default=5.0,
        description="How long a broker may take to respond before its connection is closed.",
    )
    metadata_max_age: Annotated[Duration, in_range(0.05, 3600)] = Field(
        default=2.0,
        description="How often leaders are asked for: how late at most a new one is noticed.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(), description="Delays between attempts to connect."
    )

    @model_validator(mode="after")
    def _inherit_reconnect(self) -> Self:
        """Give this `reconnect` to the topics without one."""
        topics = tuple(
            topic
            if "reconnect" in topic.model_fields_set
            else topic.model_copy(update={"reconnect": self.reconnect})
            for topic in self.topics
        )
        # Sections are frozen, so only a validator may assign, and not in the usual way.
        object.__setattr__(self, "topics", topics)
        return self

    @classmethod
    def suggest_option(cls, key: str, value: object) -> str | None:
        return suggest_cluster_option(key, value)

    def find_topic(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)


KAFKA_OPTIONS = frozenset(field.alias or name for name, field in Kafka.model_fields.items())
"""The options of one cluster, as YAML keys. They cannot be names of clusters."""


def is_cluster_mapping(value: object) -> bool:
    """Return whether the section has clusters by name, rather than the options of one cluster."""
    if not isinstance(value, Mapping) or KAFKA_OPTIONS & value.keys():
        return False
    return any(isinstance(item, (Mapping, Kafka)) for item in value.values())


ClusterName: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_-]{1,64}",
        "is no name of a cluster; use letters, digits, '-' and '_', at most 64",
    ),
]


def _validate_clusters(value: object, info: ValidationInfo) -> Kafka | dict[str, Kafka]:
    """Return the settings of one cluster, or of several by name.

    The two are distinguished here, because pydantic reports the errors of every member of a union.
    """
    if is_cluster_mapping(value):
        return _CLUSTERS_ADAPTER.validate_python(value, context=info.context)
    return Kafka.model_validate(value, context=info.context)


def _serialize_clusters(value: Kafka | dict[str, Kafka], info: SerializationInfo) -> Any:
    if isinstance(value, Kafka):
        return value.model_dump(mode=info.mode, by_alias=bool(info.by_alias))
    return {name: _serialize_clusters(kafka, info) for name, kafka in value.items()}


_CLUSTERS_ADAPTER = TypeAdapter(dict[ClusterName, Kafka])

Clusters: TypeAlias = Annotated[
    Kafka | dict[str, Kafka],
    PlainValidator(_validate_clusters, json_schema_input_type=Kafka | dict[str, Kafka]),
    PlainSerializer(_serialize_clusters, return_type=Any),
]
"""One cluster, or several by name."""
