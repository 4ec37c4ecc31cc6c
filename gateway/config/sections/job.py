"""Pipelines: what Spark jobs from topics to topics have in common. The kinds of jobs are in
`pipelines`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from gateway.config.source.substitution import safe_repr
from gateway.config.types.address import Host
from gateway.config.types.fields import (
    Duration,
    Number,
    Size,
    Text,
    TopicName,
    in_range,
    validate_text,
)
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.units import format_duration, format_share, format_size, parse_duration

from .telemetry import Share

Count: TypeAlias = Annotated[Number, in_range(1, 10**9, str)]
Partitions: TypeAlias = Annotated[Number, in_range(1, 10_000, str)]
Span: TypeAlias = Annotated[Duration, in_range(0.001, 366 * 86_400)]

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _validate_column(value: object) -> str:
    given = validate_text(value)
    if not _COLUMN.fullmatch(given):
        raise create_value_error(
            f"{safe_repr(value)} is no name of a column; use letters, digits and '_'"
        )
    return given


def _validate_job_name(value: object) -> str:
    given = validate_text(value)
    if not _JOB_NAME.fullmatch(given):
        what = "use small letters, digits and '-', at most 63"
        raise create_value_error(f"{safe_repr(value)} is no name of a job; {what}")
    return given


def _validate_sql(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise create_value_error(
            f"{safe_repr(value)} is no query; write such as SELECT * FROM orders"
        )
    return str(value).strip()


def _validate_trigger(value: object) -> float | str:
    if value in ("realtime", "available-now"):
        return str(value)
    if isinstance(value, float):
        return value
    if not isinstance(value, str):
        raise create_value_error(
            f"{safe_repr(value)} is no trigger; write such as 1s, realtime or available-now"
        )
    try:
        return parse_duration(value)
    except ValueError as error:
        raise create_value_error(f"{error}; or write realtime or available-now") from None


Column: TypeAlias = Annotated[str, BeforeValidator(_validate_column)]
JobName: TypeAlias = Annotated[str, BeforeValidator(_validate_job_name)]
Sql: TypeAlias = Annotated[
    str, PlainValidator(_validate_sql), WithJsonSchema({"type": "string", "minLength": 1})
]

Trigger: TypeAlias = Annotated[
    float | str,
    PlainValidator(_validate_trigger),
    PlainSerializer(lambda value: value if isinstance(value, str) else format_duration(value)),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""Seconds from one batch's begin to the next, or one of the two words."""


def _check_catalog(raw: Mapping[str, Any], default: str) -> Iterable[Problem]:
    model = raw.get("model", default)
    needs = model in ("avro", "protobuf", "jsonschema")
    if needs and "catalog" not in raw:
        yield Problem(("model",), f"model {model} needs a schema; add catalog: and a name")
    if "catalog" in raw and not needs:
        yield Problem(("catalog",), f"model {model} has no schema; remove catalog", is_key=True)


class Spark(Section):
    """The cluster, and what it is told beside what a job needs."""

    master: Text = Field(
        default="local[*]",
        description="local[N], spark://host:port, k8s://... or yarn; under spark-submit its own. "
        "For data that outgrows one machine.",
    )
    memory: Annotated[Size, in_range(512 * 1024**2, 1024**4, format_size)] = Field(
        default=1024**3, description="Heap of the driver, and of each executor. For operators."
    )
    conf: dict[Text, Text] = Field(
        default={}, description="Spark's own settings; they beat ours. For operators."
    )


