"""One job as a running query: its inputs, its function, its output."""

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
from gateway.pipeline.spark.callbacks import close_idle_connections
from gateway.pipeline.spark.client_config import (
    build_client_config,
    build_spark_options,
    find_cluster,
    format_bootstrap_servers,
)
from gateway.pipeline.state import damage
from gateway.pipeline.state.files import open_files

from . import output as records
from .failures import clear_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.exactly_once.recreated_topics import InputTopics, RewoundInputs
    from gateway.pipeline.exactly_once.side_outputs import SideOutputs
    from gateway.pipeline.topics import TopicDescription

    from .failures import UnreadableOffset

REALTIME_CHECKPOINT_INTERVAL = "5 minutes"
"""How often a query in real-time mode notes how far it is: what a restart may repeat."""

_NO_DATA_MESSAGE = "Waiting for data to arrive"  # as Spark's status says it
_MAX_STACK_FRAMES = 6  # of a thread that sleeps, above that of Spark's clock

BatchFunction = Callable[["DataFrame", int], None]

# By query: of its last start. Its function holds on to them until the JVM collects the query, which
# may take half an hour.
_topics_by_query: dict[str, InputTopics] = {}


def import_job_module(job: Job) -> ModuleType:
    """The room of its kind."""
    return import_module(f"gateway.pipeline.jobs.{type(job).__name__.lower()}")


def resolve_inputs(job: Job) -> Mapping[str, Input]:
    """The inputs as they are read: a table that is loaded takes its values as they are."""
    if isinstance(job, config.Load):
        from gateway.pipeline.jobs import load

        return {"from": load.build_input(job)}
    return get_inputs(job)


def start_query(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    *,
    replay_state: bool = False,
    stop_event: threading.Event | None = None,
    unreadable: UnreadableOffset | None = None,
    input_topics: InputTopics | None = None,
) -> Any:
    """Start a job and return its StreamingQuery.

    Args:
        spark: A session of its own.
        job: What is to be run.
        settings: The clusters and catalogs that it names.
        place: Its checkpoint.
        again: Run only the batch that was begun last, for its state alone: its rows were written
            (see `state.repair`).
        ending: Once it is set, the query is retired at the end of its batch (see `retires_itself`).
        unreadable: The record that the last run ended by, to be passed over.
        inputs: The topics of its inputs, as of `input_topics`; None for those that are there now.

    Whatever the last start of the same query has opened is closed.

    Raises:
        PipelineError: It cannot be run. What Spark says of a plan that it refuses is raised too.
    """
    close_clients(job_checkpoint.query_id)
    close_idle_connections(spark)
    tables = {
        name: read_stream(
            spark,
            each,
            find_cluster(settings.clusters, each.kafka),
            settings.catalogs,
            input_name=name,
            metrics_name="" if job.trigger == "realtime" else name,
            has_event_time=not isinstance(job, config.Load),
        )
        for name, each in resolve_inputs(job).items()
    }

    stop = stop_event or threading.Event()
    known = _topics_by_query[job_checkpoint.query_id] = input_topics or create_input_topics(
        job, settings
    )

    def prepare_inputs(rows: DataFrame) -> RewoundInputs:
        sources = find_sources(rows)
        rewound = _rewind_recreated(spark, job, job_checkpoint, sources, known.topics, replay_state)
        # What it ended by may be of a topic whose offsets the checkpoint did not know.
        topics = {rewound.topics[name].name for name in rewound.gaps}
        if unreadable is not None and unreadable.topic not in topics:
            _skip_unreadable(spark, job, settings, job_checkpoint, sources, unreadable, stop, known)
        return rewound

    writer = _create_writer(
        spark, job, settings, job_checkpoint, tables, replay_state, stop, known, prepare_inputs
    )
    writer = writer.queryName(job.name).option("checkpointLocation", job_checkpoint.location)
    query = writer.trigger(**({"once": True} if replay_state else _build_trigger(job))).start()
    damage.register_run(str(query.runId), job.name)
    return query


def close_clients(query_id: str) -> None:
    """Close the clients of Kafka that the last start of a query has opened.

    Spark's own consumers of the inputs stay in its cache, eight descriptors of the JVM for a start
    with one partition, until they were unused for `spark.kafka.consumer.cache.timeout`, 5 minutes.

    Args:
        query: The id of its checkpoint. It must have ended.
    """
    from gateway.pipeline.exactly_once import side_outputs

    if inputs := _topics_by_query.pop(query_id, None):
        inputs.close()
    side_outputs.close(query_id)


