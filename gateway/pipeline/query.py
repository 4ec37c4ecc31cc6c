"""One job as a running query: its inputs, its function, its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gateway.config import Kafka
from gateway.config import pipelines as config
from gateway.config.pipeline import Input, Job, Output
from gateway.config.settings import Settings
from gateway.errors import PipelineError

from . import output as records
from . import topics
from .checkpoint import Checkpoint, Sources
from .connect import client, cluster_of, spark_options
from .jobs import inputs, output
from .place import Place, settle_state
from .source import read_stream, sources_of
from .state import damage
from .state.files import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .exactly_once.beside import Beside
    from .exactly_once.recreated import Rewound

REALTIME_CHECKPOINTS = "5 minutes"
"""How often a query in real-time mode notes how far it is: what a restart may repeat."""

Batch = Callable[["DataFrame", int], None]


def module_of(job: Job) -> ModuleType:
    """The room of its kind."""
    return import_module(f"{__package__}.jobs.{type(job).__name__.lower()}")


def read(job: Job) -> Mapping[str, Input]:
    """The inputs as they are read: a table that is loaded takes its values as they are."""
    if isinstance(job, config.Load):
        from .jobs import load

        return {"from": load.input(job)}
    return inputs(job)


def start(
    spark: SparkSession, job: Job, settings: Settings, place: Place, *, again: bool = False
) -> Any:
    """The StreamingQuery. spark: a session of its own. again: only the batch that was begun last,
    for its state alone: its rows were written (see `state.repair`). Raises PipelineError, and
    what Spark says of a plan that it refuses."""
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
    writer = _writer(spark, job, settings, place, tables, again)
    writer = writer.queryName(job.name).option("checkpointLocation", place.location)
    query = writer.trigger(**({"once": True} if again else _trigger(job))).start()
    damage.began(str(query.runId), job.name)
    return query


def retire(query: Any) -> None:
    """Let a StreamingQuery begin no batch after the one under way.

    Between two batches that have records Spark is idle for microseconds, too short to stop it
    there. This is what its `stop` does first; it then interrupts the batch (4.2.0).
    """
    state = query._jsq.streamingQuery().state()
    now = state.get()
    kind = now.getClass()
    if kind.getSimpleName() == "ACTIVE$":
        name = f"{kind.getPackageName()}.TERMINATED$"
        ended = kind.getClassLoader().loadClass(name).getField("MODULE$").get(None)
        state.compareAndSet(now, ended)


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
) -> Any:
    mode = module_of(job).mode(job)
    if isinstance(job, config.Load):
        from .jobs.load import Loader

        return tables["from"].writeStream.outputMode(mode).foreachBatch(Loader(job))
    to = output(job)
    assert to is not None
    kafka = cluster_of(settings.clusters, to.kafka)

    def batch_of(rows: DataFrame) -> Batch:
        return _nowhere if again else _put(spark, job, to, settings, place, sources_of(rows))

    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        batch = _joined(spark, job, settings, batch_of(tables["from"]))
        return tables["from"].writeStream.outputMode(mode).foreachBatch(batch)
    rows = _built(job, tables, place)
    if isinstance(job, config.Query):
        _settle(spark, job, rows, place)
    encoded = records.encoded(rows, to, records.keys(job), settings.catalogs)
    if to.guarantee == "at-least-once" and not (again or _told(job)):
        sink = encoded.writeStream.format("kafka").options(**_sink(to, kafka))
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    return encoded.writeStream.outputMode(mode).foreachBatch(batch_of(encoded))


def _settle(spark: SparkSession, job: config.Query, rows: DataFrame, place: Place) -> None:
    """What Spark's plan of a query says: `check` has no Spark to ask."""
    from .jobs.query import keeps_state

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
    from .jobs import enrich

    kafka = cluster_of(settings.clusters, job.from_.kafka)
    held = enrich.held(job, spark, spark_options(kafka))
    assert held is not None

    def batch(events: DataFrame, epoch: int) -> None:
        rows = enrich.build(job, {"from": events, enrich.TABLE: held.current()})
        put(records.encoded(rows, job.to, records.keys(job), settings.catalogs), epoch)

    return batch


def _nowhere(rows: DataFrame, _: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _put(
    spark: SparkSession, job: Job, to: Output, settings: Settings, place: Place, sources: Sources
) -> Batch:
    """How encoded rows of a batch get into Kafka. What is beside them first: gaps, and what
    batches before left out."""
    kafka = cluster_of(settings.clusters, to.kafka)
    once = to.guarantee == "exactly-once"
    append = _appending(_sink(to, kafka))
    if not (once or _told(job)):
        return append
    beside = _beside(spark, job, to, settings, place, sources)
    if not once:

        def put_again(rows: DataFrame, epoch: int) -> None:
            beside.before(epoch)
            append(rows, epoch)

        return put_again

    from .exactly_once import Writer

    writer = Writer(place.query, to, client(kafka), checkpoint=Checkpoint(place.location, spark))

    def put(rows: DataFrame, epoch: int) -> None:
        writer.prepare(epoch)  # a checkpoint that it refuses tells nothing beside its rows either
        beside.before(epoch)
        writer(rows, epoch)

    return put


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
    spark: SparkSession, job: Job, to: Output, settings: Settings, place: Place, sources: Sources
) -> Beside:
    from .exactly_once.beside import Beside, counted
    from .exactly_once.side import of_job

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
        rewound=_rewound(spark, job, settings, place, sources),
        late={name: of_job(module, job, name) for name in read(job) if hasattr(module, "late")},
        counted=counted(lambda: spark.streams.get(place.query)),
        retained=job.state.retain,
    )


def _rewound(
    spark: SparkSession, job: Job, settings: Settings, place: Place, sources: Sources
) -> Rewound:
    """Inputs whose topics were made anew are read from their begin. Raises PipelineError."""
    from .exactly_once import recreated

    held = files(place.location, spark)
    found = {
        name: topics.describe(client(cluster_of(settings.clusters, each.kafka)), each.topic)
        for name, each in read(job).items()
    }
    gaps = {}
    for name in recreated.find(held, found):
        if read(job)[name].on_data_loss == "fail":
            what = f"topic {found[name].name} was made anew, and not all of it had been read"
            raise PipelineError(f"{what}; write onDataLoss: gap, or start anew with --fresh")
        checkpoint = Checkpoint(place.location, spark)
        gaps[name] = recreated.rewind(held, checkpoint, sources, name, found[name])
    return recreated.Rewound(held, found, gaps)


def _sink(to: Output, kafka: Kafka) -> dict[str, str]:
    return spark_options(kafka) | {"topic": to.topic, "kafka.compression.type": "lz4"}
