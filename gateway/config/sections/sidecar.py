"""Define the section `sidecar`: Kafka over HTTP for any back end.

Each part of the sidecar is served only if its section is in the file, even if it is empty, such as
`producer: {}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gateway.config.types.address import Url
from gateway.config.types.fields import (
    Duration,
    Flag,
    HeaderText,
    Number,
    Size,
    Text,
    TopicName,
    in_range,
)
from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.config.types.forms import Guarded
from gateway.config.types.section import Loc, Problem, Section, create_value_error
from gateway.config.types.substitution import safe_repr
from gateway.config.types.units import format_share, format_size

from .ksqldb import Ksqldb
from .telemetry import Share

GroupProtocol: TypeAlias = Literal["auto", "consumer", "classic"]
OffsetReset: TypeAlias = Literal["latest", "earliest", "none"]


class _FormatChoice:
    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        numbers = [format.number for format in SERIALIZATION_FORMATS.values()]
        return {"enum": [*SERIALIZATION_FORMATS, *numbers]}

    def _validate(self, value: object) -> str:
        for format in SERIALIZATION_FORMATS.values():
            numbers = (format.number, str(format.number))
            if value == format.name or (not isinstance(value, bool) and value in numbers):
                return format.name
        names = ", ".join(SERIALIZATION_FORMATS)
        largest = max(format.number for format in SERIALIZATION_FORMATS.values())
        raise create_value_error(
            f"{safe_repr(value)} is no format; use one of {names}, or 0 to {largest}"
        )


FormatName: TypeAlias = Annotated[str, _FormatChoice()]
KeyFormat: TypeAlias = Annotated[
    FormatName,
    Field(description="Format of keys, which `sidecar.topics` and requests override."),
]
ValueFormat: TypeAlias = Annotated[
    FormatName,
    Field(description="Format of values, which `sidecar.topics` and requests override."),
]
ByteLimit: TypeAlias = Annotated[Size, in_range(1, 1 << 30, format_size)]
WaitDuration: TypeAlias = Annotated[Duration, in_range(0.001, 86_400)]
Count: TypeAlias = Annotated[Number, in_range(1, 10**7, str)]


class Formats(Section):
    """The formats of one topic, which override those of the sections."""

    key_format: FormatName | None = Field(
        default=None, description="Format of the topic's keys in JSON."
    )
    value_format: FormatName | None = Field(
        default=None, description="Format of the topic's values in JSON."
    )


class Backend(Section):
    """The back end that gets batches of records, in POST requests."""

    host: Url = Field(
        default="http://localhost:8080",
        description="Base URL of the back end; default a container in the same pod.",
    )
    path: Text = Field(default="/kafka/records", description="Path that batches are POSTed to.")
    timeout: WaitDuration = Field(default=30.0, description="How long a whole response may take.")
    health_path: Text | None = Field(
        default="/health",
        description="Path of the back end's health, null for none. While it is not healthy, its "
        "errors make no dead letters.",
    )


class Idempotency(Section):
    """How requests with an Idempotency-Key are remembered, so that each is done once."""

    topic: TopicName = Field(
        default="sidecar-idempotency",
        description="Topic of the requests that were done, created if it does not exist.",
    )
    partitions: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=4,
        description="Partitions of `topic` when it is created, and the most that are used. All "
        "replicas need the same.",
    )
    replication: Annotated[Number, in_range(1, 100, str)] | None = Field(
        default=None,
        description="Replication factor of `topic` when it is created; default the cluster's.",
    )
    window: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=86_400.0, description="How long a key is remembered."
    )
    keys: Count = Field(
        default=1_000_000,
        description="The most keys that are remembered, each about 250 bytes of memory.",
    )


class Producer(Section):
    """The API of producers, `POST /producers`, which writes records."""

    key_format: KeyFormat = "string"
    value_format: ValueFormat = "binary"
    max_bytes: ByteLimit = Field(
        default=1_000_000, description="The most bytes of a request's body."
    )
    timeout: WaitDuration = Field(default=10.0, description="How long a request waits for Kafka.")
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none", description="Compression of the batches in Kafka."
    )
    idempotency: Idempotency = Field(
        default=Idempotency(),
        description="How requests with an Idempotency-Key are done once.",
    )
    transaction_timeout: Annotated[Duration, in_range(1, 900)] = Field(
        default=30.0,
        description="When Kafka aborts the transaction of a crashed producer; readers of "
        "committed records wait as long.",
    )
    streamed: Count = Field(
        default=1000,
        description="The most unacknowledged records of one NDJSON request.",
    )


class Membership(Section):
    """How a member joins a consumer group and reads: the names are those of Kafka's clients."""

    group_protocol: GroupProtocol = Field(
        default="auto",
        description="consumer (KIP-848, Kafka 4.0 and newer), classic, or auto: the newer that "
        "the broker has.",
    )
    session_timeout: WaitDuration = Field(
        default=45.0,
        description="How long a member may send no heartbeat before the group removes it.",
    )
    heartbeat_interval: WaitDuration = Field(
        default=3.0, description="Time between two heartbeats; Kafka's default."
    )
    leave_group_on_close: Flag = Field(
        default=True,
        description="Whether a member that stops leaves its group: others get its partitions at "
        "once.",
    )
    auto_offset_reset: OffsetReset = Field(
        default="latest", description="Where a group begins that has committed no offset."
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="read_committed reads a transaction's records once it is committed, "
        "read_uncommitted at once.",
    )
    fetch_max_bytes: ByteLimit = Field(
        default=102_400, description="The most bytes of one fetch from Kafka."
    )
    max_partition_fetch_bytes: ByteLimit = Field(
        default=102_400, description="The most bytes of one partition in a fetch."
    )
    max_poll_records: Count = Field(default=100, description="The most records of one batch.")
    request_max_bytes: ByteLimit = Field(
        default=204_800,
        description="The most bytes of records in one response or batch.",
    )