def create_input_topics(job: Job, settings: Settings) -> InputTopics:
    """Return the topics that a job reads, as they are now.

    Raises:
        PipelineError: Kafka does not answer, or refuses, or has not all of them.
    """
    from gateway.pipeline.exactly_once.recreated_topics import InputTopics

    return InputTopics(
        {
            name: (build_client_config(find_cluster(settings.clusters, each.kafka)), each.topic)
            for name, each in resolve_inputs(job).items()
        }
    )


def retire_query(query: Any) -> None:
    """Let a StreamingQuery begin no batch after the one whose rows are being written.

    Between two batches that have records Spark is idle for microseconds, too short to stop it
    there. This is what its `stop` does first; it then interrupts the batch. A batch that is still
    being planned breaks itself off (4.2.0, `MicroBatchExecution.runBatch`); none of its rows were
    written, and the next start begins it again.
    """
    state = query._jsq.streamingQuery().state()
    now = state.get()
    kind = now.getClass()
    if kind.getSimpleName() == "ACTIVE$":
        name = f"{kind.getPackageName()}.TERMINATED$"
        ended = kind.getClassLoader().loadClass(name).getField("MODULE$").get(None)
        state.compareAndSet(now, ended)


def retires_itself(job: Job) -> bool:
    """Return whether batches of a job end in Python, where the query may be retired safely."""
    if isinstance(job, config.Load):
        return True
    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        return True
    to = get_output(job)
    assert to is not None
    return to.guarantee == "exactly-once" or _has_side_outputs(job)


