"""Start a job as a query of Spark: read its inputs, call its module, and write its output.

Jobs write in one of three ways. Rows of real-time mode, and those with `at-least-once` and without
side outputs, go to Spark's Kafka sink. All other rows go through a function for each batch
(`foreachBatch`): it calls `ExactlyOnceOutput`, or Spark's batch sink with `at-least-once`. `load`
has its own function, which writes into Redis. Start reading in `start_query` and `_create_writer`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.config import Kafka
from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job, Output
from gateway.config.sections.settings import Settings
from gateway.config.types.formats import needs_catalog
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.checkpoint.job_checkpoint import JobCheckpoint, QueryShape, update_definition
from gateway.pipeline.clusters import (
    build_client_config,
    build_spark_options,
    fetch_cluster_id,
    fetch_max_message_bytes,
    find_cluster,
)
from gateway.pipeline.exactly_once import ExactlyOnceOutput, gaps
from gateway.pipeline.exactly_once.input_topics import InputTopics, verify_topics
from gateway.pipeline.exactly_once.ledger import verify_ledger
from gateway.pipeline.exactly_once.producers import drop_query_producers
from gateway.pipeline.exactly_once.side_outputs import SideOutputs, create_batch_counter
from gateway.pipeline.failures import clear_frames
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.source import find_sources, read_stream
from gateway.pipeline.job_settings import (
    Program,
    get_inputs,
    get_key_columns,
    get_output,
    has_side_outputs,
    list_read_topics,
    resolve_inputs,
    retires_itself,
)
from gateway.pipeline.jobs import enrich, import_job_module
from gateway.pipeline.jobs.load import BatchLoader
from gateway.pipeline.jobs.query import keeps_state
from gateway.pipeline.reports import Reports
from gateway.pipeline.spark.internals import close_idle_connections, reset_metrics, retire_query

from .output import compute_key_digests, encode_rows, verify_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REALTIME_CHECKPOINT_INTERVAL = "5 minutes"
"""The time between two checkpoints in real-time mode. A restart repeats what came since the last
one."""

_BUFFER_BYTES = 32 * 1024**2

BatchFunction = Callable[["DataFrame", int], None]
"""Writes a batch: its rows, and its number."""


@dataclass(slots=True)
class QueryContext:
    """One run of a job's query: what its parts share, and the clients of Kafka that they open.

    The runner creates one for each start of the query, and closes it before the next: Spark keeps
    references to a query's function until the JVM collects the query, which may take half an hour.

    Attributes:
        spark: A session that only this job uses.
        stop_event: Once it is set, the query is retired at the end of its batch (see
            `retires_itself`).
        replay_state: Run only the batch that was begun last, to restore its state, and discard its
            rows, which were written before (see `checkpoint.repair`).
        topics: The topics of the inputs, and of a broadcast table, as they are now.
        side_outputs: Those of the running query, if it has any.
    """

    spark: SparkSession
    job: Job
    settings: Settings
    job_checkpoint: JobCheckpoint
    reports: Reports = field(default_factory=Reports)
    stop_event: threading.Event = field(default_factory=threading.Event)
    replay_state: bool = False
    topics: InputTopics = field(init=False)
    side_outputs: SideOutputs | None = None

    def __post_init__(self) -> None:
        """Ask Kafka for the topics; raise TopicMissing if one does not exist."""
        clusters, read = self.settings.clusters, list_read_topics(self.job)
        self.topics = InputTopics(
            {
                name: (build_client_config(find_cluster(clusters, kafka)), topic)
                for name, (kafka, topic) in read.items()
            },
            tables=read.keys() - get_inputs(self.job).keys(),
        )

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.job_checkpoint.location, self.spark)

    def find_query(self) -> Any:
        """Return the StreamingQuery while it runs, else None."""
        return self.spark.streams.get(self.job_checkpoint.query_id)

    def close(self) -> None:
        """Close the clients of Kafka, after the end of the query. It may be called again.

        Spark's own consumers of the inputs stay in its cache until they are unused for
        `spark.kafka.consumer.cache.timeout` (5 minutes). For an input with one partition, they have
        eight file descriptors.
        """
        self.topics.close()
        if self.side_outputs is not None:
            self.side_outputs.close()
        drop_query_producers(self.job_checkpoint.query_id)


def start_query(context: QueryContext) -> Any:
    """Start a job and return its StreamingQuery.

    Raises:
        PipelineError: A topic was recreated since the checkpoint's batches read it.
    """
    spark, job, settings = context.spark, context.job, context.settings
    close_idle_connections(spark)
    # State that is restored without records that retention has deleted since would be wrong.
    restoring = {"on_data_loss": "fail"} if context.replay_state else {}
    inputs = {
        name: schemas.resolve_fields(each, settings.catalogs)
        for name, each in resolve_inputs(job).items()
    }
    tables = {
        name: read_stream(
            spark,
            each.model_copy(update=restoring),
            find_cluster(settings.clusters, each.kafka),
            settings.catalogs,
            label=name,
            metrics_name="" if job.trigger == "realtime" else name,
            has_event_time=not isinstance(job, config.Load),
        )
        for name, each in inputs.items()
    }
    verify_topics(context.checkpoint.files, context.topics.topics)
    return _start_writer(context, _create_writer(context, inputs, tables))


def start_rows(
    context: QueryContext,
    rows: DataFrame,
    inputs: Mapping[str, Input],
    tables: Mapping[str, DataFrame],
) -> Any:
    """Start to write the rows of a `Program` and return the StreamingQuery.

    Args:
        inputs: Those that the rows are made of, as of `resolve_fields`.
        tables: The inputs as `read_stream` has returned them.

    Raises:
        PipelineError: As of `start_query`.
    """
    assert isinstance(context.job, Program)
    close_idle_connections(context.spark)
    verify_topics(context.checkpoint.files, context.topics.topics)
    mode = "update" if context.job.emit == "updates" else "append"
    return _start_writer(context, _create_row_writer(context, inputs, tables, rows, mode))


def _start_writer(context: QueryContext, writer: Any) -> Any:
    job = context.job
    writer = writer.queryName(job.name)
    writer = writer.option("checkpointLocation", context.job_checkpoint.location)
    query = writer.trigger(
        **({"once": True} if context.replay_state else _build_trigger(job))
    ).start()
    context.reports.register_run(str(query.runId), job.name)
    return query


def _build_trigger(job: Job) -> dict[str, Any]:
    if job.trigger == "realtime":
        return {"realTime": REALTIME_CHECKPOINT_INTERVAL}
    if job.trigger == "available-now":
        return {"availableNow": True}
    assert isinstance(job.trigger, float)
    return {"processingTime": f"{job.trigger * 1000:.0f} milliseconds"}


def _create_writer(
    context: QueryContext, inputs: Mapping[str, Input], tables: Mapping[str, DataFrame]
) -> Any:
    """Return the DataStreamWriter of a job. The module's docstring lists its kinds."""
    job = context.job
    module = import_job_module(job)
    mode = module.get_output_mode(job)
    if isinstance(job, config.Load):
        _log_gaps(context, find_sources(tables["from"]))
        query_id, is_first = context.job_checkpoint.query_id, context.checkpoint.is_first()
        loader = BatchLoader(job, query_id, is_first=is_first)
        return _write_each_batch(context, tables["from"], mode, loader)
    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        verify_key(job, tables["from"], tables)
        write_batch = _create_batch_function(context, inputs, tables, tables["from"])
        batch = _create_join_function(context, job, write_batch)
        return _write_each_batch(context, tables["from"], mode, batch)
    hot_keys = (context.job_checkpoint.hot_keys,) if isinstance(job, config.Join) else ()
    rows = module.build(job, tables, *hot_keys)
    return _create_row_writer(context, inputs, tables, rows, mode)


