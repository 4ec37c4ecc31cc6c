"""One line of what Spark says in pages, and whether to try again."""

from __future__ import annotations

import os
import signal
import traceback
import weakref
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gateway.errors import PipelineUnavailable
from gateway.pipeline.failures import (
    MAX_REASON_CHARS,
    TIMESTAMP_ADVICE,
    ExceptionCause,
    build_kafka_error,
    classify_causes,
    clear_frames,
    explain_error,
)
from gateway.pipeline.run.job_run import classify_error

STREAM = ExceptionCause(
    "org.apache.spark.sql.streaming.StreamingQueryException",
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: long\nplan\nplan",
)
SPARK = "org.apache.spark.SparkException"
PYTHON = "An exception was raised by the Python Proxy. Return Message: Traceback (most recent " + (
    'call last):\n  File "writer.py", line 1, in __call__\n    raise x\n'
)


def test_the_innermost_cause_is_told_in_one_line():
    timeout = ExceptionCause(
        "org.apache.kafka.common.errors.TimeoutException", "Timed out waiting\nmore"
    )
    outer = ExceptionCause("java.util.concurrent.ExecutionException", "org.apache.kafka...")
    failure = classify_causes([STREAM, outer, timeout])
    assert failure == ("TimeoutException: Timed out waiting", True)


def test_of_a_python_function_the_last_line_of_the_trace():
    raised = ExceptionCause("py4j.Py4JException", PYTHON + "ValueError: bad row\n")
    outer = ExceptionCause(
        "org.apache.spark.sql.execution.streaming.ForeachBatchUserFuncException", "[X] y"
    )
    assert classify_causes([STREAM, outer, raised]) == ("ValueError: bad row", False)
    without_text = ExceptionCause("py4j.Py4JException", PYTHON + "MemoryError\n")
    assert classify_causes([STREAM, without_text]) == ("MemoryError", False)


def test_our_own_errors_say_enough_by_themselves():
    said = "batch 3 could not be committed to out: _TIMED_OUT; the next start finishes it"
    for name, transient in (("PipelineUnavailable", True), ("PipelineError", False)):
        raised = ExceptionCause("py4j.Py4JException", f"{PYTHON}gateway.errors.{name}: {said}\n")
        assert classify_causes([STREAM, raised]) == (said, transient)


@pytest.mark.parametrize(
    ("kind", "message", "transient"),
    [
        ("org.apache.kafka.common.errors.DisconnectException", "", True),
        ("java.net.ConnectException", "Connection refused", True),
        (
            "java.util.concurrent.TimeoutException",
            "Cannot fetch record for offset 4711 in 120000 milliseconds",
            True,
        ),
        ("org.apache.kafka.common.KafkaException", "Failed to create new KafkaAdminClient", True),
        ("py4j.Py4JException", "cimpl.KafkaException: KafkaError{code=_TRANSPORT,val=-195", True),
        ("x", "gateway.errors.RegistryUnavailable: the registry does not answer", True),
        (SPARK, "Timed out while waiting for the Python worker to connect back", True),
        (SPARK, "Lost task 0.3 (executor 3): ExecutorLostFailure (code 137)", True),
        (SPARK, "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output", True),
        ("x", "[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] An error occurred", True),
        ("py4j.Py4JException", PYTHON + "OSError: [Errno 24] Too many open files: 'x'", True),
        ("java.io.IOException", "No space left on device", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException", "Not authorized", False),
        ("org.apache.kafka.common.errors.RecordTooLargeException", "too large", False),
        ("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero.", False),
        ("java.lang.OutOfMemoryError", "Java heap space", False),
    ],
)
def test_what_may_pass_is_tried_again_and_data_is_not(kind, message, transient):
    assert classify_causes([STREAM, ExceptionCause(kind, message)]).is_transient is transient


def test_what_is_final_says_what_to_do_also_where_its_wrapper_may_pass():
    """A client that cannot be made was tried again for ever where its user is not let in."""
    outer = ExceptionCause(
        "org.apache.kafka.common.KafkaException", "Failed to create new KafkaAdminClient"
    )
    inner = ExceptionCause(
        "org.apache.kafka.common.errors.SaslAuthenticationException", "no such user"
    )
    said = "SaslAuthenticationException: no such user; correct kafka.security"
    assert classify_causes([STREAM, outer, inner]) == (said, False)


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError.INVALID_REPLICATION_FACTOR, True),  # while a broker restarts
        (KafkaError._TRANSPORT, True),
        (KafkaError._FENCED, True),
    ],
)
def test_an_error_of_kafkas_is_final_or_worth_another_try(code: int, transient: bool):
    error = build_kafka_error("topic out cannot be made", KafkaException(KafkaError(code, "why")))
    assert isinstance(error, PipelineUnavailable) is transient
    assert str(error).startswith("topic out cannot be made: why")
    assert ("; " in str(error)) is not transient  # what to do


