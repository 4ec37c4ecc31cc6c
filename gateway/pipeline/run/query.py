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
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gateway.config import Kafka
from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job, Output
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.checkpoint.job_checkpoint import JobCheckpoint, update_definition
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.source import find_sources, read_stream
from gateway.pipeline.jobs import get_inputs, get_output
from gateway.pipeline.spark.client_config import (
    build_client_config,
    build_spark_options,
    find_cluster,
    format_bootstrap_servers,
)
from gateway.pipeline.spark.session import close_idle_connections
from gateway.pipeline.state import damage
from gateway.pipeline.state.files import open_files
from gateway.pipeline.topics import fetch_max_message_bytes

from . import output as records
from .failures import clear_frames
from .stable_key import compute_key_digests, verify_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.exactly_once.recreated_topics import InputTopics
    from gateway.pipeline.exactly_once.side_outputs import SideOutputs

REALTIME_CHECKPOINT_INTERVAL = "5 minutes"
"""The time between two checkpoints in real-time mode. A restart repeats what came since the last
one."""

_NO_DATA_MESSAGE = "Waiting for data to arrive"  # in the status of a StreamingQuery
_BUFFER_BYTES = 32 * 1024**2
# How many stack frames of a waiting thread are searched for the method of Spark's clock.
_MAX_STACK_FRAMES = 6

BatchFunction = Callable[["DataFrame", int], None]
"""Writes a batch: its rows, and its number."""

# The input topics of the last run of each query, by query id. Spark keeps references to a query's
# function until the JVM collects the query, which may take half an hour. So the next start closes
# the clients of Kafka.
_topics_by_query: dict[str, InputTopics] = {}


def import_job_module(job: Job) -> ModuleType:
    return import_module(f"gateway.pipeline.jobs.{type(job).__name__.lower()}")


def resolve_inputs(job: Job) -> Mapping[str, Input]:
    """Return the inputs of a job by name, as they are read: `load` does not parse values."""
    if isinstance(job, config.Load):
        from gateway.pipeline.jobs import load

        return {"from": load.build_input(job)}
    return get_inputs(job)


def list_read_topics(job: Job) -> Mapping[str, tuple[str | None, str]]:
    """Return the cluster and the topic of each input, and of a broadcast table, by name."""
    read = {name: (each.kafka, each.topic) for name, each in resolve_inputs(job).items()}
    if isinstance(job, config.Enrich) and (topic := getattr(job.table, "topic", None)):
        read["table"] = job.from_.kafka, topic
    return read


def start_query(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    *,
    replay_state: bool = False,
    stop_event: threading.Event | None = None,
    input_topics: InputTopics | None = None,
) -> Any:
    """Start a job and return its StreamingQuery.

    The clients of Kafka that the previous run of the query has opened are closed.

    Args:
        spark: A session that only this job uses.
        replay_state: Run only the batch that was begun last, to restore its state, and discard its
            rows, which were written before (see `state.repair`).
        stop_event: Once it is set, the query is retired at the end of its batch (see
            `retires_itself`).
        input_topics: The topics of the inputs; None for those that exist now.

    Raises:
        PipelineError: A topic was recreated since the checkpoint's batches read it.
    """
    from gateway.pipeline.exactly_once.recreated_topics import verify_topics

    close_clients(job_checkpoint.query_id)
    close_idle_connections(spark)
    # State that is restored without records that retention has deleted since would be wrong.
    restoring = {"on_data_loss": "fail"} if replay_state else {}
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
            input_name=name,
            metrics_name="" if job.trigger == "realtime" else name,
            has_event_time=not isinstance(job, config.Load),
        )
        for name, each in inputs.items()
    }

    stop = stop_event or threading.Event()
    topics = _topics_by_query[job_checkpoint.query_id] = input_topics or create_input_topics(
        job, settings
    )
    verify_topics(open_files(job_checkpoint.location, spark), topics.topics)
    writer = _create_writer(
        spark, job, settings, job_checkpoint, inputs, tables, replay_state, stop, topics
    )
    writer = writer.queryName(job.name).option("checkpointLocation", job_checkpoint.location)
    query = writer.trigger(**({"once": True} if replay_state else _build_trigger(job))).start()
    damage.register_run(str(query.runId), job.name)
    return query