def _create_row_writer(
    context: QueryContext,
    inputs: Mapping[str, Input],
    tables: Mapping[str, DataFrame],
    rows: DataFrame,
    mode: str,
) -> Any:
    """Return the DataStreamWriter of the rows that a job has computed of its tables."""
    job, settings, to = context.job, context.settings, get_output(context.job)
    assert to is not None
    verify_key(job, rows, tables)
    if isinstance(job, (config.Query, Program)):
        _update_query_definition(context, job, rows)
    encoded = encode_rows(rows, to, get_key_columns(job), settings.catalogs)
    if not (context.replay_state or retires_itself(job)):
        _log_gaps(context, find_sources(encoded))
        options = build_sink_options(to, find_cluster(settings.clusters, to.kafka))
        sink = encoded.writeStream.format("kafka").options(**options)
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    batch = _create_batch_function(context, inputs, tables, encoded)
    return _write_each_batch(context, encoded, mode, batch)


def _write_each_batch(
    context: QueryContext, rows: DataFrame, mode: str, batch: BatchFunction
) -> Any:
    to = get_output(context.job)
    is_exactly_once = to is not None and to.guarantee == "exactly-once"

    def run_batch(part: DataFrame, epoch: int) -> None:
        try:
            if context.replay_state:
                batch(part, epoch)
            else:
                context.topics.check()
                batch(part, epoch)
                # With exactly-once, the writers check before they commit.
                if not is_exactly_once:
                    context.topics.check()
        except Exception as error:
            clear_frames(error)  # pyspark references the error as long as this function
            raise
        if context.stop_event.is_set():
            retire_query(context.find_query())

    return rows.writeStream.outputMode(mode).foreachBatch(run_batch)


