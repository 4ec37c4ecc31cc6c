"""Create the Spark session that jobs share, or take over that of spark-submit.

Here are the settings that all jobs need. A job's own settings (shuffle partitions, its state store)
belong to a session of that job, which shares the Spark context: see `create_job_session`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Spark
from gateway.errors import PipelineError
from gateway.extras import format_install_command
from gateway.pipeline.checkpoint.versions import local_path

from . import java
from .spark_home import build_archive, fetch_connector_jars, spark_home_for_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The class archive of the JDK makes each start of a driver 0.3 s faster.
_JVM_OPTIONS = ("-Xshare:auto", "-XX:+UseG1GC")

_JVM_END_TIMEOUT_S = 10.0  # from the end of its connections to that of its process
_OUT_OF_MEMORY_STATUS = 52  # Spark's SparkExitCode.OOM

BASE_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",  # windows must not depend on the machine's zone
    "spark.sql.adaptive.enabled": "false",  # streams ignore it, and log that at each start
    "spark.locality.wait": "0s",  # a short batch must not wait 3 s for the executor of the last one
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

# To rename a file, Spark's default manager starts several `readlink` processes. With the manager
# below, a warm batch of a job without state took 174 ms instead of 259, and one of a window count
# 290 ms instead of 398 (two busy cores). It is for local disks only, because on other file systems
# its rename may refuse to replace a file.
_LOCAL_CHECKPOINT_CONF: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    )
}


def build_checkpoint_conf(checkpoints: str) -> Mapping[str, str]:
    return _LOCAL_CHECKPOINT_CONF if local_path(checkpoints) is not None else {}


def is_submitted() -> bool:
    """Return whether spark-submit started this process, so that the JVM already runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ  # the port of the JVM, set by spark-submit


def create_session(
    spark: Spark, name: str = "gateway", *, jvm_options: Sequence[str] = _JVM_OPTIONS
) -> SparkSession:
    """Create a Spark session by the settings, in this process or on a cluster.

    If spark-submit started this process, its session is used, with the settings that can still be
    changed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise PipelineError(f"Spark is not installed; {format_install_command('pipeline')}")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    jars = None
    with ignore_sigterm_in_children(), spark_home_for_workers(spark):
        if not is_submitted():
            java.find_java()
            jars = fetch_connector_jars()
            if spark.master.startswith("local"):
                # Spark would use the address of the machine's name, which may not be this
                # machine's.
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = build_session_conf(spark, jars=jars, jvm_options=jvm_options)
        for key, value in conf.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.getOrCreate()
    if not is_submitted() and not spark.master.startswith("local"):
        session.sparkContext.addPyFile(str(build_archive()))  # like spark-submit's --py-files
    # This access creates Spark's manager of queries, and with it the coordinator of state stores.
    # Without the coordinator, state cannot be read or rescaled before the first query has run.
    _ = session.streams
    session.sparkContext.setLogLevel(os.environ.get("GATEWAY_SPARK_LOG", "ERROR"))
    return session


def describe_jvm_end(error: Exception) -> str | None:
    """Return how Spark's JVM has ended, in one line; None if it has not, as far as is known."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        has_begun = isinstance(error, Py4JError) or "[JAVA_GATEWAY_EXITED]" in str(error)
        return "Spark's JVM ended while it started; see its output above" if has_begun else None
    if isinstance(error, Py4JJavaError) or not isinstance(error, Py4JError | ConnectionError):
        return None
    if is_submitted():
        return "Spark's JVM does not answer any more; the output of spark-submit has the reason"
    try:
        return format_jvm_end(gateway.proc.wait(_JVM_END_TIMEOUT_S))
    except subprocess.TimeoutExpired:
        return None


def format_jvm_end(status: int) -> str:
    """Return the line for a JVM that ended by an exit code, or a negative signal number."""
    ended = f"exit code {status}" if status >= 0 else f"signal {-status}"
    hints = {
        -signal.SIGKILL: "the machine may have had no memory left: lower spark.memory",
        _OUT_OF_MEMORY_STATUS: "it had too little memory: raise spark.memory, which must hold 500 "
        "of the largest records of each partition that is read at a time",
    }
    hint = hints.get(status, "its output above has the reason")
    return f"Spark's JVM has ended with {ended}; {hint}. The next start goes on from the checkpoint"


def build_session_conf(
    spark: Spark,
    *,
    jars: Sequence[Path] | None,
    jvm_options: Sequence[str] = _JVM_OPTIONS,
) -> dict[str, str]:
    """Return all settings of a new session; those of `spark.conf` override ours.

    Args:
        jars: The jars of the Kafka connector, or None if spark-submit started the JVM: its command
            line then has the settings that a JVM is started with.
    """
    if jars is None:
        return {**BASE_CONF, **spark.conf}
    memory = f"{spark.memory // 1024**2}m"
    startup_conf = {
        "spark.master": spark.master,
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(jvm_options),
        "spark.jars": ",".join(map(str, jars)),
    }
    return {**BASE_CONF, **startup_conf, **spark.conf}


def create_job_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Create a session for one job, which shares the Spark context of another session.

    Only settings of Spark SQL are used: the others belong to the context, and cannot differ between
    jobs.
    """
    session = spark.newSession()
    for key, value in {**BASE_CONF, **conf}.items():
        if key.startswith("spark.sql."):
            session.conf.set(key, value)
    return session


def close_idle_connections(spark: SparkSession) -> None:
    """Close the connections by which the JVM calls Python and over which no call is in progress.

    py4j opens a connection for each thread of the JVM that calls Python, and each start of a query
    creates such a thread. py4j closes none of them (0.10.9.9: `PythonClient.setupCleaner` is empty,
    and its list of connections keeps those of ended threads alive). Each start of a query therefore
    left a thread and a file descriptor in Python and a file descriptor in the JVM, even after a
    collection in the JVM.

    py4j itself calls `periodicCleanup` where threads share connections. It may close the connection
    of another query between two batches; py4j opens a new one for the next batch.
    """
    from py4j.java_gateway import JavaObject

    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # py4j has no function for the Java object of its own server; this is the server's fixed id.
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    server.getCallbackClient().periodicCleanup()


class _Children(threading.local):
    """Whether the processes that this thread starts ignore SIGTERM."""

    ignore_sigterm = False


_children = _Children()


def _ignore_sigterm_if_wanted() -> None:
    if _children.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm_if_wanted)


@contextmanager
def ignore_sigterm_in_children() -> Iterator[None]:
    """Let the processes that this thread starts in the context ignore SIGTERM.

    systemd (`KillMode=control-group`, the default), `timeout` and Kubernetes' `preStop` scripts
    send SIGTERM to all processes of a service. If Spark's JVM ended before its driver, each call of
    the driver would fail, and the present batch could not end. A process inherits that a signal is
    ignored, also through `exec` (POSIX), and Java then installs no handler for it. The JVM ends
    with the driver in any case, because it reads the pipe that the driver holds.

    The signal is ignored in the child, between `fork` and `exec`. To ignore it in the driver for a
    moment would lose a signal of this moment: blocking it does not help, because the kernel gives
    it to any thread that does not block it.

    This is so for `os.fork`, and for `subprocess` if `preexec_fn` is given, as PySpark does: Python
    calls functions that are registered for a fork only in such children.
    """
    _children.ignore_sigterm = True
    try:
        yield
    finally:
        _children.ignore_sigterm = False