def close_clients(query_id: str) -> None:
    """Close the clients of Kafka that the last run of a query has opened, after its end.

    Spark's own consumers of the inputs stay in its cache until they are unused for
    `spark.kafka.consumer.cache.timeout` (5 minutes). For an input with one partition, they have
    eight file descriptors.
    """
    from gateway.pipeline.exactly_once import producers, side_outputs

    if inputs := _topics_by_query.pop(query_id, None):
        inputs.close()
    side_outputs.close(query_id)
    producers.drop_query_producers(query_id)


def create_input_topics(job: Job, settings: Settings) -> InputTopics:
    from gateway.pipeline.exactly_once.recreated_topics import InputTopics

    return InputTopics(
        {
            name: (build_client_config(find_cluster(settings.clusters, each.kafka)), each.topic)
            for name, each in resolve_inputs(job).items()
        }
    )


def retire_query(query: Any) -> None:
    """Let a StreamingQuery begin no batch after the one whose rows are being written.

    Between two batches with records, Spark is idle for microseconds only, which is too short to
    stop it there. This function takes the first step of Spark's `stop`, and leaves out the second,
    which interrupts the batch. A batch that is still being planned ends by itself (Spark 4.2.0,
    `MicroBatchExecution.runBatch`): none of its rows were written, and the next start runs it
    again.
    """
    state = query._jsq.streamingQuery().state()
    current = state.get()
    java_class = current.getClass()
    if java_class.getSimpleName() == "ACTIVE$":
        # States are Scala objects. TERMINATED's class comes from the class loader of ACTIVE's.
        name = f"{java_class.getPackageName()}.TERMINATED$"
        terminated = java_class.getClassLoader().loadClass(name).getField("MODULE$").get(None)
        state.compareAndSet(current, terminated)


def reset_metrics(query: Any) -> None:
    """Let the progress of the current batch count only rows that are computed from now on.

    Spark adds up the rows of all computations of a batch: those that are read, that are late, and
    that `observe` counts.
    """
    query._jsq.streamingQuery().lastExecution().executedPlan().resetMetrics()


def retires_itself(job: Job) -> bool:
    """Return whether the batches of a job end in Python, and retire their query there."""
    if isinstance(job, config.Load):
        return True
    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        return True
    to = get_output(job)
    assert to is not None
    return to.guarantee == "exactly-once" or has_side_outputs(job)


