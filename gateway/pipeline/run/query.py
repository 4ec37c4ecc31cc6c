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
from gateway.config.sections.pipeline import Input, Job, Output
from gateway.config.sections.settings import Settings
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.checkpoint.place import Place, settle_state
from gateway.pipeline.inputs import schemas
from gateway.pipeline.inputs.source import read_stream, sources_of
from gateway.pipeline.jobs import inputs, output
from gateway.pipeline.spark.callbacks import close_idle
from gateway.pipeline.spark.connect import client, cluster_of, servers, spark_options
from gateway.pipeline.state import damage
from gateway.pipeline.state.files import files

from . import output as records
from .failures import clear_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.exactly_once.beside import Beside
    from gateway.pipeline.exactly_once.recreated import InputTopics, Rewound
    from gateway.pipeline.topics import Topic

    from .failures import Unreadable

REALTIME_CHECKPOINTS = "5 minutes"
"""How often a query in real-time mode notes how far it is: what a restart may repeat."""

_NO_DATA = "Waiting for data to arrive"  # as Spark's status says it
_FRAMES = 6  # of a thread that sleeps, above that of Spark's clock

Batch = Callable[["DataFrame", int], None]

# By query: of its last start. Its function holds on to them until the JVM collects the query, which
# may take half an hour.
_inputs: dict[str, InputTopics] = {}


def module_of(job: Job) -> ModuleType:
    """The room of its kind."""
    return import_module(f"gateway.pipeline.jobs.{type(job).__name__.lower()}")


def read(job: Job) -> Mapping[str, Input]:
    """The inputs as they are read: a table that is loaded takes its values as they are."""
    if isinstance(job, config.Load):
        from gateway.pipeline.jobs import load

        return {"from": load.input(job)}
    return inputs(job)


