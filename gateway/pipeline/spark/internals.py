"""Use what Spark hides: the JVM behind pyspark, the plan of a table, the run of a query.

pyspark has no public way to a query's plan, to the cause of its end in Java, to its threads, or to
Spark's store of task metrics. All private names of pyspark and py4j are used here and in no other
module; others take the Java objects that these functions return.

None of this is promised from one release of Spark to the next, so `create_session` checks the names
before and after it starts the JVM. A pyspark that lacks some is named, with the version to install.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.errors import PipelineError
from gateway.internals import Internals, find_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PYTHON_INTERNALS = (
    Internals("pyspark", "SparkContext", state={"_do_init": "_jsc _gateway _jvm"}),
    Internals(
        "pyspark.sql", "SparkSession", state={"__init__": "_jvm _jsparkSession"},
        methods={"_streamingCheckpointManager": None},
    ),
    Internals("pyspark.sql.classic.dataframe", "DataFrame", state={"__init__": "_jdf"}),
    Internals("pyspark.sql.streaming", "StreamingQuery", state={"__init__": "_jsq"}),
    Internals(
        "pyspark.errors.exceptions.captured", "CapturedException", state={"__init__": "_origin"}
    ),
    Internals("py4j.java_gateway", "JavaGateway", state={"set_gateway_client": "_gateway_client"}),
)  # fmt: skip
_SQL = "org.apache.spark.sql"
JAVA_METHODS: Mapping[str, str] = {
    f"{_SQL}.classic.Dataset": "queryExecution",
    f"{_SQL}.execution.QueryExecution": "analyzed executedPlan",
    f"{_SQL}.execution.SparkPlan": "resetMetrics metrics children",
    f"{_SQL}.catalyst.optimizer.InlineCTE": "apply",
    f"{_SQL}.execution.streaming.runtime.StreamingQueryWrapper": "streamingQuery exception",
    f"{_SQL}.execution.streaming.runtime.StreamExecution": (
        "state queryExecutionThread lastExecution"
    ),
    f"{_SQL}.execution.ui.SQLAppStatusStore": "executionsCount executionsList executionMetrics",
    "org.apache.spark.status.AppStatusStore": "job lastStageAttempt taskSummary",
    "org.apache.spark.status.api.v1.JacksonMessageWriter": "mapper",
    f"{_SQL}.streaming.PythonStreamingQueryListenerWrapper": "",
    "py4j.CallbackClient": "periodicCleanup",
}
"""The methods of Spark's classes that Java objects are asked for, separated by spaces."""

# How many stack frames of a waiting thread are searched for the method of Spark's clock.
_MAX_STACK_FRAMES = 6
_NO_DATA_MESSAGE = "Waiting for data to arrive"  # in the status of a StreamingQuery


def verify_python(internals: Iterable[Internals] = PYTHON_INTERNALS) -> None:
    """Raise PipelineError if pyspark lacks private names that are used here."""
    _refuse(find_missing(internals))


def verify_java(spark: SparkSession, methods: Mapping[str, str] = JAVA_METHODS) -> None:
    """Raise PipelineError if the JVM of a session lacks classes or methods that are used here."""
    missing = []
    for name, used in methods.items():
        if (java_class := load_class(spark, name)) is None:
            missing.append(name)
            continue
        # As one text, because each method would be a call of the JVM. All take 0.1 to 0.4 s.
        arrays = get_jvm(spark).org.apache.commons.lang3.ArrayUtils
        known = arrays.toString(java_class.getMethods())
        missing += [f"{name}.{each}" for each in used.split() if f".{each}(" not in known]
    _refuse(missing)


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        from .spark_home import SPARK_VERSION

        raise PipelineError(
            f"pyspark {version('pyspark')} is not the one that jobs are made for: it lacks "
            f"{', '.join(missing)}; pip install pyspark=={SPARK_VERSION}"
        )


def has_jvm(spark: SparkSession) -> bool:
    """Return whether a session has a JVM that this process can call, unlike one of Connect."""
    return hasattr(spark, "_jsparkSession")


def load_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the JVM of a session, or None."""
    from py4j.protocol import Py4JJavaError

    try:
        return (
            get_jvm(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
        )
    except Py4JJavaError:
        return None


def get_java_query(query: Any) -> Any:
    return query._jsq


def get_jvm(spark: SparkSession) -> Any:
    return spark._jvm


def get_hadoop_conf(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def get_gateway() -> Any:
    """Return py4j's connection to the JVM of this process; None if there is no JVM."""
    from pyspark import SparkContext

    return SparkContext._gateway


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


def get_analyzed_plan(rows: DataFrame, *, inline_ctes: bool = False) -> Any:
    """Return Spark's analysed plan of a table, optionally with WITH clauses in their places."""
    plan = rows._jdf.queryExecution().analyzed()
    if not inline_ctes:
        return plan
    jvm: Any = get_jvm(rows.sparkSession)
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)


def iterate(seq: Any) -> Iterator[Any]:
    """Yield the elements of a Seq of Scala."""
    return (seq.apply(index) for index in range(seq.size()))


def get_java_error(error: BaseException) -> Any:
    """Return the Java exception that an exception of Py4J or of pyspark is of, or None."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def get_query_error(query: Any) -> Any:
    """Return the Java exception by which a StreamingQuery has ended, or None."""
    exception = query._jsq.exception()
    return exception.get() if exception.isDefined() else None


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
    """Let the progress of the current batch count each of its rows once if it is computed again.

    Spark adds up the rows of all computations of a batch: those that are read, that are late, and
    that `observe` counts. It does not compute again what is before a shuffle, because it keeps the
    shuffle's files, so the counts of the first computation stay there.
    """
    _reset_recomputed(query._jsq.streamingQuery().lastExecution().executedPlan())


def _reset_recomputed(plan: Any) -> bool:
    """Reset what comes after the last shuffles; return whether there is one."""
    if plan.getClass().getSimpleName().endswith("ExchangeExec"):
        return True
    has_shuffle = any([_reset_recomputed(child) for child in iterate(plan.children())])
    if has_shuffle:
        metrics = plan.metrics().valuesIterator()
        while metrics.hasNext():
            metrics.next().reset()
    else:
        plan.resetMetrics()  # also those of `observe`, which are in no map
    return has_shuffle


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


def create_java_listener(listener: Any) -> Any:
    """Return the Java object of a listener of queries, for `spark.streams.addListener`."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    return jvm.PythonStreamingQueryListenerWrapper(listener)


class StatusStores(NamedTuple):
    """What the driver knows of jobs, stages and SQL executions, even without Spark's UI."""

    tracker: Any
    jobs: Any
    sql: Any
    json_mapper: Any
    """Writes one of their Java objects as JSON."""
    quantiles: Any
    """The quantiles of tasks to ask for, as an array of Java."""


def open_status_stores(spark: SparkSession, quantiles: Sequence[float]) -> StatusStores:
    context: Any = spark.sparkContext
    array = context._gateway.new_array(context._jvm.double, len(quantiles))
    for index, quantile in enumerate(quantiles):
        array[index] = quantile
    return StatusStores(
        context._jsc.statusTracker(),
        context._jsc.sc().statusStore(),
        spark._jsparkSession.sharedState().statusStore(),
        context._jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper(),
        array,
    )


def repartition_state(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Rewrite the state of a checkpoint in another number of partitions (SPARK-53720)."""
    manager: Any = spark._streamingCheckpointManager
    manager.repartition(checkpoint, partitions)
