"""The sidecar: Kafka over HTTP for any back end. Each part is served where its section is there,
even an empty one (`producer: {}`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.source.substitution import safe_repr
from gateway.config.types.address import Url
from gateway.config.types.fields import Duration, Flag, Number, Size, Text, TopicName, in_range
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.units import format_share, format_size

from .ksqldb import Ksqldb
from .telemetry import Share

FORMAT_NAMES = ("binary", "avro", "json", "jsonschema", "protobuf", "string")
"""As numbers their places in here."""

GroupProtocol: TypeAlias = Literal["auto", "consumer", "classic"]
OffsetReset: TypeAlias = Literal["latest", "earliest", "none"]


def _validate_format(value: object) -> str:
    """A name, or its number."""
    if isinstance(value, str) and value in FORMAT_NAMES:
        return str(value)
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(FORMAT_NAMES):
        return FORMAT_NAMES[number]
    raise create_value_error(
        f"{safe_repr(value)} is no format; use one of {', '.join(FORMAT_NAMES)}, or 0 to 5"
    )


FormatName: TypeAlias = Annotated[
    str,
    PlainValidator(_validate_format),
    WithJsonSchema({"enum": [*FORMAT_NAMES, *range(len(FORMAT_NAMES))]}),
]
ByteLimit: TypeAlias = Annotated[Size, in_range(1, 1 << 30, format_size)]
WaitDuration: TypeAlias = Annotated[Duration, in_range(0.001, 86_400)]
Count: TypeAlias = Annotated[Number, in_range(1, 10**7, str)]


class Formats(Section):
    """Of one topic."""

    key_format: FormatName | None = Field(
        default=None, description="How its keys are written as JSON. For back ends."
    )
    value_format: FormatName | None = Field(
        default=None, description="How its values are written as JSON. For back ends."
    )


class Backend(Section):
    """Whom records are handed to."""

    host: Url = Field(
        default="http://localhost:8080", description="Its base URL. For back ends in the same pod."
    )
    path: Text = Field(
        default="/kafka/records", description="Where batches are POSTed to. For back ends."
    )
    timeout: WaitDuration = Field(
        default=30.0, description="How long one answer may take. For slow back ends."
    )
    health_path: Text | None = Field(
        default="/health",
        description="Where it says whether it is well: no record is given up for its errors while "
        "it is not. null: it cannot be asked. For data that must last.",
    )


class Idempotency(Section):
    topic: TopicName = Field(
        default="sidecar-idempotency",
        description="Where it is kept which requests were done; made if it is missing. For all "
        "replicas of a sidecar.",
    )
    partitions: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=4,
        description="Of that topic, when it is made, and at most so many are used; half of them "
        "for claims. The same for all replicas. For busy producers.",
    )
    replication: Annotated[Number, in_range(1, 100, str)] | None = Field(
        default=None,
        description="Of that topic, when it is made; default that of the cluster. For operators.",
    )
    window: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=86_400.0,
        description="How long a key is remembered. For back ends that try again late.",
    )
    keys: Count = Field(
        default=1_000_000,
        description="How many are remembered, the latest; about 250 bytes of memory each. For "
        "whoever sizes hosts.",
    )


class Producer(Section):
    key_format: FormatName = Field(
        default="string", description="Of keys, where a request names none. For back ends."
    )
    value_format: FormatName = Field(
        default="binary", description="Of values, where a request names none. For back ends."
    )
    max_bytes: ByteLimit = Field(
        default=1_000_000, description="Of a request's body. For batches of large records."
    )
    timeout: WaitDuration = Field(
        default=10.0,
        description="When a request is answered, if Kafka says nothing. For back ends that wait.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none", description="Of the batches in Kafka. For networks and disks."
    )
    idempotency: Idempotency = Field(
        default=Idempotency(), description="What Idempotency-Key does. For back ends that repeat."
    )
    transaction_timeout: Annotated[Duration, in_range(1, 900)] = Field(
        default=30.0,
        description="When Kafka gives up a transaction whose writer is gone. For readers, who wait "
        "for it.",
    )
    streamed: Count = Field(
        default=1000, description="Records under way of one NDJSON request. For bulk loads."
    )


class Membership(Section):
    """How a group is joined."""

    group_protocol: GroupProtocol = Field(
        default="auto",
        description="consumer (KIP-848, brokers from 4.0 on), classic, or what the broker speaks. "
        "For groups with other clients.",
    )
    session_timeout: WaitDuration = Field(
        default=45.0, description="When a silent member is lost. For operators."
    )
    heartbeat_interval: WaitDuration = Field(
        default=3.0, description="How often a member says that it is there. For operators."
    )
    max_poll_interval: WaitDuration = Field(
        default=300.0,
        description="How long a lane may stand still before readiness fails. For slow back ends.",
    )
    leave_group_on_close: Flag = Field(
        default=True, description="Whether partitions are given back at once. For operators."
    )
    auto_offset_reset: OffsetReset = Field(
        default="latest",
        description="Where a group that has committed nothing begins. For new groups.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Whether open transactions are seen. For producers of them.",
    )
    fetch_max_bytes: ByteLimit = Field(
        default=102_400, description="Of one fetch from Kafka. For whoever sizes hosts."
    )
    max_partition_fetch_bytes: ByteLimit = Field(
        default=102_400, description="Of one partition in it. For whoever sizes hosts."
    )
    max_poll_records: Count = Field(
        default=100, description="Records of one batch. For the pace of back ends."
    )
    request_max_bytes: ByteLimit = Field(
        default=204_800, description="Keys and values of one answer or batch. For back ends."
    )


class Consumer(Membership):
    key_format: FormatName = Field(
        default="string", description="Of keys, where an instance names none. For back ends."
    )
    value_format: FormatName = Field(
        default="binary", description="Of values, where an instance names none. For back ends."
    )
    instance_timeout: WaitDuration = Field(
        default=300.0, description="When an instance that nobody asks is closed. For operators."
    )
    instances: Count = Field(
        default=10_000, description="How many there may be. For whoever sizes hosts."
    )
    request_timeout: WaitDuration = Field(
        default=1.0, description="How long records are waited for by default. For long polls."
    )
    base_uri: Url | None = Field(
        default=None,
        description="How this replica is reached, which a new instance is told; default as it was "
        "asked. For load balancers.",
    )
    max_poll_records: Count = Field(
        default=500, description="Records of one answer. For whoever sizes hosts."
    )


class Group(Membership):
    """A group whose records are POSTed to the back end."""

    group: Text = Field(description="The group's id. For operators.")
    topics: tuple[TopicName, ...] = Field(
        default=(), description="The topics it reads. For back ends."
    )
    pattern: Text | None = Field(
        default=None, description="A regular expression of topics. For topics that come and go."
    )
    instance_id: Text | None = Field(
        default=None, description="group.instance.id, of a static member. For rolling restarts."
    )
    # A member hears of a rebalance with its next heartbeat: partitions of one that was restarted
    # are silent for 2.0 s with 3 s, and for 0.2 s with this (bench/rebalance.py).
    heartbeat_interval: WaitDuration = Field(
        default=0.3, description="How often a member says that it is there. For rolling restarts."
    )
    key_format: FormatName = Field(default="string", description="Of keys. For back ends.")
    value_format: FormatName = Field(default="binary", description="Of values. For back ends.")
    backend: Backend = Field(default=Backend(), description="Who is called. For back ends.")
    max_retries: Annotated[Number, in_range(0, 1000, str)] = Field(
        default=3, description="Of a batch that fails, before it is taken apart. For back ends."
    )
    retry_delay: WaitDuration = Field(
        default=1.0, description="Before a batch is tried again; it grows. For back ends."
    )
    retry_delay_max: WaitDuration = Field(
        default=30.0, description="The longest of these waits. For back ends that restart."
    )
    parallelism: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=1,
        description="Batches under way at a time, each of other partitions. For busy topics.",
    )
    accept_empty: Flag = Field(
        default=False,
        description="Whether success without a body means that all records are processed. For back "
        "ends that do not tell them apart.",
    )
    revoke_timeout: WaitDuration = Field(
        default=10.0, description="How long a batch holds up a rebalance. For slow back ends."
    )
    batch_rollback_threshold: Annotated[Share, in_range(0.0, 1.0, format_share)] = Field(
        default=1.0,
        description="Share of failed records from which the whole batch is tried again. For back "
        "ends that fail at large.",
    )
    dead_letter_enabled: Flag = Field(
        default=True, description="Whether failed records go to a topic. For data that must last."
    )
    dead_letter_topic_ext: Text = Field(
        default=".dlq", description="What its name ends in. For operators."
    )
    dead_letter_make: Flag = Field(
        default=True,
        description="Whether it is made where it is missing; else batches with a failed record "
        "wait for it. For operators.",
    )

    @property
    def topic_pattern(self) -> re.Pattern[str] | None:
        """Of `pattern`: it does not match dead letters, or they would come again and again."""
        return (
            _compile_topic_pattern(self.pattern, self.dead_letter_topic_ext)
            if self.pattern
            else None
        )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        pattern = raw.get("pattern")
        if bool(raw.get("topics")) == bool(pattern):
            yield Problem((), "reads nothing, or two things; give it either topics or pattern")
        if isinstance(pattern, str):
            try:
                _compile_topic_pattern(pattern, ".dlq")
            except re.error as error:
                what = f"{safe_repr(pattern)} is no regular expression: {error}; correct it"
                yield Problem(("pattern",), what)


def _compile_topic_pattern(pattern: str, excluded_suffix: str) -> re.Pattern[str]:
    return re.compile(f"(?:{pattern})(?<!{re.escape(excluded_suffix)})")


def _wrap_single(value: object) -> object:
    return (value,) if isinstance(value, (Mapping, Group)) else value


class Reactive(Section):
    groups: Annotated[tuple[Group, ...], BeforeValidator(_wrap_single)] = Field(
        default=(), description="The groups, a list or one. For back ends that are called."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        seen: set[object] = set()
        groups = raw.get("groups")
        for index, each in enumerate(groups if isinstance(groups, (list, tuple)) else ()):
            name = each.get("group") if isinstance(each, Mapping) else None
            if isinstance(name, str) and name in seen:
                what = f"'{name}' is there twice; one entry may read several topics"
                yield Problem(("groups", index, "group"), what)
            seen.add(name)


class SidecarAdmin(Section):
    """`/adm`."""

    chaos: Flag = Field(
        default=False, description="Whether the chaos monkey may be let loose. For tests of teams."
    )


class Audit(Section):
    to: Literal["topic", "log", "off"] = Field(
        default="topic", description="Where audit records go. For auditors."
    )
    topic: TopicName = Field(
        default="sidecar-audit", description="The topic, with `to: topic`. For auditors."
    )
    file: Text | None = Field(
        default=None,
        description="The file, with `to: log`; default the sidecar's own log. For auditors.",
    )


class DeadLetter(Section):
    topic_ext: Text = Field(default=".dlq", description="What their topics end in. For operators.")


class Replay(Section):
    topic: TopicName = Field(
        default="sidecar-replay", description="Where their state is kept. For operators."
    )


class Health(Section):
    enabled: Flag = Field(default=True, description="Whether it is served. For Kubernetes.")
    use_json: Flag = Field(default=False, description="JSON, not OK as text. For monitors.")
    timeout: WaitDuration = Field(default=0.5, description="For all checks together. For probes.")
    downstream_enabled: Flag = Field(
        default=False, description="Whether the back end is asked, too. For pods."
    )
    downstream_host: Url = Field(
        default="http://localhost", description="The back end's base URL. For pods."
    )
    downstream_path: Text = Field(default="/health", description="Its path. For pods.")


_SERVED_SECTIONS = (
    "producer", "consumer", "reactive", "ksqldb", "admin", "audit", "dead_letter", "replay",
)  # fmt: skip


class Sidecar(Section):
    kafka: Text | None = Field(
        default=None, description="The cluster, of several. For configurations with more than one."
    )
    catalog: Text | None = Field(
        default=None,
        description="The catalog of schemas; default the only one. For avro, protobuf and "
        "jsonschema.",
    )
    guarded: dict[Text, tuple[Text, ...]] = Field(
        default={},
        description="Guards, and the roles that they must grant besides kafka:w and kafka:r. For "
        "access control.",
    )
    exposed: Flag = Field(
        default=False,
        description="Allow it without guards where other machines reach it. For networks of which "
        "each machine may read and write all.",
    )
    topics: dict[TopicName, Formats] = Field(
        default={}, description="Formats of single topics. For back ends."
    )
    producer: Producer | None = Field(default=None, description="POST /producers. For writers.")
    consumer: Consumer | None = Field(default=None, description="POST /consumers. For readers.")
    reactive: Reactive | None = Field(
        default=None, description="Batches to the back end. For back ends that are called."
    )
    ksqldb: Ksqldb | None = Field(default=None, description="Rows of ksqlDB. For its users.")
    admin: SidecarAdmin | None = Field(default=None, description="/adm. For operators.")
    audit: Audit | None = Field(default=None, description="Who wrote and read what. For auditors.")
    dead_letter: DeadLetter | None = Field(
        default=None, description="Records that could not be processed. For operators."
    )
    replay: Replay | None = Field(
        default=None, description="Records that are read once more. For operators."
    )
    health: Health = Field(default=Health(), description="/health. For Kubernetes.")

    @property
    def is_open(self) -> bool:
        """Whether it answers anybody who reaches it, and nobody said that it may."""
        served = any(getattr(self, name) is not None for name in _SERVED_SECTIONS)
        return served and not self.guarded and not self.exposed

    def get_key_format(self, topic: str, default: str) -> str:
        """Of the keys of a topic."""
        return (topic in self.topics and self.topics[topic].key_format) or default

    def get_value_format(self, topic: str, default: str) -> str:
        """Of the values of a topic."""
        return (topic in self.topics and self.topics[topic].value_format) or default