def start(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    place: Place,
    *,
    again: bool = False,
    ending: threading.Event | None = None,
    unreadable: Unreadable | None = None,
    inputs: InputTopics | None = None,
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
    close(place.query)
    close_idle(spark)
    tables = {
        name: read_stream(
            spark,
            each,
            cluster_of(settings.clusters, each.kafka),
            settings.catalogs,
            name=name,
            observed="" if job.trigger == "realtime" else name,
            timed=not isinstance(job, config.Load),
        )
        for name, each in read(job).items()
    }

    stop = ending or threading.Event()
    known = _inputs[place.query] = inputs or input_topics(job, settings)

    def prepare(rows: DataFrame) -> Rewound:
        sources = sources_of(rows)
        rewound = _rewind(spark, job, place, sources, known.topics, again)
        # What it ended by may be of a topic whose offsets the checkpoint did not know.
        topics = {rewound.topics[name].name for name in rewound.gaps}
        if unreadable is not None and unreadable.topic not in topics:
            _pass_over(spark, job, settings, place, sources, unreadable, stop, known)
        return rewound

    writer = _writer(spark, job, settings, place, tables, again, stop, known, prepare)
    writer = writer.queryName(job.name).option("checkpointLocation", place.location)
    query = writer.trigger(**({"once": True} if again else _trigger(job))).start()
    damage.began(str(query.runId), job.name)
    return query


def close(query: str) -> None:
    """Close the clients of Kafka that the last start of a query has opened.

    Spark's own consumers of the inputs stay in its cache, eight descriptors of the JVM for a start
    with one partition, until they were unused for `spark.kafka.consumer.cache.timeout`, 5 minutes.

    Args:
        query: The id of its checkpoint. It must have ended.
    """
    from gateway.pipeline.exactly_once import beside

    if inputs := _inputs.pop(query, None):
        inputs.close()
    beside.close(query)


def input_topics(job: Job, settings: Settings) -> InputTopics:
    """Return the topics that a job reads, as they are now.

    Raises:
        PipelineError: Kafka does not answer, or refuses, or has not all of them.
    """
    from gateway.pipeline.exactly_once.recreated import InputTopics

    return InputTopics(
        {
            name: (client(cluster_of(settings.clusters, each.kafka)), each.topic)
            for name, each in read(job).items()
        }
    )


def retire(query: Any) -> None:
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
    to = output(job)
    assert to is not None
    return to.guarantee == "exactly-once" or _told(job)


def waits(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger or for records."""
    return is_idle(query) or query.status["message"] == _NO_DATA


def is_idle(query: Any) -> bool:
    """Return whether a StreamingQuery has ended, or waits for its trigger.

    That is asked of its thread: its status says the same between two batches as after the last.
    """
    thread = query._jsq.streamingQuery().queryExecutionThread()
    if not thread.isAlive():
        return True
    frames = thread.getStackTrace()
    return any(
        frames[at].getMethodName() == "waitTillTime" for at in range(min(_FRAMES, len(frames)))
    )


def _trigger(job: Job) -> dict[str, Any]:
    if job.trigger == "realtime":
        return {"realTime": REALTIME_CHECKPOINTS}
    if job.trigger == "available-now":
        return {"availableNow": True}
    assert isinstance(job.trigger, float)
    return {"processingTime": f"{job.trigger * 1000:.0f} milliseconds"}


def _writer(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    place: Place,
    tables: Mapping[str, DataFrame],
    again: bool,
    ending: threading.Event,
    inputs: InputTopics,
    prepare: Callable[[DataFrame], Rewound],
) -> Any:
    mode = module_of(job).mode(job)
    to = output(job)
    exact = to is not None and to.guarantee == "exactly-once"

    def for_each(rows: DataFrame, batch: Batch) -> Any:
        def run(part: DataFrame, epoch: int) -> None:
            try:
                if again:
                    batch(part, epoch)
                else:
                    inputs.check()
                    batch(part, epoch)
                    if not exact:  # else it has been checked before the rows were committed
                        inputs.check()
            except Exception as error:
                clear_frames(error)  # pyspark keeps it with this function, for as long as that
                raise
            if ending.is_set():
                retire(spark.streams.get(place.query))

        return rows.writeStream.outputMode(mode).foreachBatch(run)

    if isinstance(job, config.Load):
        from gateway.pipeline.jobs.load import Loader

        prepare(tables["from"]).log_gaps(job.name)
        return for_each(tables["from"], Loader(job))
    assert to is not None
    kafka = cluster_of(settings.clusters, to.kafka)

    def batch_of(rows: DataFrame) -> Batch:
        rewound = prepare(rows)
        if again:
            return _nowhere
        return _put(spark, job, to, settings, place, sources_of(rows), rewound, inputs)

    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        batch = _joined(spark, job, settings, batch_of(tables["from"]))
        return for_each(tables["from"], batch)
    rows = _built(job, tables, place)
    if isinstance(job, config.Query):
        _settle(spark, job, rows, place)
    encoded = records.encoded(rows, to, records.keys(job), settings.catalogs)
    if not (again or retires_itself(job)):
        prepare(encoded).log_gaps(job.name)
        sink = encoded.writeStream.format("kafka").options(**sink_options(to, kafka))
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    return for_each(encoded, batch_of(encoded))


def _settle(spark: SparkSession, job: config.Query, rows: DataFrame, place: Place) -> None:
    """What Spark's plan of a query says: `check` has no Spark to ask."""
    from gateway.pipeline.jobs.query import keeps_state

    stateful = keeps_state(rows)
    if stateful and job.trigger == "realtime":
        what = f"job {job.name} keeps state, which real-time mode of this Spark lacks"
        raise PipelineError(f"{what}; write a trigger such as 0s")
    settle_state(place, job, spark, stateful=stateful)


def _built(job: Job, tables: Mapping[str, DataFrame], place: Place) -> DataFrame:
    build = module_of(job).build
    made: DataFrame = (
        build(job, tables, place.hot) if isinstance(job, config.Join) else build(job, tables)
    )
    return made


def _joined(spark: SparkSession, job: config.Enrich, settings: Settings, put: Batch) -> Batch:
    """A table that is held is joined batch by batch, as it is by then."""
    from gateway.pipeline.jobs import enrich

    kafka = cluster_of(settings.clusters, job.from_.kafka)
    held = enrich.held(job, spark, spark_options(kafka), client(kafka))
    assert held is not None

    def batch(events: DataFrame, epoch: int) -> None:
        rows = enrich.build(job, {"from": events, enrich.TABLE: held.current()})
        put(records.encoded(rows, job.to, records.keys(job), settings.catalogs), epoch)

    return batch


def _nowhere(rows: DataFrame, _: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _put(
    spark: SparkSession,
    job: Job,
    to: Output,
    settings: Settings,
    place: Place,
    sources: Sources,
    rewound: Rewound,
    inputs: InputTopics,
) -> Batch:
    """How encoded rows of a batch get into Kafka. What is beside them first: gaps, and what
    batches before left out."""
    kafka = cluster_of(settings.clusters, to.kafka)
    once = to.guarantee == "exactly-once"
    append = _appending(sink_options(to, kafka))
    if not (once or _told(job)):
        rewound.log_gaps(job.name)
        return append
    beside = _beside(spark, job, to, settings, place, sources, rewound, inputs)
    if not once:

        def put_again(rows: DataFrame, epoch: int) -> None:
            beside.before(epoch)
            append(rows, epoch)

        return put_again

    from gateway.pipeline.exactly_once import Writer

    checkpoint = Checkpoint(place.location, spark)
    name = owner_name(job, settings)
    writer = Writer(
        place.query, to, client(kafka), checkpoint=checkpoint, job=name, read=inputs.read
    )

    def put(rows: DataFrame, epoch: int) -> None:
        writer.prepare(epoch)  # a checkpoint that it refuses tells nothing beside its rows either
        beside.before(epoch)
        writer(rows, epoch)

    return put


def owner_name(job: Job, settings: Settings) -> str:
    """Return what tells the jobs of an output apart: the name, and a digest of what they read.

    Jobs of one name that write to one topic may be of several gateways, each beside a cluster of
    its own.
    """
    places = sorted(
        [servers(cluster_of(settings.clusters, each.kafka)), each.topic]
        for each in read(job).values()
    )
    digest = hashlib.sha256(json.dumps(places).encode()).hexdigest()[:16]
    return f"{job.name}|{digest}"


def _appending(options: Mapping[str, str]) -> Batch:
    def write(rows: DataFrame, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    return write


def _told(job: Job) -> bool:
    """Does this job, at least once, tell what is beside its rows? It costs a callback of Python a
    batch, so it has to be asked for."""
    return job.trigger != "realtime" and any(asked_beside(each) for each in read(job).values())


def asked_beside(input: Input) -> list[str]:
    """Options that are set to have records of their own told."""
    told = {"late": "topic", "on_invalid": "dead-letter", "on_data_loss": "gap"}
    return [
        name
        for name, value in told.items()
        if name in input.model_fields_set and getattr(input, name) == value
    ]


def _beside(
    spark: SparkSession,
    job: Job,
    to: Output,
    settings: Settings,
    place: Place,
    sources: Sources,
    rewound: Rewound,
    inputs: InputTopics,
) -> Beside:
    from gateway.pipeline.exactly_once.beside import Beside, counted
    from gateway.pipeline.exactly_once.side import of_job

    module = module_of(job)
    return Beside(
        spark,
        job.name,
        place.query,
        read(job),
        to,
        settings,
        Checkpoint(place.location, spark),
        sources=sources,
        rewound=rewound,
        late={name: of_job(module, job, name) for name in read(job) if hasattr(module, "late")},
        counted=counted(lambda: spark.streams.get(place.query)),
        retained=job.state.retain,
        read=inputs.read,
    )


def _pass_over(
    spark: SparkSession,
    job: Job,
    settings: Settings,
    place: Place,
    sources: Sources,
    unreadable: Unreadable,
    ending: threading.Event,
    inputs: InputTopics,
) -> None:
    """Edit the checkpoint so that the query gets past a record. Raises PipelineError."""
    from gateway.pipeline.unreadable import skip
    from gateway.pipeline.unreadable.letters import DeadLetters
    from gateway.pipeline.unreadable.offsets import find_unfinished

    def source(name: str, each: Input) -> skip.Source:
        to = output(job)
        wanted = to is not None and each.on_invalid == "dead-letter"
        letters = None
        if to is not None and wanted and (to.guarantee == "exactly-once" or _told(job)):
            letters = DeadLetters(place.query, to, cluster_of(settings.clusters, to.kafka))
        kafka = cluster_of(settings.clusters, each.kafka)
        return skip.Source(each, kafka, inputs.topics[name], letters)

    checkpoint = Checkpoint(place.location, spark)
    unfinished = find_unfinished(files(place.location, spark), checkpoint, sources)
    known = {name: source(name, each) for name, each in read(job).items()}
    skip.pass_over(job.name, known, unfinished, unreadable, ending, check=inputs.check)


def _rewind(
    spark: SparkSession,
    job: Job,
    place: Place,
    sources: Sources,
    topics: Mapping[str, Topic],
    again: bool,
) -> Rewound:
    """Let inputs whose topics were recreated be read from their begin. Raises PipelineError."""
    from gateway.pipeline.exactly_once import recreated

    held = files(place.location, spark)
    gaps = {}
    for name in recreated.find(held, topics):
        what = f"topic {topics[name].name} was recreated"
        if again:
            what += ", and batches whose state is damaged had read the old one"
            raise PipelineError(f"{what}; restore a backup, or start anew with --fresh")
        if read(job)[name].on_data_loss == "fail":
            what += ", and not all of it had been read"
            raise PipelineError(f"{what}; write onDataLoss: gap, or start anew with --fresh")
        checkpoint = Checkpoint(place.location, spark)
        gaps[name] = recreated.rewind(held, checkpoint, sources, name, topics[name])
    if not (gaps or again):
        recreated.remember(held, topics)  # before Spark plans a batch
    return recreated.Rewound(held, topics, gaps)


def sink_options(to: Output, kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's own sink for the rows of `output.encoded`."""
    options = spark_options(kafka) | {"kafka.compression.type": "lz4"}
    # Rows of a schema name their topic themselves: refused ones go to another, and the option
    # would override it.
    return options if schemas.has_schema(to.model) else options | {"topic": to.topic}