def test_a_record_timestamp_that_spark_cannot_express_is_told_with_what_to_do():
    """The reason was "long overflow", of the innermost cause, which does not name the record."""
    said = "Record at topic t partition 0 offset 2 has timestamp value 17 that overflows when x.\ny"
    raised = ExceptionCause(
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException", f"[KAFKA_M] {said}"
    )
    failure = classify_causes(
        [STREAM, raised, ExceptionCause("java.lang.ArithmeticException", "long overflow")]
    )
    assert not failure.is_transient
    assert failure.reason == f"{said.partition(' when')[0]}; {TIMESTAMP_ADVICE}"
    assert "kafka-delete-records.sh" in failure.reason
    before = ExceptionCause("x", said.replace("value 17", "value -17"))
    assert "value -17 that overflows; " in classify_causes([STREAM, before]).reason


def test_a_table_with_such_a_record_is_told_with_what_to_do_about_a_table():
    record = "Record at topic t partition 0 offset 2 has timestamp value 17 that overflows"
    said = explain_error(ValueError(f"[KAFKA_M] {record} when x.\ny"))
    assert said.startswith(f"{record}; ")
    assert "kafka-delete-records.sh" not in said  # Kafka refuses that for a compacted topic
    assert "\n" not in said


def test_a_reason_is_never_pages():
    assert (
        len(classify_causes([ExceptionCause("java.lang.X", "y" * 10_000)]).reason)
        == MAX_REASON_CHARS
    )
    assert classify_causes([]).reason == "the query ended without a reason"
    assert classify_causes([STREAM]).reason.startswith("Query [id = 1, runId = 2] terminated")


JAVA = """\
py4j.protocol.Py4JJavaError: An error occurred while calling o1253.collectToPython.
: org.apache.spark.SparkException: [FAILED] Job aborted due to stage failure: Task 0 in stage 2
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: java.lang.ArithmeticException: long overflow
\tat java.base/java.lang.Math.multiplyExact(Math.java:1004)
\t... 1 more
"""


def test_of_a_call_of_java_the_cause_in_java_is_told():
    """The reason told was which call it was: "An error occurred while calling o1253..."."""
    raised = ExceptionCause("py4j.Py4JException", PYTHON + JAVA)
    assert classify_causes([STREAM, raised]).reason == "ArithmeticException: long overflow"
    without = ExceptionCause("py4j.Py4JException", PYTHON + JAVA.splitlines()[0])
    assert "An error occurred while calling o1253" in classify_causes([STREAM, without]).reason


def test_a_python_worker_that_was_killed_is_named_and_passes(spark):
    """The reason was "IOException: Broken pipe", and ended the job."""

    def die(batches: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    with pytest.raises(Exception, match="Python worker") as raised:
        spark.range(1).mapInArrow(die, "id bigint").collect()
    failure = classify_error(raised.value)
    assert failure.is_transient
    assert failure.reason.endswith("a Python worker of Spark was killed, or ran out of memory")
    java = JAVA.replace("[FAILED]", "Python worker exited unexpectedly (crashed)").replace(
        "java.lang.ArithmeticException: long overflow", "java.io.IOException: Broken pipe"
    )
    written = classify_causes([STREAM, ExceptionCause("py4j.Py4JException", PYTHON + java)])
    assert written.is_transient and written.reason.startswith("IOException: Broken pipe; a Python")


def test_what_spark_raises_here_is_told_by_its_cause_in_java(spark):
    """As above, of a call that was made here, such as that which reads a table."""
    failing = spark.sql("SELECT timestamp_millis(id * 1700000000000000000) AS at FROM range(2)")
    with pytest.raises(Exception, match=r"calling|overflow") as raised:
        failing.toArrow()
    assert "overflow" in explain_error(raised.value)
    assert "An error occurred while calling" not in explain_error(raised.value)
    assert explain_error(OSError("no such file\nat all")) == "no such file"


def test_an_exception_that_is_kept_does_not_keep_what_its_functions_had():
    """pyspark keeps that of a batch: the producers of each failed start stayed open."""

    class Client:
        pass

    clients = []

    def interrupt() -> None:
        client = Client()
        clients.append(weakref.ref(client))
        raise OSError("away")

    def write() -> None:
        client = Client()
        clients.append(weakref.ref(client))
        try:
            interrupt()
        except OSError:
            raise ValueError("not written") from None

    with pytest.raises(ValueError, match="not written") as caught:
        write()
    assert all(each() is not None for each in clients)
    clear_frames(caught.value)
    assert [each() for each in clients] == [None, None]
    assert "in write" in "".join(traceback.format_exception(caught.value))


def test_lost_records_are_named_with_what_to_do():
    """The first of Spark's lines named neither the topic nor a remedy."""
    text = (
        "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because they "
        "are not available in Kafka any more;\neither the data was aged out by Kafka or the topic "
        "may have been deleted.\nReason:\nCould not read records in offset [0, 5) for topic "
        "partition clicks-1\nwith consumer group g. SQLSTATE: 22000"
    )
    name = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
    failure = classify_causes([ExceptionCause(name, text)])
    assert not failure.is_transient
    assert failure.reason.startswith("Could not read records in offset [0, 5) for topic partition")
    assert "clicks-1; retention" in failure.reason
    assert "onDataLoss: gap" in failure.reason
