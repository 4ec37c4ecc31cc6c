"""Define the common parts of Spark jobs: inputs, outputs, state and the Spark cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from gateway.config.types.address import Host
from gateway.config.types.fields import (
    Choice,
    Duration,
    Number,
    Size,
    Text,
    TopicName,
    create_quantity_validator,
    in_range,
    matching,
)
from gateway.config.types.formats import list_job_models, needs_catalog
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.substitution import safe_repr, suggest
from gateway.config.types.units import format_duration, format_share, format_size, parse_duration

from .telemetry import Share

Count: TypeAlias = Annotated[Number, in_range(1, 10**9, str)]  # records, or batches
Partitions: TypeAlias = Annotated[Number, in_range(1, 10_000, str)]
Span: TypeAlias = Annotated[Duration, in_range(0.001, 366 * 86_400)]


def _validate_sql(value: object) -> str:
    """Return a query without the space around it; unlike other texts it may have line breaks."""
    if not isinstance(value, str) or not value.strip():
        raise create_value_error(
            f"{safe_repr(value)} is no query; write such as SELECT * FROM orders"
        )
    return str(value).strip()


def _parse_trigger(text: str) -> float | str:
    if text in ("realtime", "available-now"):
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}; or write realtime or available-now") from None


Column: TypeAlias = Annotated[
    str,
    matching(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "is no name of a column; use letters, digits and '_', and give the name in the JSON of an "
        "input in jsonNames",
    ),
]
JobName: TypeAlias = Annotated[
    str,
    matching(
        r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?",
        "is no name of a job; use lowercase letters, digits and '-', at most 63",
    ),
]
Sql: TypeAlias = Annotated[
    str, PlainValidator(_validate_sql), WithJsonSchema({"type": "string", "minLength": 1})
]

Trigger: TypeAlias = Annotated[
    float | str,
    PlainValidator(create_quantity_validator(_parse_trigger, "1s")),
    PlainSerializer(lambda value: value if isinstance(value, str) else format_duration(value)),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""Seconds from the start of one batch to the start of the next, `realtime` or `available-now`."""


def _check_catalog(raw: Mapping[str, Any]) -> Iterable[Problem]:
    """Yield the problem of a model without the catalog that it needs, or with a useless one."""
    model = raw.get("model", "json")
    needs_schema = needs_catalog(model)
    if needs_schema and "catalog" not in raw:
        yield Problem(("model",), f"model {model} needs a schema; add catalog: and a name")
    if "catalog" in raw and not needs_schema:
        yield Problem(("catalog",), f"model {model} has no schema; remove catalog", is_key=True)


class Spark(Section):
    """The Spark cluster, and settings of Spark besides those that the jobs need."""

    master: Text = Field(
        default="local[*]",
        description="local[N], spark://host:port, k8s://... or yarn. Under spark-submit its own "
        "master is used.",
    )
    memory: Annotated[Size, in_range(512 * 1024**2, 1024**4, format_size)] = Field(
        default=1024**3, description="Heap of the driver, and of each executor."
    )
    conf: dict[Text, Text] = Field(
        default={}, description="Settings of Spark, which override those of the jobs."
    )


