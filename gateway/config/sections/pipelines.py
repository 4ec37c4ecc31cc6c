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

    type: Literal["sessions"] = Field(description="The kind of job. For all jobs.")
    from_: Input = Field(alias="from", description="The topic of the events. For sessions.")
    by: Annotated[tuple[Column, ...], AfterValidator(_require_non_empty)] = Field(
        description="Columns that identify whose sessions these are. For sessions."
    )
    gap: Span = Field(
        default=1800.0,
        description="A pause that is longer than this ends a session. For sessions.",
    )
    max_length: Span | None = Field(
        default=None,
        description="The longest session: one that goes on for longer is split; default no limit. "
        "For users who never pause.",
    )
    emit: Literal["closed", "updates"] = Field(
        default="closed",
        description="closed writes a session once, when it has ended; updates writes it each time "
        "that it grows, too. For pages.",
    )
    measures: Measures = Field(
        default={},
        description="Further columns, each with an aggregate, such as `total: sum(amount)`. For "
        "sessions.",
    )
    to: Output = Field(description="The topic of the results. For readers.")


class Salt(Section):
    """How the rows of hot keys are spread over several tasks.

    A hot key has so many rows that its one task would take longer than all others. The rows of left
    are spread over buckets, and those of right are copied to each bucket. Which keys are hot is
    part of the checkpoint.
    """

    keys: Literal["auto", "all"] | tuple[Text, ...] = Field(
        default="auto",
        description="The keys to spread: those with a large share of the records when the job "
        "first starts (auto), all, or a list. For skewed joins.",
    )
    buckets: Partitions = Field(
        default=8, description="Number of buckets to spread a key over. For skewed joins."
    )
    share: Annotated[Number, in_range(1, 100, str)] = Field(
        default=10,
        description="With `keys: auto`, the share of the records from which a key is hot, in "
        "percent. For skewed joins.",
    )


class Join(Job):
    """A job that joins two streams by key and time.

    Its rows have all columns of left and those columns of right that left does not have, or those
    of `select`.
    """

    type: Literal["join"] = Field(description="The kind of job. For all jobs.")
    left: Input = Field(description="The left topic, such as orders. For joins.")
    right: Input = Field(description="The right topic, such as payments. For joins.")
    on: Annotated[dict[Column, Column], AfterValidator(_require_non_empty)] = Field(
        description="Columns of left, each with the column of right that it must equal. For joins."
    )
    before: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=0.0,
        description="How long before the time of left the time of right may be. For joins.",
    )
    after: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=3600.0,
        description="How long after the time of left the time of right may be. For joins.",
    )
    kind: Literal["inner", "left"] = Field(
        default="inner",
        description="inner writes pairs only; left also writes the rows of left without a pair, "
        "with nulls for right, once `after` has passed. For finding what is missing.",
    )
    select: Measures = Field(
        default={},
        description="Columns, each with a SQL expression of `left.x` and `right.y`; default all. "
        "For joins.",
    )
    salt: Salt | None = Field(
        default=None,
        description="How hot keys are spread over tasks; default they are not. For skewed joins.",
    )
    to: Output = Field(description="The topic of the results. For readers.")


class Broadcast(Section):
    """A small table, of which every task has a copy.

    It is read from a compacted topic or from Parquet files.
    """

    kind: Literal["broadcast"] = Field(description="The kind of table. For enrichment.")
    topic: TopicName | None = Field(
        default=None,
        description="A compacted topic; the table has the latest value of each key. For tables in "
        "Kafka.",
    )
    path: Text | None = Field(
        default=None,
        description="Path of Parquet files, instead of a topic. For tables in files.",
    )
    fields: dict[Column, Text] = Field(
        default={},
        description="Columns of the topic's JSON values, with their Spark SQL types. For tables in "
        "Kafka.",
    )
    key: Column = Field(
        default="_key",
        description="Column that rows are looked up by; default the key of the record. For tables.",
    )
    refresh: Span = Field(
        default=60.0,
        description="How old the copy may be; it is read again before then. For tables that "
        "change.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if ("topic" in raw) == ("path" in raw):
            yield Problem((), "has no source, or two; give it either topic or path", is_key=True)


class Redis(Section):
    """A large table in Redis, whose rows are looked up when events need them."""

    kind: Literal["redis"] = Field(description="The kind of table. For enrichment.")
    url: Text = Field(
        description="URL of Redis: redis://host:port/db, or rediss:// for TLS. For enrichment."
    )
    password: SecretText | None = Field(
        default=None, description="Password of Redis. For secured servers."
    )
    prefix: Text = Field(
        default="table:",
        description="Prefix of each key in Redis, a different one for each table. For servers with "
        "several tables.",
    )
    fields: dict[Column, Text] = Field(
        description="Columns of the JSON values, with their Spark SQL types. For enrichment."
    )
    batch: Annotated[Number, in_range(1, 100_000, str)] = Field(
        default=2000, description="The most keys of one MGET. For servers with a high latency."
    )
    cache: Annotated[Number, in_range(0, 10**8, str)] = Field(
        default=100_000,
        description="Number of values that a Python worker keeps, the most recently used ones. For "
        "keys that occur often.",
    )
    staleness: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=5.0,
        description="How long a kept value is used; 0s asks Redis in every batch. For tables that "
        "change.",
    )
    negative: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=1.0,
        description="How long a key without a value is remembered, but not longer than "
        "`staleness`. For missing keys.",
    )
    fallback: Text | None = Field(
        default=None,
        description="Your function, as module:function, for keys that Redis does not have: it "
        "takes a list of keys and returns a mapping. For tables that are still being loaded.",
    )