class Consumer(Membership):
    """The API of consumers, `POST /consumers`, whose instances programs poll for records."""

    key_format: KeyFormat = "string"
    value_format: ValueFormat = "binary"
    instance_timeout: WaitDuration = Field(
        default=300.0, description="How long an instance lives without requests."
    )
    instances: Count = Field(default=10_000, description="The most instances at a time.")
    request_timeout: WaitDuration = Field(
        default=1.0, description="How long a poll waits, unless its instance says it."
    )
    base_uri: Url | None = Field(
        default=None,
        description="URL of this replica for clients, in the response to a new instance; default "
        "that of the request.",
    )
    max_poll_records: Count = Field(
        default=500, description="The most records of one response; Kafka's default."
    )


class Group(Membership):
    """A consumer group whose records the sidecar POSTs to the back end."""

    group: HeaderText = Field(description="Id of the group.")
    topics: tuple[TopicName, ...] = Field(default=(), description="Topics that the group reads.")
    pattern: Text | None = Field(
        default=None, description="Regular expression of the topics to read, instead of `topics`."
    )
    instance_id: Text | None = Field(
        default=None, description="group.instance.id of a static member; default a dynamic member."
    )
    max_poll_interval: WaitDuration = Field(
        default=300.0,
        description="How long a lane (some of a group's partitions) may make no progress before "
        "readiness fails.",
    )
    # A member learns of a rebalance from the response to its next heartbeat. While a member
    # restarts, its partitions are not read for 2.0 s with an interval of 3 s, and for 0.2 s with
    # this one (`make bench WORK=rebalance`).
    heartbeat_interval: WaitDuration = Field(
        default=0.2,
        description="Time between two heartbeats, whose responses tell of a rebalance.",
    )
    key_format: KeyFormat = "string"
    value_format: ValueFormat = "binary"
    backend: Backend = Field(default=Backend(), description="The back end that gets the records.")
    max_retries: Annotated[Number, in_range(0, 1000, str)] = Field(
        default=3,
        description="Retries of a batch that fails, before it is halved to find the record.",
    )
    retry_delay: WaitDuration = Field(
        default=1.0,
        description="First delay before a batch is tried again; it grows with each try.",
    )
    retry_delay_max: WaitDuration = Field(default=30.0, description="The longest of these delays.")
    parallelism: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=1, description="Number of batches at a time, each of other partitions."
    )
    accept_empty: Flag = Field(
        default=False,
        description="Whether a success without a body means that all records are processed.",
    )
    revoke_timeout: WaitDuration = Field(
        default=10.0, description="How long a rebalance waits for the batch of a revoked partition."
    )
    batch_rollback_threshold: Annotated[Share, in_range(0.0, 1.0, format_share)] = Field(
        default=1.0,
        description="Share of failed records from which the whole batch is tried again.",
    )
    dead_letter_enabled: Flag = Field(
        default=True,
        description="Whether failed records are written to a dead letter topic, or tried again "
        "without end.",
    )
    dead_letter_topic_ext: Text = Field(
        default=".dlq", description="Suffix of the dead letter topic, after the topic's name."
    )
    dead_letter_make: Flag = Field(
        default=True,
        description="Whether a missing dead letter topic is created, or batches with a failed "
        "record wait for it.",
    )

    def compile_pattern(self, dead_letter_suffixes: Iterable[str]) -> re.Pattern[str] | None:
        """Return the compiled `pattern`; None without one.

        It does not match dead letter topics, whose records the group would otherwise process and
        give up again and again.
        """
        return _compile_topic_pattern(self.pattern, dead_letter_suffixes) if self.pattern else None

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        pattern = raw.get("pattern")
        if bool(raw.get("topics")) == bool(pattern):
            yield Problem((), "has no topics, or two kinds; give it either topics or pattern")
        if isinstance(pattern, str):
            try:
                _compile_topic_pattern(pattern)
            except re.error as error:
                what = f"{safe_repr(pattern)} is no regular expression: {error}; correct it"
                yield Problem(("pattern",), what)


