"""Read topics and write them exactly once in a program of your own, with PySpark.

    spark = SparkSession.builder.config(map=session_conf()).getOrCreate()
    clicks = read_topic(spark, "clicks", servers="localhost:9092", fields={"user": "string"})
    query = write_exactly_once(
        clicks.rows.where("user IS NOT NULL"), "visits", servers="localhost:9092", key=["user"],
        checkpoint="/state", name="visits",
    )
    query.awaitTermination()

`gateway.pipeline` exports these functions. They check their arguments as the settings of jobs are
checked, and then do what the runner does for a job: `read_topic` is `inputs.source.read_stream`,
and `write_exactly_once` is `run.query.start_rows`, of a `Program` in place of a job from YAML.

A DataFrame only carries Spark's plan. So each stream has a label in its plan, by which
`write_exactly_once` finds here what `read_topic` was told: `_streams` grows with each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from gateway.config import Kafka, Settings
from gateway.config.sections.job import Input, Output, Progress, State
from gateway.config.sections.pipelines import Pipelines
from gateway.config.sections.security import SchemaRegistry
from gateway.config.source.problems import format_loc
from gateway.config.types.section import Section
from gateway.config.types.substitution import suggest
from gateway.errors import ConfigError, PipelineError
from gateway.extras import require_extra
from gateway.pipeline.checkpoint.job_checkpoint import prepare_checkpoint
from gateway.pipeline.checkpoint.maintenance import hold_lease
from gateway.pipeline.progress.listener import report_progress
from gateway.pipeline.run.runner import check_input_topics, ensure_output_topics
from gateway.pipeline.spark.session import jars, prepare_program_session, session_conf

from .check import check_input, iter_side_topics
from .clusters import build_client_config
from .inputs import schemas, source
from .job_settings import Program
from .reports import Reports
from .run import query as query_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TopicStream", "jars", "read_topic", "session_conf", "write_exactly_once"]

S = TypeVar("S", bound=Section)

_OUTPUT_NAME = "the output"
"""The name of the output's cluster and registry. Those of streams have the names of the streams."""


@dataclass(frozen=True, eq=False, slots=True)
class TopicStream:
    """A topic as a stream.

    Attributes:
        rows: The columns of the values, and `_key` (binary), `_topic`, `_partition`, `_offset` and
            `_timestamp`, with a watermark. Invalid records and tombstones are not among them.
        name: The name of the stream in progress and in dead letters.
    """

    rows: DataFrame
    name: str
    _input: Input
    _kafka: Kafka
    _catalogs: Mapping[str, SchemaRegistry]
    _label: str

    @property
    def invalid(self) -> DataFrame:
        """The invalid records as another stream.

        It has Kafka's columns (`key`, `value`, `headers`, `topic`, `partition`, `offset`,
        `timestamp`), and `_reason`, a text. Records are read again for it, by the query that uses
        it. `write_exactly_once` writes them to `<topic>.dlq` without it.
        """
        spark = self.rows.sparkSession
        raw = source.load_stream(spark, self._input, self._kafka, self._label, has_headers=True)
        return source.select_invalid_records(raw, self._input, self._catalogs)


_streams: dict[str, TopicStream] = {}  # by the label in the plan