def is_waiting(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger or for records."""
    return is_idle(query) or query.status["message"] == _NO_DATA_MESSAGE


def is_idle(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger.

    That is asked of its thread: its status says the same between two batches as after the last.
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
    tables: Mapping[str, DataFrame],
    replay_state: bool,
    stop_event: threading.Event,
    input_topics: InputTopics,
    prepare_inputs: Callable[[DataFrame], RewoundInputs],
) -> Any:
    mode = import_job_module(job).get_output_mode(job)
    to = get_output(job)
    exact = to is not None and to.guarantee == "exactly-once"

    def write_each_batch(rows: DataFrame, batch: BatchFunction) -> Any:
        def run_batch(part: DataFrame, epoch: int) -> None:
            try:
                if replay_state:
                    batch(part, epoch)
                else:
                    input_topics.check()
                    batch(part, epoch)
                    if not exact:  # else it has been checked before the rows were committed
                        input_topics.check()
            except Exception as error:
                clear_frames(error)  # pyspark keeps it with this function, for as long as that
                raise
            if stop_event.is_set():
                retire_query(spark.streams.get(job_checkpoint.query_id))

        return rows.writeStream.outputMode(mode).foreachBatch(run_batch)

    if isinstance(job, config.Load):
        from gateway.pipeline.jobs.load import BatchLoader

        prepare_inputs(tables["from"]).log_gaps(job.name)
        return write_each_batch(tables["from"], BatchLoader(job))
    assert to is not None
    kafka = find_cluster(settings.clusters, to.kafka)

    def create_batch_function(rows: DataFrame) -> BatchFunction:
        rewound = prepare_inputs(rows)
        if replay_state:
            return _discard_rows
        return _create_batch_function(
            spark, job, to, settings, job_checkpoint, find_sources(rows), rewound, input_topics
        )

    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        batch = _create_join_function(spark, job, settings, create_batch_function(tables["from"]))
        return write_each_batch(tables["from"], batch)
    rows = _build_rows(job, tables, job_checkpoint)
    if isinstance(job, config.Query):
        _update_query_definition(spark, job, rows, job_checkpoint)
    encoded = records.encode_rows(rows, to, records.get_key_columns(job), settings.catalogs)
    if not (replay_state or retires_itself(job)):
        prepare_inputs(encoded).log_gaps(job.name)
        sink = encoded.writeStream.format("kafka").options(**build_sink_options(to, kafka))
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    return write_each_batch(encoded, create_batch_function(encoded))


def _update_query_definition(
    spark: SparkSession, job: config.Query, rows: DataFrame, job_checkpoint: JobCheckpoint
) -> None:
    """What Spark's plan of a query says: `check` has no Spark to ask."""
    from gateway.pipeline.jobs.query import keeps_state

    stateful = keeps_state(rows)
    if stateful and job.trigger == "realtime":
        what = f"job {job.name} keeps state, which real-time mode of this Spark lacks"
        raise PipelineError(f"{what}; write a trigger such as 0s")
    update_definition(job_checkpoint, job, spark, is_stateful=stateful)


def _build_rows(
    job: Job, tables: Mapping[str, DataFrame], job_checkpoint: JobCheckpoint
) -> DataFrame:
    build = import_job_module(job).build
    made: DataFrame = (
        build(job, tables, job_checkpoint.hot_keys)
        if isinstance(job, config.Join)
        else build(job, tables)
    )
    return made


def _create_join_function(
    spark: SparkSession, job: config.Enrich, settings: Settings, write_batch: BatchFunction
) -> BatchFunction:
    """A table that is held is joined batch by batch, as it is by then."""
    from gateway.pipeline.jobs import enrich

    kafka = find_cluster(settings.clusters, job.from_.kafka)
    held = enrich.create_batch_table(
        job, spark, build_spark_options(kafka), build_client_config(kafka)
    )
    assert held is not None

    def join_batch(events: DataFrame, epoch: int) -> None:
        rows = enrich.build(job, {"from": events, enrich.TABLE_INPUT: held.get_current()})
        write_batch(
            records.encode_rows(rows, job.to, records.get_key_columns(job), settings.catalogs),
            epoch,
        )

    return join_batch


def _discard_rows(rows: DataFrame, _: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _create_batch_function(
    spark: SparkSession,
    job: Job,
    output: Output,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    sources: Sources,
    rewound_inputs: RewoundInputs,
    input_topics: InputTopics,
) -> BatchFunction:
    """How encoded rows of a batch get into Kafka. What is beside them first: gaps, and what
    batches before left out."""
    kafka = find_cluster(settings.clusters, output.kafka)
    once = output.guarantee == "exactly-once"
    append = _create_append_function(build_sink_options(output, kafka))
    if not (once or _has_side_outputs(job)):
        rewound_inputs.log_gaps(job.name)
        return append
    side_outputs = _create_side_outputs(
        spark, job, output, settings, job_checkpoint, sources, rewound_inputs, input_topics
    )
    if not once:

        def write_at_least_once(rows: DataFrame, epoch: int) -> None:
            side_outputs.begin_batch(epoch)
            append(rows, epoch)

        return write_at_least_once

    from gateway.pipeline.exactly_once import ExactlyOnceWriter

    checkpoint = Checkpoint(job_checkpoint.location, spark)
    name = build_owner_name(job, settings)
    writer = ExactlyOnceWriter(
        job_checkpoint.query_id,
        output,
        build_client_config(kafka),
        checkpoint=checkpoint,
        job=name,
        read_topics=input_topics.read_topics,
    )

    def write_exactly_once(rows: DataFrame, epoch: int) -> None:
        writer.prepare(epoch)  # a checkpoint that it refuses tells nothing beside its rows either
        side_outputs.begin_batch(epoch)
        writer(rows, epoch)

    return write_exactly_once


def build_owner_name(job: Job, settings: Settings) -> str:
    """Return what tells the jobs of an output apart: the name, and a digest of what they read.

    Jobs of one name that write to one topic may be of several gateways, each beside a cluster of
    its own.
    """
    places = sorted(
        [format_bootstrap_servers(find_cluster(settings.clusters, each.kafka)), each.topic]
        for each in resolve_inputs(job).values()
    )
    digest = hashlib.sha256(json.dumps(places).encode()).hexdigest()[:16]
    return f"{job.name}|{digest}"


def _create_append_function(options: Mapping[str, str]) -> BatchFunction:
    def append_rows(rows: DataFrame, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    return append_rows


def _has_side_outputs(job: Job) -> bool:
    """Does this job, at least once, tell what is beside its rows? It costs a callback of Python a
    batch, so it has to be asked for."""
    return job.trigger != "realtime" and any(
        list_side_output_options(each) for each in resolve_inputs(job).values()
    )


def list_side_output_options(input: Input) -> list[str]:
    """Options that are set to have records of their own told."""
    told = {"late": "topic", "on_invalid": "dead-letter", "on_data_loss": "gap"}
    return [
        name
        for name, value in told.items()
        if name in input.model_fields_set and getattr(input, name) == value
    ]


def _create_side_outputs(
    spark: SparkSession,
    job: Job,
    output: Output,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    sources: Sources,
    rewound_inputs: RewoundInputs,
    input_topics: InputTopics,
) -> SideOutputs:
    from gateway.pipeline.exactly_once.side_output import create_late_filter
    from gateway.pipeline.exactly_once.side_outputs import SideOutputs, create_batch_counter

    module = import_job_module(job)
    return SideOutputs(
        spark,
        job.name,
        job_checkpoint.query_id,
        resolve_inputs(job),
        output,
        settings,
        Checkpoint(job_checkpoint.location, spark),
        sources=sources,
        rewound_inputs=rewound_inputs,
        late_filters={
            name: create_late_filter(module, job, name)
            for name in resolve_inputs(job)
            if hasattr(module, "select_late")
        },
        get_counts=create_batch_counter(lambda: spark.streams.get(job_checkpoint.query_id)),
        retained_batches=job.state.retain,
        read_topics=input_topics.read_topics,
    )


def _skip_unreadable(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    job_checkpoint: JobCheckpoint,
    sources: Sources,
    unreadable: UnreadableOffset,
    stop_event: threading.Event,
    input_topics: InputTopics,
) -> None:
    """Edit the checkpoint so that the query gets past a record. Raises PipelineError."""
    from gateway.pipeline.unreadable import skip
    from gateway.pipeline.unreadable.dead_letters import DeadLetterSender
    from gateway.pipeline.unreadable.offsets import find_unfinished_batch

    def create_source(name: str, input: Input) -> skip.InputSource:
        to = get_output(job)
        wanted = to is not None and input.on_invalid == "dead-letter"
        letters = None
        if to is not None and wanted and (to.guarantee == "exactly-once" or _has_side_outputs(job)):
            letters = DeadLetterSender(
                job_checkpoint.query_id, to, find_cluster(settings.clusters, to.kafka)
            )
        kafka = find_cluster(settings.clusters, input.kafka)
        return skip.InputSource(input, kafka, input_topics.topics[name], letters)

    checkpoint = Checkpoint(job_checkpoint.location, spark)
    unfinished = find_unfinished_batch(
        open_files(job_checkpoint.location, spark), checkpoint, sources
    )
    known = {name: create_source(name, each) for name, each in resolve_inputs(job).items()}
    skip.skip_records(
        job.name, known, unfinished, unreadable, stop_event, check_topics=input_topics.check
    )


def _rewind_recreated(
    spark: SparkSession,
    job: Job,
    job_checkpoint: JobCheckpoint,
    sources: Sources,
    topics: Mapping[str, TopicDescription],
    replay_state: bool,
) -> RewoundInputs:
    """Let inputs whose topics were recreated be read from their begin. Raises PipelineError."""
    from gateway.pipeline.exactly_once import recreated_topics

    held = open_files(job_checkpoint.location, spark)
    gaps = {}
    for name in recreated_topics.find_recreated(held, topics):
        what = f"topic {topics[name].name} was recreated"
        if replay_state:
            what += ", and batches whose state is damaged had read the old one"
            raise PipelineError(f"{what}; restore a backup, or start anew with --fresh")
        if resolve_inputs(job)[name].on_data_loss == "fail":
            what += ", and not all of it had been read"
            raise PipelineError(f"{what}; write onDataLoss: gap, or start anew with --fresh")
        checkpoint = Checkpoint(job_checkpoint.location, spark)
        gaps[name] = recreated_topics.rewind_input(held, checkpoint, sources, name, topics[name])
    if not (gaps or replay_state):
        recreated_topics.store_topic_ids(held, topics)  # before Spark plans a batch
    return recreated_topics.RewoundInputs(held, topics, gaps)


def build_sink_options(output: Output, kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's own sink for the rows of `output.encoded`."""
    options = build_spark_options(kafka) | {"kafka.compression.type": "lz4"}
    # Rows of a schema name their topic themselves: refused ones go to another, and the option
    # would override it.
    return options if schemas.has_schema(output.model) else options | {"topic": output.topic}
