"""Spark that runs for a few seconds: settings, options of its JVMs, and their class archive.

First compiler and one collector only: 22 s instead of 26 for ten small tests and the start. With
the archive (JEP 350) a start and the first two queries take 4 s of CPU instead of 8. It is built
once for each Java and Spark, in the user's cache; where it does not fit, Java does without.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pyspark
from support.requirements import require_tools

from gateway.pipeline.spark.spark_home import link_spark_home

LEAN_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
)
BUILD_TIMEOUT_S = 300.0
LEAN_CONF = {
    "spark.driver.host": "127.0.0.1",
    # A query of a few rows ends before its code would be compiled: 60 s of CPU instead of 78 for
    # the sessions' tests.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # By default a query that waits asks its sources every 10 ms: 29 s instead of 58 for the same.
    "spark.sql.streaming.pollingDelay": "100",
}
# Of this machine's workers; those of a cluster have no folder of tests.
WORKER_CONF = {
    "spark.python.daemon.module": "support.spark_daemon",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
}

# What most tests load: a session, a query over rows, and one over a stream with state.
_RECORDED_PROGRAM = """
import sys
from pyspark.sql import SparkSession

archive, options, directory = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", directory)
    .config("spark.driver.extraJavaOptions", f"{options} -XX:ArchiveClassesAtExit={archive}")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)
spark.range(10).selectExpr("id % 3 AS k").groupBy("k").count().collect()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
counts = rows.groupBy("value").count().writeStream.outputMode("update").format("memory")
query = counts.queryName("counts").option("checkpointLocation", directory + "/c").start()
while not query.recentProgress:
    query.awaitTermination(0.1)
query.stop()
spark.stop()
"""


@cache
def build_jvm_options() -> tuple[str, ...]:
    """The options above, and the archive; built first if it is not there."""
    return (*LEAN_JVM_OPTIONS, f"-XX:SharedArchiveFile={_ensure_archive()}")


def build_spark_conf() -> dict[str, str]:
    """The settings of Spark in a process of its own, or on a cluster."""
    options = " ".join(build_jvm_options())
    jvms = {f"spark.{kind}.extraJavaOptions": options for kind in ("driver", "executor")}
    return {**LEAN_CONF, **jvms}


def _ensure_archive() -> Path:
    require_tools("java17")
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    spark_home = link_spark_home()  # the archive is of use to a JVM with the same class path only
    about = f"{pyspark.__version__} {spark_home} {LEAN_JVM_OPTIONS} {java.decode()}"
    mark = hashlib.sha256((about + _RECORDED_PROGRAM).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gateway"
    home.mkdir(parents=True, exist_ok=True)
    archive = home / f"spark-{mark}.jsa"
    with (home / "spark-archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests wait for the first
        if not archive.exists():
            _build_archive(archive, spark_home)
    return archive


def _build_archive(archive: Path, spark_home: Path) -> None:
    part = archive.with_suffix(".part")
    with tempfile.TemporaryDirectory(prefix="spark-archive-") as directory:
        # The JVM writes it after Python has ended, and holds the pipes until then.
        subprocess.run(
            [sys.executable, "-c", _RECORDED_PROGRAM, part, " ".join(LEAN_JVM_OPTIONS), directory],
            cwd=directory,
            env={**os.environ, "SPARK_HOME": str(spark_home)},
            capture_output=True,
            timeout=BUILD_TIMEOUT_S,
            check=True,
        )
    part.rename(archive)