class Fields(Section):
    """How the value of a record becomes columns."""

    model: Annotated[str, Choice(partial(list_job_models, with_text=True))] = Field(
        default="json", description="The encoding; `string` gives one column, `value`."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`, for avro, protobuf and jsonschema."
    )
    fields: dict[Column, Text] = Field(
        default={},
        description="Columns and their Spark SQL types, such as `amount: decimal(10,2)`; "
        "`timestamp` reads ISO 8601, `timestamp_ms` milliseconds since 1970. Default all fields "
        "of the schema; json needs them.",
    )
    json_names: dict[Column, Text] = Field(
        default={}, description='Other names of columns in the JSON, such as `at: "@timestamp"`.'
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from _check_catalog(raw)
        fields, names = raw.get("fields"), raw.get("jsonNames")
        if not (isinstance(names, Mapping) and isinstance(fields, Mapping | None)):
            return
        for column, name in names.items():
            if column not in (fields or {}):
                message = f"'{column}' is none of fields; {suggest(column, fields or {})}"
                yield Problem(("jsonNames", column), message, is_key=True)
            if any(names.get(other, other) == name for other in fields or {} if other != column):
                message = f"{safe_repr(name)} is another column, too; read it once"
                yield Problem(("jsonNames", column), message)


class Input(Section):
    """A topic that a job reads, as a table.

    Besides the columns of its values the table has `_key`, `_topic`, `_partition`, `_offset` and
    `_timestamp`, which describe the record.
    """

    topic: TopicName = Field(description="The topic to read.")
    kafka: Text | None = Field(
        default=None, description="Name of the Kafka cluster, if `kafka` has several."
    )
    value: Fields = Field(default=Fields(), description="How values become columns.")
    time: Column = Field(
        default="_timestamp",
        description="The column with the event time; default the record's timestamp.",
    )
    watermark: Annotated[Duration, in_range(0, 30 * 86_400)] = Field(
        default=600.0,
        description="How far behind the newest event time an event may arrive. A longer one "
        "keeps more state and ends windows later.",
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where a job without a checkpoint begins."
    )
    max_records: Count | None = Field(default=None, description="The most records of a batch.")
    min_partitions: Partitions | None = Field(
        default=None,
        description="The fewest tasks that read the topic; default one for each partition.",
    )
    max_records_per_partition: Count | None = Field(
        default=None,
        description="The most records of a partition that one task reads; others read the rest.",
    )
    on_data_loss: Literal["gap", "fail"] = Field(
        default="gap",
        description="If Kafka deleted records before they were read: a gap record in "
        "<output>.gaps, or failure.",
    )
    on_invalid: Literal["skip", "fail", "dead-letter"] = Field(
        default="dead-letter",
        description="What to do with values that the model cannot decode; `dead-letter` writes "
        "them to <topic>.dlq (with at-least-once only if set here).",
    )
    late: Literal["skip", "topic"] = Field(
        default="topic",
        description="What to do with events later than the watermark; `topic` writes them to "
        "<topic>.late (with at-least-once only if set here).",
    )


class Output(Section):
    """The topic that a job writes its rows to, each as one record."""

    topic: TopicName = Field(description="The topic to write, created if it does not exist.")
    kafka: Text | None = Field(
        default=None, description="Name of the Kafka cluster, if `kafka` has several."
    )
    key: tuple[Column, ...] = Field(
        default=(),
        description="Columns of the record's key: one as text, several as a JSON array; default "
        "those that the job groups by.",
    )
    model: Annotated[str, Choice(partial(list_job_models, with_text=False))] = Field(
        default="json", description="The encoding of the values."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`, for avro, protobuf and jsonschema."
    )
    guarantee: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="`exactly-once`: each row once, for readers of committed records. "
        "`at-least-once`: Spark's own sink, which is faster and may repeat rows after a crash.",
    )
    writers: Annotated[Number, in_range(1, 1000, str)] = Field(
        default=2, description="Number of transactions in parallel, with `exactly-once`."
    )
    transaction_timeout: Annotated[Duration, in_range(1, 900)] = Field(
        default=60.0,
        description="When Kafka aborts the transaction of a crashed producer; readers of "
        "committed records wait as long.",
    )
    partitions: Partitions | None = Field(
        default=None,
        description="Partitions of a topic that is created; default the broker's.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from _check_catalog(raw)


class State(Section):
    """The state of a job that keeps some: RocksDB, with its changelog in the checkpoint."""

    profile: Literal["small", "large", "latency"] = Field(
        default="small",
        description="Settings of RocksDB and Spark: `small` up to a million keys, `large` for "
        "more than memory holds, `latency` for short commits.",
    )
    partitions: Partitions = Field(
        default=2,
        description="Partitions of the state (spark.sql.shuffle.partitions), which only "
        "`gateway pipeline rescale` changes once there is a checkpoint.",
    )
    memory: Annotated[Size, in_range(16 * 1024**2, 1024**4, format_size)] | None = Field(
        default=None,
        description="Memory of all state stores of an executor; default the profile's.",
    )
    snapshot_after: Count | None = Field(
        default=None,
        description="Batches between snapshots; default the profile's. Fewer make a restart "
        "shorter.",
    )
    retain: Annotated[Number, in_range(2, 100_000, str)] = Field(
        default=100,
        description="Batches whose state and offsets are kept, to which a repair can go back.",
    )


class Job(Section):
    """The options that all kinds of jobs have."""

    name: JobName = Field(description="Name of the job in commands, metrics and checkpoints.")
    trigger: Trigger = Field(
        default=0.0,
        description="Time from the start of one batch to the next; 0s starts each when the last "
        "has ended. `realtime` has a latency of milliseconds, for jobs that allow it; "
        "`available-now` ends the job once it has read everything.",
    )
    state: State = Field(default=State(), description="How the job keeps state.")
    alert_late: Annotated[Share, in_range(0.0, 1.0, format_share)] = Field(
        default=0.2, description="The share of late events that raises an alert."
    )


class Progress(Section):
    """Where jobs report their progress."""

    listen: Annotated[Number, in_range(0, 65535, str)] | None = Field(
        default=None, description="Port of the metrics for Prometheus; 0 binds a free port."
    )
    host: Host = Field(default="127.0.0.1", description="Address to bind for `listen`.")
    topic: TopicName | None = Field(
        default=None, description="A topic of progress records, which routes can stream."
    )
