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

from . import output as records
from .checkpoint import Checkpoint
from .connect import client, cluster_of, spark_options
from .jobs import inputs, output
from .place import Place
from .source import read_stream
from .state import damage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
            observed="" if job.trigger == "realtime" else name,
        )
        for name, each in read(job).items()
    }
    writer = _writer(spark, job, settings, place, tables, again)
    writer = writer.queryName(job.name).option("checkpointLocation", place.location)
    query = writer.trigger(**({"once": True} if again else _trigger(job))).start()
    damage.began(str(query.runId), job.name)
    return query


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
    put = _nowhere if again else _put(spark, job, to, settings, place)
    if isinstance(job, config.Enrich) and isinstance(job.table, config.Broadcast):
        batch = _joined(spark, job, settings, put)
        return tables["from"].writeStream.outputMode(mode).foreachBatch(batch)
    rows = _built(job, tables, place)
    encoded = records.encoded(rows, to, records.keys(job), settings.catalogs)
    if to.guarantee == "at-least-once" and not again:
        sink = encoded.writeStream.format("kafka").options(**_sink(to, kafka))
        return sink.outputMode("update" if job.trigger == "realtime" else mode)
    return encoded.writeStream.outputMode(mode).foreachBatch(put)


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


def _put(spark: SparkSession, job: Job, to: Output, settings: Settings, place: Place) -> Batch:
    """How encoded rows of a batch get into Kafka."""
    kafka = cluster_of(settings.clusters, to.kafka)
    if to.guarantee == "exactly-once":
        return _once(spark, job, to, settings, place)
    options = _sink(to, kafka)

    def put(rows: DataFrame, _: int) -> None:
        rows.write.format("kafka").options(**options).save()

    return put


def _once(spark: SparkSession, job: Job, to: Output, settings: Settings, place: Place) -> Batch:
    """What is beside the rows first: gaps, and what the batch before left out."""
    from .exactly_once import Writer
    from .exactly_once.beside import Beside, counted
    from .exactly_once.side import of_job

    held, module = Checkpoint(place.location, spark), module_of(job)
    known = counted(lambda: next((q for q in spark.streams.active if q.name == job.name), None))
    late = {name: of_job(module, job, name) for name in read(job) if hasattr(module, "late")}
    beside = Beside(
        spark, job.name, place.query, read(job), to, settings, held, late=late, counted=known
    )
    writer = Writer(
        place.query, to, client(cluster_of(settings.clusters, to.kafka)), checkpoint=held
    )

    def put(rows: DataFrame, epoch: int) -> None:
        beside.before(epoch)
        writer(rows, epoch)

    return put


def _sink(to: Output, kafka: Kafka) -> dict[str, str]:
    return spark_options(kafka) | {"topic": to.topic, "kafka.compression.type": "lz4"}