def read_topic(
    spark: SparkSession,
    topic: str,
    *,
    servers: str | Kafka,
    fields: Mapping[str, str] | None = None,
    json_names: Mapping[str, str] | None = None,
    model: str = "json",
    registry: str | SchemaRegistry | None = None,
    time: str = "_timestamp",
    watermark: str = "10m",
    start: Literal["earliest", "latest"] = "earliest",
    max_records: int | None = None,
    on_invalid: Literal["dead-letter", "skip", "fail"] = "dead-letter",
    on_data_loss: Literal["gap", "fail"] = "gap",
    headers: bool = False,
    name: str | None = None,
) -> TopicStream:
    """Read a topic as a stream with typed columns, as the jobs do.

    Args:
        servers: `host:port` of some brokers, separated by commas; or a `gateway.config.Kafka`,
            of `Kafka.model_validate`, which may have `security`.
        fields: Columns and their Spark SQL types; `timestamp` reads ISO 8601 and `timestamp_ms`
            milliseconds since 1970. By default all fields of the schema; JSON has no schema.
        json_names: Names in the JSON of columns that are named otherwise there.
        model: `json`, `avro`, `protobuf`, `jsonschema`, or `string` for one column, `value`.
        registry: The schema registry of a model with a schema: its URL, or a `SchemaRegistry`.
        time: The column with the event time; by default the timestamp of the record.
        watermark: How far behind the newest event time an event may arrive, with a unit: `10m`.
        start: Where a query without a checkpoint begins.
        max_records: The most records of one batch; by default there is no limit.
        on_invalid: What `write_exactly_once` does with records that cannot be decoded:
            `dead-letter` writes them to `<topic>.dlq`, `fail` ends the query.
        on_data_loss: What it does if retention deleted records before they were read: `gap` writes
            a record to `<output>.gaps`, `fail` ends the query.
        headers: Whether there is a column `_headers`, an array of `key` and `value`.
        name: The name of the stream; by default the topic. A query that reads one topic by two
            calls needs two names (else Spark says DUPLICATED_METRICS_NAME), which must stay the
            same from start to start.

    Raises:
        ConfigError: An argument is wrong.
        ExtraMissing: A library is not installed.
        FormatError: The schema is missing or cannot be used.
        PipelineError: The session lacks a setting or a jar; the message has the line to add.
        RegistryUnavailable: The registry does not answer.
    """
    require_extra("pipeline", "read_topic")
    name = name or topic
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise ConfigError([f"name: '{name}' has other characters than letters, digits, _, . and -"])
    catalogs = {} if registry is None else {name: _parse_registry(registry)}
    value = {"model": model, "fields": fields, "jsonNames": json_names}
    input = _parse(
        Input,
        topic=topic,
        kafka=name,
        value=_drop_none({**value, "catalog": None if registry is None else name}),
        time=time,
        watermark=watermark,
        start=start,
        maxRecords=max_records,
        onInvalid=on_invalid,
        onDataLoss=on_data_loss,
    )
    kafka = _parse_servers(servers)
    _raise_for_problems(input)
    prepare_program_session(spark)
    input = schemas.resolve_fields(input, catalogs)
    _raise_for_problems(input)
    label = source.create_label(name)
    table = source.read_stream(
        spark, input, kafka, catalogs, label=label, metrics_name=name, has_headers=headers
    )
    rows = source.observe_rows(name, table)
    _streams[label] = TopicStream(rows, name, input, kafka, catalogs, label)
    return _streams[label]