def _compile_topic_pattern(pattern: str, excluded_suffixes: Iterable[str] = ()) -> re.Pattern[str]:
    excluded = "".join(f"(?<!{re.escape(suffix)})" for suffix in sorted(excluded_suffixes))
    return re.compile(f"(?:{pattern}){excluded}")


def _validate_groups(
    value: object, handler: Callable[[object], tuple[Group, ...]], info: ValidationInfo
) -> tuple[Group, ...]:
    """Return the groups of a list, or a single one, whose problems have the places of the file."""
    if isinstance(value, (Mapping, Group)):
        return (Group.model_validate(value, context=info.context),)
    return handler(value)


class Reactive(Section):
    """The groups whose records the sidecar POSTs to the back end. Each group is listed once."""

    groups: Annotated[
        tuple[Group, ...],
        WrapValidator(_validate_groups, json_schema_input_type=Group | tuple[Group, ...]),
    ] = Field(default=(), description="A group, or a list of groups.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        names: set[str] = set()
        groups = raw.get("groups")
        for index, group in enumerate(groups if isinstance(groups, (list, tuple)) else ()):
            name = group.get("group") if isinstance(group, Mapping) else None
            if not isinstance(name, str):
                continue
            if name in names:
                what = f"'{name}' is used twice; list all topics of a group in one entry"
                yield Problem(("groups", index, "group"), what)
            names.add(name)


class SidecarAdmin(Section):
    """The admin API of the sidecar, `/adm`."""

    chaos: Flag = Field(
        default=False, description="Whether /adm/chaosmonkey may cause latency and failures."
    )


class Audit(Section):
    """Audit records of who wrote and read what, and where they go."""

    to: Literal["topic", "log", "off"] = Field(
        default="topic", description="Where audit records go."
    )
    topic: TopicName = Field(
        default="sidecar-audit", description="Topic for `to: topic`, created if it does not exist."
    )
    file: Text | None = Field(
        default=None, description="File for `to: log`; default the log of the sidecar."
    )


class DeadLetter(Section):
    """The API to read and retry dead letters, below `/consumers/deadLetter`."""

    topic_ext: Text = Field(
        default=".dlq",
        description="Suffix of the dead letter topics of groups that are not configured.",
    )


class Replay(Section):
    """The API to read old records once more, `/replays`."""

    topic: TopicName = Field(
        default="sidecar-replay",
        description="Compacted topic of their state, created if it does not exist.",
    )


class Health(Section):
    """The health checks, `/health/liveness` and `/health/readiness`."""

    enabled: Flag = Field(default=True, description="Whether health checks are served.")
    use_json: Flag = Field(default=False, description="Respond with JSON instead of the text OK.")
    timeout: WaitDuration = Field(default=0.5, description="How long all checks together may take.")
    downstream_enabled: Flag = Field(
        default=False, description="Whether readiness also needs the back end to be healthy."
    )
    downstream_host: Url = Field(
        default="http://localhost", description="Base URL of the back end for this check."
    )
    downstream_path: Text = Field(
        default="/health", description="Path of the back end's health check."
    )


# The sections that guards protect; `health` is served without guards.
_SERVED_SECTIONS = (
    "producer", "consumer", "reactive", "ksqldb", "admin", "audit", "dead_letter", "replay",
)  # fmt: skip


class Sidecar(Section):
    """Kafka over HTTP for back ends: each part is served if its section is there."""

    kafka: Text | None = Field(
        default=None, description="Name of the Kafka cluster, if `kafka` has several."
    )
    catalog: Text | None = Field(
        default=None, description="Name of the catalog with the schemas; default the only one."
    )
    guarded: Guarded = Field(
        default={},
        description="Guards, each with the roles that it must grant besides kafka:w and kafka:r.",
    )
    exposed: Flag = Field(
        default=False,
        description="Allow it without guards where other machines can connect, and then read and "
        "write everything.",
    )
    topics: dict[TopicName, Formats] = Field(
        default={}, description="Formats of single topics, by topic."
    )
    producer: Producer | None = Field(default=None, description="Writing records, POST /producers.")
    consumer: Consumer | None = Field(
        default=None, description="Reading records by polls, POST /consumers."
    )
    reactive: Reactive | None = Field(
        default=None, description="Groups whose records are POSTed to the back end."
    )
    ksqldb: Ksqldb | None = Field(default=None, description="Queries of ksqlDB and their rows.")
    admin: SidecarAdmin | None = Field(default=None, description="The admin API, /adm.")
    audit: Audit | None = Field(
        default=None, description="Audit records of who wrote and read what."
    )
    dead_letter: DeadLetter | None = Field(
        default=None, description="Reading and retrying dead letters, /consumers/deadLetter."
    )
    replay: Replay | None = Field(
        default=None, description="Reading old records once more, /replays."
    )
    health: Health = Field(
        default=Health(), description="The health checks, /health/liveness and /health/readiness."
    )

    @property
    def is_open(self) -> bool:
        """Whether everybody who can connect may use it, although `exposed` does not allow that."""
        is_served = any(getattr(self, name) is not None for name in _SERVED_SECTIONS)
        return is_served and not self.guarded and not self.exposed

    @cached_property
    def internal_topics(self) -> frozenset[str]:
        """The topics of sidecars themselves, which no pattern matches and no client writes to.

        Each audit record that was read would make another one.
        """
        idempotency = (self.producer or Producer()).idempotency
        owners = (idempotency, self.audit or Audit(), self.replay or Replay())
        return frozenset(owner.topic for owner in owners)

    def iter_groups(self) -> Iterator[tuple[Loc, Group]]:
        """Yield the groups of `reactive` with their paths."""
        for index, group in enumerate(() if self.reactive is None else self.reactive.groups):
            yield ("reactive", "groups", index), group

    @property
    def reactive_groups(self) -> frozenset[str]:
        """The groups of `reactive`, and those that commit how far their dead letters are."""
        groups = () if self.reactive is None else self.reactive.groups
        names = frozenset(group.group for group in groups)
        return names | {group.group + group.dead_letter_topic_ext for group in groups}

    @property
    def dead_letter_suffixes(self) -> frozenset[str]:
        groups = () if self.reactive is None else self.reactive.groups
        general = (self.dead_letter or DeadLetter()).topic_ext
        return frozenset([general, *(group.dead_letter_topic_ext for group in groups)])

    def get_key_format(self, topic: str, default: str) -> str:
        return (topic in self.topics and self.topics[topic].key_format) or default

    def get_value_format(self, topic: str, default: str) -> str:
        return (topic in self.topics and self.topics[topic].value_format) or default