def is_waiting(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger or for records."""
    return is_idle(query) or query.status["message"] == _NO_DATA_MESSAGE


def is_idle(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger.

    The stack of its thread shows that. Its status does not: it is the same between two batches and
    after the last one.
    """
    thread = query._jsq.streamingQuery().queryExecutionThread()
    if not thread.isAlive():
        return True
    frames = thread.getStackTrace()
    return any(
        frames[at].getMethodName() == "waitTillTime"
        for at in range(min(_MAX_STACK_FRAMES, len(frames)))
    )


def _build_trigger(job: Job) -> dict[str, Any]:
    if job.trigger == "realtime":
        return {"realTime": REALTIME_CHECKPOINT_INTERVAL}
    if job.trigger == "available-now":
        return {"availableNow": True}
    assert isinstance(job.trigger, float)
    return {"processingTime": f"{job.trigger * 1000:.0f} milliseconds"}


def _create_writer(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    inputs: Mapping[str, Input],
    tables: Mapping[str, DataFrame],
    replay_state: bool,
    stop_event: threading.Event,
    input_topics: InputTopics,
) -> Any:
    """Return the DataStreamWriter of a job. The module's docstring lists its kinds."""
    mode = import_job_module(job).get_output_mode(job)
    to = get_output(job)
    is_exactly_once = to is not None and to.guarantee == "exactly-once"

    def write_each_batch(rows: DataFrame, batch: BatchFunction) -> Any:
        def run_batch(part: DataFrame, epoch: int) -> None:
            try:
                if replay_state:
                    batch(part, epoch)
                else:
                    input_topics.check()
                    batch(part, epoch)
                    # With exactly-once, the writers check before they commit.
                    if not is_exactly_once:
                        input_topics.check()
            except Exception as error:
                clear_frames(error)  # pyspark references the error as long as this function
                raise
            if stop_event.is_set():
                retire_query(spark.streams.get(job_checkpoint.query_id))

        return rows.writeStream.outputMode(mode).foreachBatch(run_batch)

    if isinstance(job, config.Load):
        from gateway.pipeline.jobs.load import BatchLoader

        _log_gaps(spark, job, settings, job_checkpoint, find_sources(tables["from"]))
        checkpoint = Checkpoint(job_checkpoint.location, spark)
        loader = BatchLoader(job, job_checkpoint.query_id, is_first=checkpoint.is_first())
        return write_each_batch(tables["from"], loader)
    assert to is not None
    kafka = find_cluster(settings.clusters, to.kafka)

    def create_batch_function(rows: DataFrame) -> BatchFunction:
        if replay_state:
            return _discard_rows
        return _create_batch_function(
            spark,
            job,
            to,
            settings,
            job_checkpoint,
            inputs,
            find_sources(rows),
            input_topics,
            compute_key_digests(job, tables),
            stop_event,
        )

    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        verify_key(job, tables["from"])
        batch = _create_join_function(spark, job, settings, create_batch_function(tables["from"]))
        return write_each_batch(tables["from"], batch)
    rows = _build_rows(job, tables, job_checkpoint)
    verify_key(job, rows)
    if isinstance(job, config.Query):
        _update_query_definition(spark, job, rows, job_checkpoint)
    encoded = records.encode_rows(rows, to, records.get_key_columns(job), settings.catalogs)
    if not (replay_state or retires_itself(job)):
        _log_gaps(spark, job, settings, job_checkpoint, find_sources(encoded))
        sink = encoded.writeStream.format("kafka").options(**build_sink_options(to, kafka))
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    return write_each_batch(encoded, create_batch_function(encoded))


def _update_query_definition(
    spark: SparkSession, job: config.Query, rows: DataFrame, job_checkpoint: JobCheckpoint
) -> None:
    """Store what only Spark's plan of a query says; `check` runs without Spark."""
    from gateway.pipeline.jobs.query import keeps_state

    stateful = keeps_state(rows)
    if stateful and job.trigger == "realtime":
        problem = f"job {job.name} keeps state, which real-time mode does not support"
        raise PipelineError(f"{problem}; write a trigger such as 0s")
    table_order = find_sources(rows).lines
    update_definition(job_checkpoint, job, spark, is_stateful=stateful, table_order=table_order)


def _build_rows(
    job: Job, tables: Mapping[str, DataFrame], job_checkpoint: JobCheckpoint
) -> DataFrame:
    build = import_job_module(job).build
    rows: DataFrame = (
        build(job, tables, job_checkpoint.hot_keys)
        if isinstance(job, config.Join)
        else build(job, tables)
    )
    return rows


def _create_join_function(
    spark: SparkSession, job: config.Enrich, settings: Settings, write_batch: BatchFunction
) -> BatchFunction:
    from gateway.pipeline.jobs import enrich

    kafka = find_cluster(settings.clusters, job.from_.kafka)
    table = enrich.create_batch_table(job, spark, build_spark_options(kafka))
    assert table is not None

    def join_batch(events: DataFrame, epoch: int) -> None:
        rows = enrich.build(job, {"from": events, enrich.TABLE_INPUT: table.get_current()})
        write_batch(
            records.encode_rows(rows, job.to, records.get_key_columns(job), settings.catalogs),
            epoch,
        )

    return join_batch


def _discard_rows(rows: DataFrame, _: int) -> None:
    # The rows must be computed, because that is what restores the state.
    rows.write.format("noop").mode("overwrite").save()


def _create_batch_function(
    spark: SparkSession,
    job: Job,
    output: Output,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    inputs: Mapping[str, Input],
    sources: Sources,
    input_topics: InputTopics,
    key_digests: Mapping[str, str],
    stop_event: threading.Event,
) -> BatchFunction:
    kafka = find_cluster(settings.clusters, output.kafka)
    is_exactly_once = output.guarantee == "exactly-once"
    if not (is_exactly_once or has_side_outputs(job)):
        _log_gaps(spark, job, settings, job_checkpoint, sources)
        return _create_append_function(build_sink_options(output, kafka))

    from gateway.pipeline.exactly_once.ledger import verify_ledger

    verify_ledger(open_files(job_checkpoint.location, spark), output, build_client_config(kafka))
    side_outputs = _create_side_outputs(
        spark, job, output, settings, job_checkpoint, inputs, sources, input_topics
    )
    if not is_exactly_once:
        append = _create_append_function(build_sink_options(output, kafka))

        def write_at_least_once(rows: DataFrame, epoch: int) -> None:
            side_outputs.begin_batch(epoch)
            append(rows, epoch)

        return write_at_least_once

    from gateway.pipeline.exactly_once import ExactlyOnceOutput

    checkpoint = Checkpoint(job_checkpoint.location, spark)
    name = build_owner_name(job, settings)
    exactly_once_output = ExactlyOnceOutput(
        job_checkpoint.query_id,
        output,
        build_client_config(kafka),
        checkpoint=checkpoint,
        job=name,
        read_topics=input_topics.read_topics,
        settings=key_digests,
        stop_event=stop_event,
        on_repeat=lambda: reset_metrics(spark.streams.get(job_checkpoint.query_id)),
    )

    def write_exactly_once(rows: DataFrame, epoch: int) -> None:
        exactly_once_output.prepare(
            epoch
        )  # first, so that a refused checkpoint writes no side outputs either
        side_outputs.begin_batch(epoch)
        exactly_once_output(rows, epoch)

    return write_exactly_once


def build_owner_name(job: Job, settings: Settings) -> str:
    """Return a name that distinguishes the jobs of an output: the job's, with a digest of inputs.

    Several gateways, each with its own cluster, may have jobs of the same name that write to the
    same topic.
    """
    sources = sorted(
        [format_bootstrap_servers(find_cluster(settings.clusters, each.kafka)), each.topic]
        for each in resolve_inputs(job).values()
    )
    digest = hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]
    return f"{job.name}|{digest}"