def write_exactly_once(
    rows: DataFrame,
    topic: str,
    *,
    servers: str | Kafka,
    checkpoint: str,
    name: str,
    key: Sequence[str] = (),
    model: str = "json",
    registry: str | SchemaRegistry | None = None,
    output_mode: Literal["append", "update"] = "append",
    trigger: str = "0s",
    writers: int = 2,
    transaction_timeout: str = "60s",
    partitions: int | None = None,
    progress_topic: str | None = None,
    metrics_port: int | None = None,
    fresh: bool = False,
) -> StreamingQuery:
    """Start a query that writes rows to a topic, each once for readers of committed records.

    The rows may be made by anything that Spark can do with the streams of `read_topic`: SQL, joins,
    windows, `transformWithState`. A batch that is repeated must give the same rows and keys: they
    must not depend on random numbers, clocks, services that change their answers, or the order in
    which records of different partitions come.

    `awaitTermination` and `stop` of the query also wait until dead letters are written; the first
    raises the error if they cannot be. A query that failed goes on with the next start, from its
    checkpoint.

    Args:
        topic: The topic to write; it is created if it does not exist.
        servers: As of `read_topic`.
        checkpoint: The directory of checkpoints, a path or a URL that Hadoop can read. That of the
            query is `<checkpoint>/<name>/v<N>`.
        name: The name of the query: lowercase letters, digits and `-`.
        key: The columns of the record's key: one is written as text, several as a JSON array.
        model: The encoding of the values, as of `read_topic`, but for `string`.
        registry: As of `read_topic`.
        trigger: The time from the start of one batch to the start of the next, with a unit: `1s`;
            or `available-now`, which ends the query once it has read everything.
        writers: The number of transactions in parallel.
        transaction_timeout: How long Kafka waits before it aborts a transaction whose producer has
            crashed, with a unit. Readers of committed records wait as long.
        partitions: The number of partitions if the topic is created; by default the broker's.
        progress_topic: A topic for a record of progress after each batch.
        metrics_port: A port of this machine for Prometheus; 0 binds a free one.
        fresh: Begin a new checkpoint, at the `start` of the streams. Messages call it `--fresh`.

    Raises:
        CheckpointRefused: The checkpoint is of another query, or damaged.
        ConfigError: An argument is wrong.
        ExtraMissing: A library is not installed.
        PipelineError: The session lacks a setting or a jar, the rows have a key that may change or
            a stream that is not of `read_topic`, a topic does not exist, or another process runs
            the query.
        PipelineUnavailable: Kafka does not answer.
    """
    require_extra("pipeline", "write_exactly_once")
    spark = rows.sparkSession
    prepare_program_session(spark)
    if output_mode not in ("append", "update"):
        raise ConfigError([f"output_mode: it is '{output_mode}'; write append or update"])
    streams = _find_streams(rows)
    output = _parse(
        Output,
        topic=topic,
        kafka=_OUTPUT_NAME,
        key=tuple(key),
        model=model,
        catalog=None if registry is None else _OUTPUT_NAME,
        writers=writers,
        transactionTimeout=transaction_timeout,
        partitions=partitions,
    )
    for column in output.key:
        if column.lower() not in map(str.lower, rows.columns):
            raise ConfigError(
                [f"key: there is no column '{column}'; {suggest(column, rows.columns)}"]
            )
    inputs = {stream.name: stream._input for stream in streams}
    conf = spark.conf
    state = State(
        partitions=int(conf.get("spark.sql.shuffle.partitions") or 0),
        retain=int(conf.get("spark.sql.streaming.minBatchesToRetain") or 0),
    )
    job = _parse(
        Program,
        name=name,
        tables=inputs,
        to=output,
        emit="updates" if output_mode == "update" else "final",
        trigger=trigger,
        state=state,
    )
    if job.trigger == "realtime":
        raise ConfigError(["trigger: realtime cannot write exactly once; write such as 0s"])
    if topic in iter_side_topics(job, output):
        raise ConfigError([f"topic: '{topic}' gets others than rows; write to another"])
    settings = Settings.model_construct(
        kafka={stream.name: stream._kafka for stream in streams}
        | {_OUTPUT_NAME: _parse_servers(servers)},
        catalogs={name: each for stream in streams for name, each in stream._catalogs.items()}
        | ({} if registry is None else {_OUTPUT_NAME: _parse_registry(registry)}),
    )
    progress = _parse(Progress, listen=metrics_port, topic=progress_topic)
    pipelines = Pipelines.model_construct(checkpoints=checkpoint, progress=progress)
    ensure_output_topics(settings, job)
    check_input_topics(settings, job)
    with ExitStack() as stack:
        stack.enter_context(hold_lease(f"{checkpoint.rstrip('/')}/{name}", name))
        context = query_module.QueryContext(
            spark, job, settings, prepare_checkpoint(checkpoint, job, spark, fresh=fresh), Reports()
        )
        stack.callback(context.close)
        client_config = build_client_config(settings.clusters[_OUTPUT_NAME])
        reporter = stack.enter_context(
            report_progress(pipelines, [job], client_config, context.reports)
        )
        stack.callback(reporter.watch_session(spark, job.name))
        tables = {stream.name: stream.rows for stream in streams}
        query = query_module.start_rows(context, rows, inputs, tables)

        from gateway.pipeline.run.watched_query import WatchedQuery

        return WatchedQuery(query, context, stack.pop_all())


def _find_streams(rows: DataFrame) -> list[TopicStream]:
    """Return the streams that rows are made of, each once."""
    found: dict[str, TopicStream] = {}
    for label in source.list_source_labels(rows):
        stream = _streams.get(label or "")
        if stream is None:
            raise PipelineError(
                "the rows read a stream that is not of read_topic in this process, so what a "
                "repeated batch reads is not known; read a topic by read_topic"
            )
        found[stream.name] = stream  # Spark has refused two of one name, by their metrics
    if not found:
        raise PipelineError("the rows are no stream; make them of the rows of read_topic")
    return list(found.values())


def _raise_for_problems(input: Input) -> None:
    problems = [f"{format_loc(each.loc)}: {each.message}" for each in check_input(input)]
    if problems:
        raise ConfigError([problem.removeprefix("value.") for problem in problems])


def _parse_servers(servers: str | Kafka) -> Kafka:
    if isinstance(servers, Kafka):
        return servers
    return _parse(Kafka, servers=[server.strip() for server in servers.split(",")])


def _parse_registry(registry: str | SchemaRegistry) -> SchemaRegistry:
    if isinstance(registry, SchemaRegistry):
        return registry
    return _parse(SchemaRegistry, type="schema-registry", url=registry)


def _parse(section: type[S], **options: Any) -> S:
    """Return a section of the settings, whose options have the names of YAML; None is left out."""
    try:
        return section.model_validate(_drop_none(options))
    except ValidationError as error:
        problems = [f"{format_loc(item['loc'])}: {item['msg']}" for item in error.errors()]
        raise ConfigError([problem.removeprefix("value.") for problem in problems]) from None


def _drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
