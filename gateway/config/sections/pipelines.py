"""The section `pipelines`: Spark jobs from topics to topics, each of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
)

from gateway.config.types.discriminator import serialize_section, validate_by_type
from gateway.config.types.fields import Duration, Number, SecretText, Text, TopicName, in_range
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
        raise create_value_error("is empty; give it one at least")
    return value


Measures: TypeAlias = dict[Column, Text]
"""Columns and the aggregates they hold, such as `total: sum(amount)`."""


class Sessions(Job):
    """What each key did until it paused. Columns: those of `by`, `start`, `end`, `events`, those of
    `measures`, and `state` (`open`, `closed`; `merged`: its events are in another one now) where
    updates are emitted."""

    type: Literal["sessions"] = Field(description="The kind of job. For all.")
    from_: Input = Field(alias="from", description="The events. For sessions.")
    by: Annotated[tuple[Column, ...], AfterValidator(_require_non_empty)] = Field(
        description="Whose sessions. For sessions."
    )
    gap: Span = Field(
        default=1800.0, description="A pause of so long ends a session. For sessions."
    )
    max_length: Span | None = Field(
        default=None,
        description="Ends a session after so long even if it goes on. For users who never pause.",
    )
    emit: Literal["closed", "updates"] = Field(
        default="closed", description="Ended ones only, or also open ones as they grow. For pages."
    )
    measures: Measures = Field(default={}, description="Further columns. For sessions.")
    to: Output = Field(description="Where results go. For readers.")


class Salt(Section):
    """Hot keys are spread over several tasks."""

    keys: Literal["auto", "all"] | tuple[Text, ...] = Field(
        default="auto", description="Which: those found hot, all, or these. For skewed joins."
    )
    buckets: Partitions = Field(default=8, description="Over how many. For skewed joins.")
    share: Annotated[Number, in_range(1, 100, str)] = Field(
        default=10, description="Percent of the records that make a key hot. For skewed joins."
    )


class Join(Job):
    """Two streams, by key and time. Columns: all of left, and those of right that left lacks, or
    those of `select`."""

    type: Literal["join"] = Field(description="The kind of job. For all.")
    left: Input = Field(description="Such as orders. For joins.")
    right: Input = Field(description="Such as payments. For joins.")
    on: Annotated[dict[Column, Column], AfterValidator(_require_non_empty)] = Field(
        description="Columns of left and what they equal of right. For joins."
    )
    before: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=0.0, description="How long before left a right one may be. For joins."
    )
    after: Annotated[Duration, in_range(0, 366 * 86_400)] = Field(
        default=3600.0, description="How long after left a right one may be. For joins."
    )
    kind: Literal["inner", "left"] = Field(
        default="inner",
        description="Pairs only, or also those of left that stay alone (right's columns are null, "
        "told after the bound). For what is missing.",
    )
    select: Measures = Field(
        default={},
        description="Columns and SQL of `left.x` and `right.y`; default all. For joins.",
    )
    salt: Salt | None = Field(default=None, description="Spread hot keys. For skewed joins.")
    to: Output = Field(description="Where results go. For readers.")


class Broadcast(Section):
    """A small table that every task holds."""

    kind: Literal["broadcast"] = Field(description="How it is held. For enrichment.")
    topic: TopicName | None = Field(
        default=None, description="A compacted topic, its latest value of each key. For tables."
    )
    path: Text | None = Field(
        default=None, description="Parquet files, in place of a topic. For tables."
    )
    fields: dict[Column, Text] = Field(
        default={}, description="Columns of the topic's JSON. For tables."
    )
    key: Column = Field(default="_key", description="What it is looked up by. For tables.")
    refresh: Span = Field(default=60.0, description="How old it may be. For tables that change.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if ("topic" in raw) == ("path" in raw):
            yield Problem((), "has no source, or two; give it either topic or path", is_key=True)


class Redis(Section):
    """A large table that is looked up as it is needed."""

    kind: Literal["redis"] = Field(description="How it is held. For enrichment.")
    url: Text = Field(description="redis://host:port/db, or rediss:// for TLS. For enrichment.")
    password: SecretText | None = Field(default=None, description="Its password. For secured ones.")
    prefix: Text = Field(default="table:", description="Before each key. For shared servers.")
    fields: dict[Column, Text] = Field(description="Columns of its JSON values. For enrichment.")
    batch: Annotated[Number, in_range(1, 100_000, str)] = Field(
        default=2000, description="Keys of one MGET. For distant servers."
    )
    cache: Annotated[Number, in_range(0, 10**8, str)] = Field(
        default=100_000, description="Values a task keeps, the latest used. For hot keys."
    )
    staleness: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=5.0, description="How old a value may be when it is used. For changing tables."
    )
    negative: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=1.0, description="How long it is kept that a key has none. For missing keys."
    )
    fallback: Text | None = Field(
        default=None,
        description="module:function of yours that is asked for keys Redis lacks, with a list, and "
        "gives a mapping. For tables still loading.",
    )


class Enrich(Job):
    """Events with columns of a table; those without a row have nulls."""

    type: Literal["enrich"] = Field(description="The kind of job. For all.")
    from_: Input = Field(alias="from", description="The events. For enrichment.")
    on: Column = Field(description="The column that the table is looked up by. For enrichment.")
    table: Annotated[Broadcast | Redis, Field(discriminator="kind")] = Field(
        description="Where the further columns are. For enrichment."
    )
    to: Output = Field(description="Where results go. For readers.")


class Load(Job):
    """A compacted topic into Redis: the latest value of each key, tombstones deleted."""

    type: Literal["load"] = Field(description="The kind of job. For all.")
    from_: Input = Field(alias="from", description="The compacted topic. For tables.")
    into: Redis = Field(description="Where to. For tables.")


class Window(Section):
    size: Span = Field(description="Its length. For aggregates.")
    slide: Span | None = Field(
        default=None, description="How often one begins; default its size. For sliding averages."
    )


class Top(Section):
    """The most frequent values of a column in each window."""

    of: Column = Field(description="The column. For rankings.")
    k: Annotated[Number, in_range(1, 10_000, str)] = Field(
        default=10, description="How many. For rankings."
    )


class Distinct(Section):
    """How many different values of a column each window and key has."""

    of: Column = Field(description="The column. For unique visitors.")
    method: Literal["exact", "approximate"] = Field(
        default="exact",
        description="exact keeps every value until the window ends; approximate a sketch. For "
        "unique visitors.",
    )
    error: Annotated[float, Field(ge=0.01, le=0.4)] = Field(
        default=0.05, description="Relative standard deviation of approximate. For its size."
    )


class Aggregate(Job):
    """Numbers of each window. Columns: `start`, `end`, those of `by`, those of `measures`, or
    `top` (an array of value and count), or `distinct`."""

    type: Literal["aggregate"] = Field(description="The kind of job. For all.")
    from_: Input = Field(alias="from", description="The events. For aggregates.")
    by: tuple[Column, ...] = Field(default=(), description="Of each what. For aggregates.")
    window: Window = Field(description="Of which time. For aggregates.")
    measures: Measures = Field(default={}, description="Columns and aggregates. For aggregates.")
    top: Top | None = Field(default=None, description="Rather the top k. For rankings.")
    distinct: Distinct | None = Field(
        default=None, description="Rather the count of distinct values. For unique visitors."
    )
    emit: Literal["final", "updates"] = Field(
        default="final", description="Once when a window ends, or whenever it grows. For pages."
    )
    to: Output = Field(description="Where results go. For readers.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        asked = [name for name in ("measures", "top", "distinct") if raw.get(name)]
        if len(asked) != 1:
            what = "asks for nothing" if not asked else f"asks for {' and '.join(asked)}"
            yield Problem((), f"{what}; use one of measures, top and distinct", is_key=True)


class Query(Job):
    """SQL over topics as tables."""

    type: Literal["query"] = Field(description="The kind of job. For all.")
    tables: Annotated[dict[Column, Input], AfterValidator(_require_non_empty)] = Field(
        description="Their names in the query. For queries."
    )
    sql: Sql = Field(description="A SELECT. For queries.")
    emit: Literal["final", "updates"] = Field(
        default="final", description="Aggregates once, or whenever they change. For pages."
    )
    to: Output = Field(description="Where results go. For readers.")


_JOB_TYPES: Mapping[str, type[Job]] = {
    "sessions": Sessions,
    "join": Join,
    "enrich": Enrich,
    "load": Load,
    "aggregate": Aggregate,
    "query": Query,
}


def _validate_job(value: object, info: ValidationInfo) -> Section:
    return validate_by_type(value, info, _JOB_TYPES, "job")


_JobUnion = Sessions | Join | Enrich | Load | Aggregate | Query

AnyJob: TypeAlias = Annotated[
    _JobUnion,
    PlainValidator(
        _validate_job, json_schema_input_type=Annotated[_JobUnion, Field(discriminator="type")]
    ),
    PlainSerializer(serialize_section, return_type=Any),
]


class Pipelines(Section):
    checkpoints: Text = Field(
        default="checkpoints",
        description="Where offsets and state are kept, a directory of each job: a path, or a URL "
        "that Hadoop reads. It must survive the machine. For operators.",
    )
    spark: Spark = Field(default=Spark(), description="Where jobs run. For operators.")
    progress: Progress = Field(
        default=Progress(), description="Where they tell how they are. For operators."
    )
    jobs: tuple[AnyJob, ...] = Field(default=(), description="What is done. For data teams.")

    def find_job(self, name: str) -> Job | None:
        """By its name."""
        return next((job for job in self.jobs if job.name == name), None)


__all__ = [
    "Aggregate", "AnyJob", "Broadcast", "Count", "Distinct", "Enrich", "Input", "Job", "JobName",
    "Join", "Load", "Output", "Pipelines", "Query", "Redis", "Salt", "Sessions", "Spark", "Top",
    "Window",
]  # fmt: skip