def _update_query_definition(
    context: QueryContext, job: config.Query | Program, rows: DataFrame
) -> None:
    """Store what only Spark's plan of a query says; `check` runs without Spark."""
    stateful = keeps_state(rows)
    if stateful and job.trigger == "realtime":
        problem = f"job {job.name} keeps state, which real-time mode does not support"
        raise PipelineError(f"{problem}; write a trigger such as 0s")
    table_order = find_sources(rows).lines
    if unread := sorted(get_inputs(job).keys() - table_order):
        raise PipelineError(
            f"job {job.name}: tables.{unread[0]}: the query does not read it; remove it, or name "
            "it in FROM"
        )
    shape = QueryShape(stateful, table_order)
    update_definition(context.job_checkpoint, job, shape, context.spark)


def _create_join_function(
    context: QueryContext, job: config.Enrich, write_batch: BatchFunction
) -> BatchFunction:
    settings = context.settings
    kafka_options = build_spark_options(find_cluster(settings.clusters, job.from_.kafka))
    table = enrich.create_batch_table(job, context.spark, kafka_options, context.reports)
    assert table is not None

    def join_batch(events: DataFrame, epoch: int) -> None:
        rows = enrich.build(job, {"from": events, enrich.TABLE_INPUT: table.get_current()})
        write_batch(encode_rows(rows, job.to, get_key_columns(job), settings.catalogs), epoch)

    return join_batch


def _discard_rows(rows: DataFrame, _: int) -> None:
    # The rows must be computed, because that is what restores the state.
    rows.write.format("noop").mode("overwrite").save()


