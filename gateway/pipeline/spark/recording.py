"""Run jobs of each type over generated records, and let the JVM archive the classes it loaded.

`class_archive` runs this module in a process of its own: its JVM writes the archive when it ends.
There is no Kafka, so the classes of its clients are loaded by their names.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Job, Spark
from gateway.config.sections.pipelines import Pipelines

from .jars import fetch_connector_jars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The first compiler only, because the program ends before its code would be compiled well.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_JVM_TIMEOUT_S = 600.0  # for the archive to be written
_QUERY_TIMEOUT_S = 300.0  # for the batches of one job
_BATCHES = 2  # of each job: the second one reads the state of the first one
_CONNECTOR_PREFIX = "org/apache/"  # of the connector's classes; others are parts of libraries

_INPUT = {
    "topic": "events",
    "value": {"fields": {"user": "string", "id": "bigint", "at": "timestamp_ms"}},
    "time": "at",
    "watermark": "5s",
}
_OUTPUT = {"topic": "rows", "key": ["user"]}
_JOBS: list[Mapping[str, Any]] = [
    {"name": "query", "type": "query", "tables": {"events": _INPUT},
     "sql": "SELECT user, upper(user) AS name, id FROM events WHERE id >= 0"},
    {"name": "aggregate", "type": "aggregate", "from": _INPUT, "by": ["user"],
     "window": {"size": "10s"}, "measures": {"events": "count(*)"}, "emit": "updates"},
    {"name": "sessions", "type": "sessions", "from": _INPUT, "by": ["user"], "gap": "2s"},
    {"name": "updates", "type": "sessions", "from": _INPUT, "by": ["user"], "gap": "2s",
     "emit": "updates"},
    {"name": "join", "type": "join", "left": _INPUT, "right": {**_INPUT, "topic": "others"},
     "on": {"id": "id"}, "kind": "left", "after": "10s",
     "select": {"user": "left.user", "id": "right.id"}},
]  # fmt: skip


def record_classes(archive: Path, directory: Path) -> None:
    """Run jobs in a new JVM, which then writes the archive.

    Args:
        archive: The file to write.
        directory: A temporary directory.
    """
    from .session import create_session

    conf = {
        "spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={archive}",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    section = Pipelines.model_validate(
        {
            "checkpoints": str(directory / "checkpoints"),
            "jobs": [{**job, "to": _OUTPUT} for job in _JOBS],
        }
    )
    spark = create_session(Spark(master="local[2]", conf=conf), jvm_options=_JVM_OPTIONS)
    try:
        spark.range(10).selectExpr("id % 3 AS k").groupBy("k").count().collect()
        _run_jobs(spark, section)
        _load_classes(spark, _list_connector_classes())
    finally:
        _stop_jvm(spark)


def _run_jobs(spark: SparkSession, section: Pipelines) -> None:
    from gateway.pipeline.progress.listener import report_progress
    from gateway.pipeline.state import profiles

    from .session import build_checkpoint_conf, create_job_session

    checkpoint_conf = build_checkpoint_conf(section.checkpoints)
    with report_progress(section, section.jobs) as reporter:
        for job in section.jobs:
            session = create_job_session(spark, {**checkpoint_conf, **profiles.build_job_conf(job)})
            reporter.watch_session(session)
            _run_job(session, job, f"{section.checkpoints}/{job.name}/v1")


def _run_job(spark: SparkSession, job: Job, checkpoint: str) -> None:
    from gateway.pipeline.inputs.source import parse_records
    from gateway.pipeline.jobs import get_inputs, get_output
    from gateway.pipeline.run import output as records

    tables = {
        name: parse_records(_read_records(spark), each, metrics_name=name).withWatermark(
            each.time, f"{each.watermark * 1000:.0f} milliseconds"
        )
        for name, each in get_inputs(job).items()
    }
    module = import_module(f"gateway.pipeline.jobs.{type(job).__name__.lower()}")
    rows = module.build(job, tables, ()) if job.name == "join" else module.build(job, tables)
    to = get_output(job)
    assert to is not None
    encoded = records.encode_rows(rows, to, records.get_key_columns(job))
    writer = encoded.writeStream.outputMode(module.get_output_mode(job)).foreachBatch(_write_batch)
    query = writer.queryName(job.name).option("checkpointLocation", checkpoint).start()
    deadline = time.monotonic() + _QUERY_TIMEOUT_S
    while len(query.recentProgress) < _BATCHES and time.monotonic() < deadline:
        query.awaitTermination(1)  # raises what the query failed with
    query.stop()


def _read_records(spark: SparkSession) -> DataFrame:
    """Return a stream with the columns of Spark's Kafka source."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 20)
        .option("advanceMillisPerBatch", 5000)
        .load()
    )
    json = """to_json(named_struct('user', cast(value % 5 AS string), 'id', value,
        'at', unix_millis(timestamp)))"""
    return rows.selectExpr(
        "cast(cast(value AS string) AS binary) AS key",
        f"cast({json} AS binary) AS value",
        "'events' AS topic",
        "0 AS partition",
        "value AS offset",
        "timestamp",
    )


def _write_batch(rows: DataFrame, _: int) -> None:
    """Compute the rows as the exactly-once writer does, and as Spark's own sink does."""
    key = rows["key"].cast("binary")
    rows.repartition(1, key).mapInArrow(_count_rows, "rows bigint").collect()
    rows.write.format("noop").mode("overwrite").save()


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _list_connector_classes() -> list[str]:
    names: list[str] = []
    for jar in fetch_connector_jars():
        with zipfile.ZipFile(jar) as archive:
            names += [
                name.removesuffix(".class").replace("/", ".")
                for name in archive.namelist()
                if name.startswith(_CONNECTOR_PREFIX) and name.endswith(".class")
            ]
    return names


def _load_classes(spark: SparkSession, names: Iterable[str]) -> None:
    """Load classes without running their static initializers."""
    from py4j.protocol import Py4JJavaError

    context = spark.sparkContext
    assert context._jvm is not None
    java_class: Any = context._jvm.java.lang.Class
    loader = context._jvm.java.lang.ClassLoader.getSystemClassLoader()
    for name in names:
        with suppress(Py4JJavaError):  # its parents may be of libraries that are not there
            java_class.forName(name, False, loader)


def _stop_jvm(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process: Any = gateway.proc
    spark.stop()
    gateway.shutdown()
    process.stdin.close()  # the JVM ends by this
    process.wait(_JVM_TIMEOUT_S)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="gateway-recording-") as name:
        record_classes(Path(sys.argv[1]), Path(name))