class Enrich(Job):
    """A job that adds columns of a table to events.

    Events for which the table has no row get nulls.
    """

    type: Literal["enrich"] = Field(description="The kind of job. For all jobs.")
    from_: Input = Field(alias="from", description="The topic of the events. For enrichment.")
    on: Column = Field(
        description="Column of the events by which rows of the table are looked up. For enrichment."
    )
    table: Annotated[Broadcast | Redis, Field(discriminator="kind")] = Field(
        description="The table that has the further columns. For enrichment."
    )
    to: Output = Field(description="The topic of the results. For readers.")


class Load(Job):
    """A job that loads a compacted topic into Redis.

    Redis has the latest value of each key; a tombstone deletes the key.
    """

    type: Literal["load"] = Field(description="The kind of job. For all jobs.")
    from_: Input = Field(alias="from", description="The compacted topic. For tables.")
    into: Redis = Field(description="The table to write. For tables.")


class Window(Section):
    """The windows of event time that an aggregate groups by."""

    size: Span = Field(description="Length of a window. For aggregates.")
    slide: Span | None = Field(
        default=None,
        description="Time from the start of one window to the start of the next; default `size`. "
        "For sliding averages.",
    )


class Top(Section):
    """The most frequent values of a column in each window and group."""

    of: Column = Field(description="The column whose values are ranked. For rankings.")
    k: Annotated[Number, in_range(1, 10_000, str)] = Field(
        default=10, description="Number of values. For rankings."
    )


class Distinct(Section):
    """The number of different values of a column in each window and group."""

    of: Column = Field(description="The column whose values are counted. For unique visitors.")
    method: Literal["exact", "approximate"] = Field(
        default="exact",
        description="exact keeps every value until the window ends; approximate keeps a sketch of "
        "fixed size. For unique visitors.",
    )
    error: Annotated[float, Field(ge=0.01, le=0.4)] = Field(
        default=0.05,
        description="Relative standard deviation of `approximate`: a smaller one takes more "
        "memory. For unique visitors.",
    )


class Aggregate(Job):
    """A job that aggregates the events of each window.

    Its rows have `start`, `end`, the columns of `by`, and those of `measures`, or `top` (an array
    of values and counts), or `distinct`.
    """

    type: Literal["aggregate"] = Field(description="The kind of job. For all jobs.")
    from_: Input = Field(alias="from", description="The topic of the events. For aggregates.")
    by: tuple[Column, ...] = Field(
        default=(), description="Columns to group by, besides the window. For aggregates."
    )
    window: Window = Field(description="The windows of event time. For aggregates.")
    measures: Measures = Field(
        default={},
        description="Columns, each with an aggregate, such as `total: sum(amount)`. For "
        "aggregates.",
    )
    top: Top | None = Field(
        default=None, description="The most frequent values, instead of `measures`. For rankings."
    )
    distinct: Distinct | None = Field(
        default=None,
        description="The number of different values, instead of `measures`. For unique visitors.",
    )
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final writes a window once, when it has ended; updates writes it each time "
        "that it changes. For pages.",
    )
    to: Output = Field(description="The topic of the results. For readers.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        kinds = [name for name in ("measures", "top", "distinct") if raw.get(name)]
        if len(kinds) != 1:
            what = "asks for nothing" if not kinds else f"asks for {' and '.join(kinds)}"
            yield Problem((), f"{what}; use one of measures, top and distinct", is_key=True)


class Query(Job):
    """A job that runs a SQL query over topics as tables."""

    type: Literal["query"] = Field(description="The kind of job. For all jobs.")
    tables: Annotated[dict[Column, Input], AfterValidator(_require_non_empty)] = Field(
        description="Topics, by their names in the query. For queries."
    )
    sql: Sql = Field(description="The query, a SELECT. For queries.")
    emit: Literal["final", "updates"] = Field(
        default="final",
        description="final writes an aggregate once, when its window has ended; updates writes it "
        "each time that it changes. For pages.",
    )
    to: Output = Field(description="The topic of the results. For readers.")


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
        description="Where offsets and state are kept, in a directory for each job: a path, or a "
        "URL that Hadoop can read. It must outlive the machine. For operators.",
    )
    spark: Spark = Field(
        default=Spark(), description="The Spark cluster that runs the jobs. For operators."
    )
    progress: Progress = Field(
        default=Progress(), description="Where jobs report their progress. For operators."
    )
    jobs: tuple[AnyJob, ...] = Field(default=(), description="The jobs to run. For data teams.")

    def find_job(self, name: str) -> Job | None:
        return next((job for job in self.jobs if job.name == name), None)


__all__ = [
    "Aggregate", "AnyJob", "Broadcast", "Count", "Distinct", "Enrich", "Input", "Job", "JobName",
    "Join", "Load", "Output", "Pipelines", "Query", "Redis", "Salt", "Sessions", "Spark", "Top",
    "Window",
]  # fmt: skip