def _create_append_function(options: Mapping[str, str]) -> BatchFunction:
    def append_rows(rows: DataFrame, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    return append_rows


def has_side_outputs(job: Job) -> bool:
    """Return whether a job with `at-least-once` has side outputs.

    They need a call of Python in each batch, so they must be enabled by an option.
    """
    return job.trigger != "realtime" and any(
        list_side_output_options(each) for each in resolve_inputs(job).values()
    )


def list_side_output_options(input: Input) -> list[str]:
    """Return the names of the options of an input that explicitly enable side outputs."""
    enabling = {"late": "topic", "on_invalid": "dead-letter", "on_data_loss": "gap"}
    return [
        name
        for name, value in enabling.items()
        if name in input.model_fields_set and getattr(input, name) == value
    ]


def _create_side_outputs(
    spark: SparkSession,
    job: Job,
    output: Output,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    inputs: Mapping[str, Input],
    sources: Sources,
    input_topics: InputTopics,
) -> SideOutputs:
    from gateway.pipeline.exactly_once.side_output import create_late_filter
    from gateway.pipeline.exactly_once.side_outputs import SideOutputs, create_batch_counter

    module = import_job_module(job)
    return SideOutputs(
        spark,
        job.name,
        job_checkpoint.query_id,
        inputs,
        output,
        settings,
        Checkpoint(job_checkpoint.location, spark),
        open_files(job_checkpoint.location, spark),
        sources=sources,
        late_filters={
            name: create_late_filter(module, job, name)
            for name in inputs
            if hasattr(module, "select_late")
        },
        get_counts=create_batch_counter(lambda: spark.streams.get(job_checkpoint.query_id)),
        retained_batches=job.state.retain,
        read_topics=input_topics.read_topics,
    )


def _log_gaps(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    sources: Sources,
) -> None:
    """Log the gaps of a job that writes no gap records, as it starts."""
    from gateway.pipeline.exactly_once import gaps

    checkpoint = Checkpoint(job_checkpoint.location, spark)
    for name, job_input in resolve_inputs(job).items():
        if job_input.on_data_loss == "gap":  # else Spark refuses to go on
            positions = checkpoint.read_positions(sources, name)
            client_config = build_client_config(find_cluster(settings.clusters, job_input.kafka))
            gaps.log_gaps(job.name, positions, client_config)
            if isinstance(job, config.Load):
                read_at_ms = checkpoint.read_last_time_ms()
                gaps.log_removed_tombstones(job.name, positions, read_at_ms, client_config)


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
    return options if schemas.has_schema(output.model) else options | {"topic": output.topic}