def _create_batch_function(
    context: QueryContext,
    inputs: Mapping[str, Input],
    tables: Mapping[str, DataFrame],
    stream: DataFrame,
) -> BatchFunction:
    """Return the function that writes each batch of encoded rows; `stream` gives the batches."""
    if context.replay_state:
        return _discard_rows
    job, settings, output = context.job, context.settings, get_output(context.job)
    assert output is not None
    sources, key_digests = find_sources(stream), compute_key_digests(job, tables)
    kafka = find_cluster(settings.clusters, output.kafka)
    is_exactly_once = output.guarantee == "exactly-once"
    exactly_once_output = ExactlyOnceOutput(
        context.job_checkpoint.query_id,
        output,
        build_client_config(kafka),
        checkpoint=context.checkpoint,
        job=build_owner_name(job, settings) if is_exactly_once else "",
        read_topics=context.topics.read_topics,
        settings=key_digests,
        stop_event=context.stop_event,
        reports=context.reports,
        on_repeat=lambda: reset_metrics(context.find_query()),
    )
    if is_exactly_once or has_side_outputs(job):
        verify_ledger(context.checkpoint, output, build_client_config(kafka))
        ensure_main = exactly_once_output.ensure_ownership
        context.side_outputs = _create_side_outputs(context, output, inputs, sources, ensure_main)
    else:
        _log_gaps(context, sources)
    side_outputs = context.side_outputs
    if not is_exactly_once:
        options = build_sink_options(output, kafka)

        def write_at_least_once(rows: DataFrame, epoch: int) -> None:
            if side_outputs is not None:  # each of their records is written once
                exactly_once_output.prepare(epoch)
            with nullcontext() if side_outputs is None else side_outputs.enter_batch(epoch):
                rows.write.format("kafka").options(**options).save()

        return write_at_least_once

    assert side_outputs is not None

    def write_exactly_once(rows: DataFrame, epoch: int) -> None:
        # First, so that a refused checkpoint writes no side outputs either.
        exactly_once_output.prepare(epoch)
        with side_outputs.enter_batch(epoch):
            exactly_once_output(rows, epoch)

    return write_exactly_once


def build_owner_name(job: Job, settings: Settings) -> str:
    """Return a name that distinguishes the jobs of an output: the job's, with a digest of inputs.

    Several gateways, each with its own cluster, may have jobs of the same name that write to the
    same topic. A job that moves may reach its clusters by other servers, and is the same job.
    """
    sources = sorted(
        [
            fetch_cluster_id(build_client_config(find_cluster(settings.clusters, each.kafka))),
            each.topic,
        ]
        for each in resolve_inputs(job).values()
    )
    digest = hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]
    return f"{job.name}|{digest}"


def _create_side_outputs(
    context: QueryContext,
    output: Output,
    inputs: Mapping[str, Input],
    sources: Sources,
    ensure_main: Callable[[], None],
) -> SideOutputs:
    job = context.job
    # Which rows of a program are late is only known to Spark, which counts them.
    module: Any = None if isinstance(job, Program) else import_job_module(job)
    is_join = isinstance(job, config.Join)
    return SideOutputs(
        context.spark,
        job.name,
        context.job_checkpoint.query_id,
        inputs,
        output,
        context.settings,
        context.checkpoint,
        sources=sources,
        late_filters={
            name: partial(module.select_late, job, **({"side": name} if is_join else {}))
            for name in inputs
            if hasattr(module, "select_late")
        },
        get_counts=create_batch_counter(context.find_query, inputs),
        reports=context.reports,
        retained_batches=job.state.retain,
        read_topics=context.topics.read_topics,
        ensure_main=ensure_main,
    )


def _log_gaps(context: QueryContext, sources: Sources) -> None:
    """Log the gaps of a job that writes no gap records, as it starts."""
    job, checkpoint, reports = context.job, context.checkpoint, context.reports
    for name, job_input in resolve_inputs(job).items():
        if job_input.on_data_loss == "gap":  # else Spark refuses to go on
            positions = checkpoint.read_positions(sources, name)
            cluster = find_cluster(context.settings.clusters, job_input.kafka)
            client_config = build_client_config(cluster)
            limit = job_input.max_records
            gaps.log_gaps(job.name, positions, client_config, reports, limit)
            if isinstance(job, config.Load):
                read_at_ms = checkpoint.read_last_time_ms()
                gaps.log_removed_tombstones(job.name, positions, read_at_ms, client_config, reports)


def build_sink_options(output: Output, kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's Kafka sink for the rows of `output.encode_rows`."""
    max_bytes = fetch_max_message_bytes(build_client_config(kafka), output.topic)
    options = build_spark_options(kafka) | {
        "kafka.compression.type": "lz4",
        # Java's client has limits of its own, by default 1 MiB and 32 MiB.
        "kafka.max.request.size": str(max_bytes),
        "kafka.buffer.memory": str(max(_BUFFER_BYTES, 2 * max_bytes)),
    }
    # Rows with a schema have a column `topic`, because refused rows go to another topic. The option
    # would override it.
    return options if needs_catalog(output.model) else options | {"topic": output.topic}
