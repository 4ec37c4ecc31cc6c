"""The Spark session that jobs share: built here, or the one of spark-submit.

What is set here is what every job wants; what a job alone wants (shuffle partitions, its state
store) is put into a session of its own that shares the context: see `of_job`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Spark
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.versions import local_path

from . import java
from .jars import fetch_connector_jars
from .package import build_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A driver here starts often and lives long: the class archive of the JDK takes 0.3 s off a start.
_JVM_OPTIONS = ("-Xshare:auto", "-XX:+UseG1GC")

BASE_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # a window must not depend on where it is computed
    "spark.sql.adaptive.enabled": "false",  # streams ignore it, and say so at each start
    "spark.locality.wait": "0s",  # a batch of ms must not wait 3 s for the executor it was on
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

# Renaming by Spark's default runs `readlink` as a process, several times for each file: a warm
# batch of a job without state took 259 ms so and 174 ms without, one of a window count 398 and
# 290 ms (two busy cores). Other file systems keep it: there a rename may refuse to replace.
_LOCAL_CHECKPOINT_CONF: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    )
}


def build_checkpoint_conf(checkpoints: str) -> Mapping[str, str]:
    """Settings for where the checkpoints are kept, a path or a URL."""
    return _LOCAL_CHECKPOINT_CONF if local_path(checkpoints) is not None else {}


def is_submitted() -> bool:
    """Does spark-submit run this process? Its JVM is there before us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def create_session(
    spark: Spark, name: str = "gateway", *, jvm_options: Sequence[str] = _JVM_OPTIONS
) -> SparkSession:
    """Built by the settings, or the one of spark-submit with what can still be set.

    jvm: options of the driver's. Raises PipelineError: no pyspark, no Java 17, no jars.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise PipelineError("Spark is not installed; pip install 'gateway[pipeline]'")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    jars = None
    if not is_submitted():
        java.find_java()
        jars = fetch_connector_jars()
        if spark.master.startswith("local"):  # the machine's name may be an address elsewhere
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in build_session_conf(spark, jars=jars, jvm_options=jvm_options).items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    if not is_submitted() and not spark.master.startswith("local"):
        made.sparkContext.addPyFile(str(build_archive()))  # as --py-files of spark-submit
    # Begun with the manager of queries, and told of each snapshot that is loaded: without it the
    # state of a job cannot be read or rescaled where no query ran before.
    _ = made.streams
    made.sparkContext.setLogLevel(os.environ.get("GATEWAY_SPARK_LOG", "ERROR"))
    return made


def build_session_conf(
    spark: Spark, *, jars: Sequence[Path] | None, jvm_options: Sequence[str] = _JVM_OPTIONS
) -> dict[str, str]:
    """All that a session is built with. jars: None where spark-submit has started the JVM."""
    if jars is None:
        return {**BASE_CONF, **spark.conf}
    memory = f"{spark.memory // 1024**2}m"
    started = {
        "spark.master": spark.master,
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(jvm_options),
        "spark.jars": ",".join(map(str, jars)),
    }
    return {**BASE_CONF, **started, **spark.conf}


def create_job_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A session of its own for a job, in the same context: settings of SQL are its own."""
    made = spark.newSession()
    for key, value in {**BASE_CONF, **conf}.items():
        if key.startswith("spark.sql."):
            made.conf.set(key, value)
    return made