class Fields(Section):
    """How a record's value becomes columns."""

    model: Literal["json", "avro", "protobuf", "jsonschema", "string"] = Field(
        default="json", description="The encoding; string gives one column, `value`. For all jobs."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`. For avro, protobuf and jsonschema."
    )
    fields: dict[Column, Text] = Field(
        default={},
        description="Columns and their Spark SQL types, such as `amount: decimal(10,2)`; "
        "`timestamp` reads ISO 8601, `timestamp_ms` milliseconds. For json; of a schema all.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from _check_catalog(raw, "json")


class Input(Section):
    """A topic as a table. Beside its fields it has `_key`, `_topic`, `_partition`, `_offset` and
    `_timestamp` of the record."""

    topic: TopicName = Field(description="What is read. For all jobs.")
    kafka: Text | None = Field(
        default=None, description="The cluster, where there are several. For bridges."
    )
    value: Fields = Field(default=Fields(), description="How values become columns. For all jobs.")
    time: Column = Field(
        default="_timestamp",
        description="The column of the event time; default that of the record. For windows.",
    )
    watermark: Annotated[Duration, in_range(0, 30 * 86_400)] = Field(
        default=600.0,
        description="How late an event may come (its grace): longer keeps more state and ends "
        "windows later. For windows, sessions and joins.",
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where a job without a checkpoint begins. For new jobs."
    )
    max_records: Count | None = Field(
        default=None, description="Of one batch, all partitions together. For catching up in steps."
    )
    min_partitions: Partitions | None = Field(
        default=None, description="At least so many tasks read it. For few, busy partitions."
    )
    max_records_per_partition: Count | None = Field(
        default=None, description="A partition with more is read by several tasks. For hot ones."
    )
    on_data_loss: Literal["gap", "fail"] = Field(
        default="gap",
        description="What if retention took records that were not read yet: a gap record in "
        "<output>.gaps, or the end of the job. For aggressive retention.",
    )
    on_invalid: Literal["skip", "fail", "dead-letter"] = Field(
        default="dead-letter",
        description="What becomes of values that are none of the model; dead-letter sends them to "
        "<topic>.dlq (at-least-once: only if it is written). For topics of many writers.",
    )
    late: Literal["skip", "topic"] = Field(
        default="topic",
        description="What becomes of events beyond the watermark; topic sends them to "
        "<topic>.late (at-least-once: only if it is written). For windows, sessions and joins.",
    )


class Output(Section):
    """Where rows go, one record each."""

    topic: TopicName = Field(description="Made if it is missing. For all jobs.")
    kafka: Text | None = Field(
        default=None, description="The cluster, where there are several. For bridges."
    )
    key: tuple[Column, ...] = Field(
        default=(),
        description="Columns of the record's key: one as its text, several as a JSON array; "
        "default what the job groups by. For compaction, and for filters of streams.",
    )
    model: Literal["json", "avro", "protobuf", "jsonschema"] = Field(
        default="json", description="The encoding of values. For readers."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`. For avro, protobuf and jsonschema."
    )
    guarantee: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="For readers of committed records each row once; or Spark's own sink, which is "
        "faster and may repeat after a crash. For who can bear repeats.",
    )
    writers: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=2, description="Transactions at a time. For exactly-once on large clusters."
    )
    transaction_timeout: Annotated[Duration, in_range(1, 900)] = Field(
        default=60.0,
        description="When Kafka gives up a transaction whose writer is gone; readers wait so long. "
        "For slow batches.",
    )
    partitions: Partitions | None = Field(
        default=None, description="Of the topic, when it is made; default the broker's. For admins."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from _check_catalog(raw, "json")


class State(Section):
    """Of jobs that remember: RocksDB, its changelog in the checkpoint."""

    profile: Literal["small", "large", "latency"] = Field(
        default="small",
        description="Settings that go together: small for up to a million keys, large for more "
        "than memory holds, latency for short commits. For operators.",
    )
    partitions: Partitions = Field(
        default=2,
        description="Of the state (spark.sql.shuffle.partitions); `gateway pipeline rescale` "
        "changes it later. For large state.",
    )
    memory: Annotated[Size, in_range(16 * 1024**2, 1024**4, format_size)] | None = Field(
        default=None, description="Of all stores of an executor; default the profile's. For hosts."
    )
    snapshot_after: Count | None = Field(
        default=None,
        description="Batches between snapshots; default the profile's. For short restarts.",
    )
    retain: Annotated[Number, in_range(2, 100_000, str)] = Field(
        default=100, description="Batches whose state and offsets are kept. For going back."
    )


class Job(Section):
    """What all kinds have in common."""

    name: JobName = Field(description="Its name in commands, metrics, ids. For operators.")
    trigger: Trigger = Field(
        default=0.0,
        description="How often a batch begins (0s: one after the other), `realtime` for "
        "milliseconds where the job allows it, or `available-now` to end when all is read. "
        "For latency against cost.",
    )
    state: State = Field(default=State(), description="How it remembers. For operators.")
    alert_late: Annotated[Share, in_range(0.0, 1.0, format_share)] = Field(
        default=0.2, description="The share of late events that is worth an alert. For operators."
    )


class Progress(Section):
    """Where jobs tell how they are."""

    listen: Annotated[Number, in_range(0, 65535, str)] | None = Field(
        default=None, description="A port for Prometheus, 0 a free one. For operators."
    )
    host: Host = Field(default="127.0.0.1", description="Its address. For operators.")
    topic: TopicName | None = Field(
        default=None, description="A topic of their progress, for streams. For dashboards."
    )
