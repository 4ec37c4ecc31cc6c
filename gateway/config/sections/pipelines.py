"""Define the section `pipelines`: Spark jobs that read topics and write topics or Redis.

Each kind of job is a class here; the common options are in `job`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from gateway.config.types.fields import Duration, Number, SecretText, Text, TopicName, in_range
from gateway.config.types.forms import Kinds
from gateway.config.types.section import Problem, Section, create_value_error

from .job import (
    Column,
    Count,
    Input,
    Job,
    JobName,
    Output,
    Partitions,
    Progress,
    Span,
    Spark,
    Sql,
)

T = TypeVar("T")


def _require_non_empty(value: T) -> T:
    if not value:
        raise create_value_error("is empty; add at least one")
    return value


Measures: TypeAlias = dict[Column, Text]
"""Columns, each with its SQL expression, such as `total: sum(amount)`."""


class Sessions(Job):
    """A job that groups the events of each key into sessions, which end with a pause.

    Its rows have the columns of `by`, `start`, `end`, `events` (their number) and those of
    `measures`. With `emit: updates` they also have `state`: `open`, `closed`, or `merged` if the
    events are part of another session now.
    """

    type: Literal["sessions"] = Field(description="The kind of job.")
    from_: Input = Field(alias="from", description="The topic of the events.")
    by: Annotated[tuple[Column, ...], AfterValidator(_require_non_empty)] = Field(
        description="Columns that identify whose sessions these are."
    )
    gap: Span = Field(
        default=1800.0, description="A pause that is longer than this ends a session."
    )
    max_length: Span | None = Field(
        default=None, description="A session that goes on for longer is split."
    )
    emit: Literal["closed", "updates"] = Field(
        default="closed",
        description="closed writes a session when it has ended; updates also each time that it "
        "grows.",
    )
    measures: Measures = Field(
        default={},
        description="Further columns, each with an aggregate, such as `total: sum(amount)`.",
    )
    to: Output = Field(description="The topic of the results.")


class Salt(Section):
    """How the rows of hot keys are spread over several tasks."""

    keys: Literal["auto", "all"] | tuple[Text, ...] = Field(
        default="auto",
        description="The keys to spread: those with a large share when the job first starts "
        "(auto), all, or a list.",
    )
    buckets: Partitions = Field(default=8, description="Number of buckets for a key.")
    share: Annotated[Number, in_range(1, 100, str)] = Field(
        default=10,
        description="With `keys: auto`: the percentage of records from which a key is hot.",
    )


class Join(Job):
    """A job that joins two streams by key and time.

    Its rows have all columns of left and those columns of right that left does not have, or those
    of `select`.
    """

    type: Literal["join"] = Field(description="The kind of job.")
    left: Input = Field(description="The left topic, such as orders.")
    right: Input = Field(description="The right topic, such as payments.")
    on: Annotated[dict[Column, Column], AfterValidator(_require_non_empty)] = Field(
        description="Columns of left, each with the column of right that it must equal."
    )
    before: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=0.0, description="How long right may be before left."
    )
    after: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=3600.0, description="How long right may be after left."
    )
    kind: Literal["inner", "left"] = Field(
        default="inner",
        description="inner writes pairs only; left also rows of left without one, with nulls for "
        "right, once `after` has passed.",
    )
    select: Measures = Field(
        default={},
        description="Columns, each with a SQL expression of `left.x` and `right.y`; default all.",
    )
    salt: Salt | None = Field(
        default=None,
        description="Spread hot keys: the rows of left over buckets, to each of which those of "
        "right are copied. Which keys are hot is part of the checkpoint.",
    )
    to: Output = Field(description="The topic of the results.")


class Broadcast(Section):
    """A small table, of which every task has a copy.

    It is read from a compacted topic or from Parquet files.
    """

    kind: Literal["broadcast"] = Field(description="The kind of table.")
    topic: TopicName | None = Field(
        default=None, description="A compacted topic; the table has the latest value of each key."
    )
    path: Text | None = Field(
        default=None, description="Path of Parquet files, instead of a topic."
    )
    fields: dict[Column, Text] = Field(
        default={}, description="Columns of the JSON values, with their Spark SQL types."
    )
    key: Column = Field(
        default="_key", description="Column that rows are looked up by; default the record's key."
    )
    refresh: Span = Field(default=60.0, description="The age at which the copy is read again.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if ("topic" in raw) == ("path" in raw):
            yield Problem((), "has no source, or two; give it either topic or path", is_key=True)


class Redis(Section):
    """A large table in Redis, whose rows are looked up when events need them."""

    kind: Literal["redis"] = Field(description="The kind of table.")
    url: Text = Field(description="redis://host:port/db, or rediss:// for TLS.")
    password: SecretText | None = Field(default=None, description="Password of Redis.")
    prefix: Text = Field(
        default="table:", description="Prefix of keys in Redis, another one for each table."
    )
    fields: dict[Column, Text] = Field(
        description="Columns of the JSON values, with their Spark SQL types."
    )
    batch: Annotated[Number, in_range(1, 100_000, str)] = Field(
        default=2000, description="The most keys of one MGET."
    )
    cache: Annotated[Number, in_range(0, 10**8, str)] = Field(
        default=100_000,
        description="Recently used values that a Python worker keeps.",
    )
    staleness: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=5.0, description="How long a kept value is used; 0s asks in each batch."
    )
    negative: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=1.0,
        description="How long a key without a value is remembered, at most `staleness`.",
    )
    fallback: Text | None = Field(
        default=None,
        description="Your module:function for keys that Redis does not have: it takes a list of "
        "keys and returns a mapping.",
    )


class Enrich(Job):
    """A job that adds columns of a table to events.

    Events for which the table has no row get nulls.
    """

    type: Literal["enrich"] = Field(description="The kind of job.")
    from_: Input = Field(alias="from", description="The topic of the events.")
    on: Column = Field(description="Column of the events to look up in the table.")
    table: Annotated[Broadcast | Redis, Field(discriminator="kind")] = Field(
        description="The table that has the further columns."
    )
    to: Output = Field(description="The topic of the results.")


class Load(Job):
    """A job that loads a compacted topic into Redis.

    Redis has the latest value of each key; a tombstone deletes the key.
    """

    type: Literal["load"] = Field(description="The kind of job.")
    from_: Input = Field(alias="from", description="The compacted topic.")
    into: Redis = Field(description="The table to write.")


class Window(Section):
    """The windows of event time that an aggregate groups by."""

    size: Span = Field(description="Length of a window.")
    slide: Span | None = Field(
        default=None, description="Time from the start of one window to the next; default `size`."
    )


class Top(Section):
    """The most frequent values of a column in each window and group."""

    of: Column = Field(description="The column whose values are ranked.")
    k: Annotated[Number, in_range(1, 10_000, str)] = Field(
        default=10, description="Number of values."
    )


class Distinct(Section):
    """The number of different values of a column in each window and group."""

    of: Column = Field(description="The column whose values are counted.")
    method: Literal["exact", "approximate"] = Field(
        default="exact",
        description="exact keeps every value until the window ends; approximate a sketch of "
        "fixed size.",
    )
    error: Annotated[float, Field(ge=0.01, le=0.4)] = Field(
        default=0.05,
        description="Relative standard deviation of `approximate`; less takes more memory.",
    )


class Aggregate(Job):
    """A job that aggregates the events of each window.

    Its rows have `start`, `end`, the columns of `by`, and those of `measures`, or `top` (an array
    of values and counts), or `distinct`.
    """

    type: Literal["aggregate"] = Field(description="The kind of job.")
    from_: Input = Field(alias="from", description="The topic of the events.")
    by: tuple[Column, ...] = Field(
        default=(), description="Columns to group by, besides the window."
    )
    window: Window = Field(description="The windows of event time.")
    measures: Measures = Field(
        default={}, description="Columns, each with an aggregate, such as `total: sum(amount)`."
    )
    top: Top | None = Field(
        default=None, description="The most frequent values of a column, instead of `measures`."
    )
    distinct: Distinct | None = Field(
        default=None,
        description="The number of different values of a column, instead of `measures`.",
    )
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final writes a window when it has ended; updates each time that it changes.",
    )
    to: Output = Field(description="The topic of the results.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        kinds = [name for name in ("measures", "top", "distinct") if raw.get(name)]
        if len(kinds) != 1:
            what = "asks for nothing" if not kinds else f"asks for {' and '.join(kinds)}"
            yield Problem((), f"{what}; use one of measures, top and distinct", is_key=True)


class Query(Job):
    """A job that runs a SQL query over topics as tables."""

    type: Literal["query"] = Field(description="The kind of job.")
    tables: Annotated[dict[Column, Input], AfterValidator(_require_non_empty)] = Field(
        description="Topics, by their names in the query."
    )
    sql: Sql = Field(description="The query, a SELECT.")
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final writes an aggregate when its window has ended; updates each time that "
        "it changes.",
    )
    to: Output = Field(description="The topic of the results.")


JOB_KINDS: Kinds[Job] = Kinds(
    "job",
    {
        "sessions": Sessions,
        "join": Join,
        "enrich": Enrich,
        "load": Load,
        "aggregate": Aggregate,
        "query": Query,
    },
)
"""The sections of all kinds of jobs, by their `type`."""

AnyJob: TypeAlias = Annotated[
    Sessions | Join | Enrich | Load | Aggregate | Query,
    JOB_KINDS,
]


class Pipelines(Section):
    """The Spark jobs, and where they run, keep state and report progress."""

    checkpoints: Text = Field(
        default="checkpoints",
        description="Where each job's offsets and state are kept: a path, or a URL that Hadoop "
        "can read. It must outlive the machine.",
    )
    spark: Spark = Field(default=Spark(), description="The Spark cluster that runs the jobs.")
    progress: Progress = Field(
        default=Progress(), description="Metrics and records of the jobs' progress."
    )
    jobs: tuple[AnyJob, ...] = Field(default=(), description="The jobs to run.")

    def find_job(self, name: str) -> Job | None:
        return next((job for job in self.jobs if job.name == name), None)


__all__ = [
    "Aggregate", "AnyJob", "Broadcast", "Count", "Distinct", "Enrich", "Input", "Job", "JobName",
    "Join", "Load", "Output", "Pipelines", "Query", "Redis", "Salt", "Sessions", "Spark", "Top",
    "Window",
]  # fmt: skip
