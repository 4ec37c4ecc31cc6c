"""Find out why a query ended: the reason in one line, and whether another attempt may help.

Spark wraps the cause in three or four exceptions, some of which have pages of plans and stack
traces. If a Python function failed, the cause is the last line of a traceback within a message.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.spark.internals import get_java_error, get_query_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

# Permanent errors, by their names in librdkafka and Java, and what to do. All other errors of
# librdkafka may be temporary, and those of Java and Spark that match `_RETRIABLE_PATTERN`.
_ADVICE_BY_ERRORS: Mapping[tuple[str, ...], str] = {
    (
        "MSG_SIZE_TOO_LARGE",
        "INVALID_MSG_SIZE",
        "RecordTooLargeException",
        "RecordBatchTooLargeException",
    ): (
        "raise max.message.bytes of the topic, which the job's user must be allowed to read "
        "(DescribeConfigs), or make its rows smaller"
    ),
    ("INVALID_RECORD", "InvalidRecordException"): (
        "a compacted topic takes no record without a key: set to.key for rows; a topic of dead "
        "letters or late records (.dlq, .late) must have cleanup.policy=delete"
    ),
    ("POLICY_VIOLATION", "PolicyViolationException"): "the cluster's policy must allow it",
    ("TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationException"): (
        "allow the job's user to read its inputs, to read and write its output, and to read and "
        "write <output>.ledger, .gaps and .dlq"
    ),
    ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorizationException"): (
        "allow the job's user to write by any transactional id"
    ),
    ("CLUSTER_AUTHORIZATION_FAILED", "ClusterAuthorizationException"): (
        "allow the job's user to create topics, or create them yourself"
    ),
    ("GROUP_AUTHORIZATION_FAILED", "GroupAuthorizationException"): (
        "allow the job's user to read with any group"
    ),
    (
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "_AUTHENTICATION",
        "SaslAuthenticationException",
        "SslAuthenticationException",
        "UnsupportedSaslMechanismException",
    ): "correct kafka.security",
    ("INVALID_TRANSACTION_TIMEOUT", "InvalidTxnTimeoutException"): (
        "lower transactionTimeout, or raise the broker's transaction.max.timeout.ms"
    ),
    ("TOPIC_EXCEPTION", "InvalidTopicException"): "correct the topic's name",
    (
        "UNSUPPORTED_VERSION",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_UNSUPPORTED_FEATURE",
        "UnsupportedVersionException",
        "UnsupportedForMessageFormatException",
    ): "it needs a newer Kafka",
}
_ADVICE_BY_ERROR = {name: advice for names, advice in _ADVICE_BY_ERRORS.items() for name in names}
# Spark's KAFKA_MALFORMED_RECORD_TIMESTAMP: the microseconds exceed 64 bits. Its cause, "long
# overflow", does not name the record.
_TIMESTAMP_PATTERN = re.compile(
    r"Record at topic \S+ partition \d+ offset \d+ has timestamp value -?\d+ that overflows"
)
TIMESTAMP_ADVICE = (
    "Spark's connector cannot read a batch with it: move the topic's start behind it with "
    "kafka-delete-records.sh (cleanup.policy must have delete; onDataLoss: gap reports what was "
    "not read yet), and let the topic's message.timestamp.after.max.ms and .before.max.ms refuse "
    "such records"
)
_TABLE_TIMESTAMP_ADVICE = (
    "Spark's connector cannot read a topic with it: write its key again, so that compaction "
    "removes it, or read a copy of the topic without it"
)
# Spark's KAFKA_DATA_LOSS, whose first line does not name the topic.
_DATA_LOSS_PATTERN = re.compile(
    r"Some data may have been lost because they are not available.*?Reason:\s*(\S[^\n]*)", re.DOTALL
)
_DATA_LOSS_ADVICE = (
    "retention deleted records before they were read: onDataLoss: gap goes on, and reports them, "
    "but damaged state cannot be replayed without them: restore a backup, or use --fresh"
)
_KAFKA_ERROR_PATTERN = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(\w+)|KafkaError\{code=(\w+)"
)
_RETRIABLE_PATTERN = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|"
    r"NotLeaderOr\w+|UnknownTopicOrPartition|LeaderNotAvailable|CoordinatorNotAvailable|"
    r"CoordinatorLoadInProgress|NotEnoughReplicas\w*|Retriable|FencedLeaderEpoch|UnknownLeaderEpoch|NotController)\w*"
    r"|java\.net\.(ConnectException|SocketTimeoutException|UnknownHostException|SocketException)"
    r"|java\.util\.concurrent\.TimeoutException"  # of Spark's connector: a fetch without an answer
    r"|KafkaError\{code=(_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_MSG_TIMED_OUT|_RESOLVE|_FENCED|"
    r"_TIMED_OUT_QUEUE|REQUEST_TIMED_OUT|COORDINATOR_\w+|NOT_COORDINATOR|LEADER_NOT_AVAILABLE|"
    r"NOT_LEADER\w*|UNKNOWN_TOPIC_OR_PART|NOT_ENOUGH_REPLICAS\w*|CONCURRENT_TRANSACTIONS|"
    r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH)\b"
    r"|\b(RegistryUnavailable|BrokerUnavailable|PipelineUnavailable|TopicMissing|TransactionInterrupted):"
    r"|Failed to (?:create new|construct) Kafka\w*"
    # Processes that Spark has lost, and a state store that a task of the last query still holds.
    r"|ExecutorLostFailure|FetchFailedException|UNRELEASED_THREAD_ERROR"
    r"|Too many open files"
)
# The cause in Java is only that of the broken connection.
_LOST_WORKER_PATTERN = re.compile(
    r"Python worker (?:exited unexpectedly|failed to connect back)|waiting for the Python worker"
    r"|Python daemon failed to launch worker"
)
_TRACEBACK_PATTERN = re.compile(r"Traceback \(most recent call last\)")
# The line of an exception in a traceback of Python, and in one of Java.
_PYTHON_ERROR_PATTERN = re.compile(
    r"^([A-Za-z_][\w.]*(?=: )|[A-Za-z_][\w.]*Error)(?:: (.*))?$", re.MULTILINE
)
_JAVA_CAUSE_PATTERN = re.compile(r"^(?:Caused by)?: ([A-Za-z_][\w.$]*)(?:: (.*))?$", re.MULTILINE)
# Exceptions that only wrap a cause.
_WRAPPER_PATTERN = re.compile(
    r"(StreamingQuery|Spark|ForeachBatchUserFunc|ForeachUserFunc|Execution|Py4J|Python)Exception$"
)
_CONDITION_PATTERN = re.compile(r"^\[[A-Z0-9_.]+\] ")  # Spark's error condition before a message
MAX_REASON_CHARS = 400
CONCURRENT_UPDATE = re.compile(
    r"\[CONCURRENT_STREAM_LOG_UPDATE\]|Multiple streaming queries are concurrently using"
)
"""In Spark's errors if another process has written a batch to the checkpoint first."""


class QueryFailure(NamedTuple):
    reason: str
    is_transient: bool


class ExceptionCause(NamedTuple):
    """An exception in a chain of causes; a class of Java has its package."""

    class_name: str
    message: str


def find_unreadable(causes: Sequence[ExceptionCause]) -> str | None:
    """Return what Spark says of a record that it cannot read, if that is why a query ended."""
    matches = (_TIMESTAMP_PATTERN.search(cause.message) for cause in causes)
    return next((match[0] for match in matches if match), None)


def classify_causes(causes: Sequence[ExceptionCause]) -> QueryFailure:
    texts = [f"{cause.class_name}: {cause.message}" for cause in causes]
    names = [
        name for text in texts for groups in _KAFKA_ERROR_PATTERN.findall(text) for name in groups
    ]
    if advice := next((_ADVICE_BY_ERROR[name] for name in names if name in _ADVICE_BY_ERROR), None):
        return QueryFailure(_truncate(f"{_format_reason(causes)}; {advice}"), False)
    is_told = any(_TABLE_TIMESTAMP_ADVICE in text for text in texts)
    if not is_told and (unreadable := find_unreadable(causes)):
        return QueryFailure(f"{unreadable}; {TIMESTAMP_ADVICE}", False)
    if lost := next(filter(None, map(_DATA_LOSS_PATTERN.search, texts)), None):
        return QueryFailure(f"{_truncate(lost[1])}; {_DATA_LOSS_ADVICE}", False)
    reason = _format_reason(causes)
    if any(_LOST_WORKER_PATTERN.search(text) for text in texts):
        advice = "a Python worker of Spark was killed, or ran out of memory"
        return QueryFailure(_truncate(f"{reason}; {advice}"), True)
    return QueryFailure(reason, any(_RETRIABLE_PATTERN.search(text) for text in texts))


def build_kafka_error(operation: str, error: KafkaException) -> PipelineError:
    """Return the error to raise if Kafka did not do something.

    This is PipelineUnavailable if another attempt may help. Otherwise the message has the remedy.
    """
    cause = error.args[0]
    if advice := _ADVICE_BY_ERROR.get(cause.name()):
        return PipelineError(f"{operation}: {cause.str()}; {advice}")
    return PipelineUnavailable(f"{operation}: {cause.str()}")


@contextmanager
def explain_kafka_errors(operation: str) -> Iterator[None]:
    """Raise `build_kafka_error` in place of an error of Kafka."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise build_kafka_error(operation, error) from error


def list_query_causes(query: Any) -> list[ExceptionCause]:
    """Return the chain of causes by which a StreamingQuery ended; empty if it did not fail."""
    return _list_java_causes(get_query_error(query))


def list_causes(error: BaseException) -> list[ExceptionCause]:
    """Return the causes of an exception, those of Java if it is of the JVM, else itself."""
    return _list_java_causes(get_java_error(error)) or [
        ExceptionCause(type(error).__name__, str(error))
    ]


def explain_error(error: BaseException) -> str:
    """Return in one line why a table cannot be read; of an exception of the JVM, its cause."""
    causes = list_causes(error)
    if unreadable := find_unreadable(causes):
        return f"{unreadable}; {_TABLE_TIMESTAMP_ADVICE}"
    return (
        _format_reason(causes)
        if "." in causes[0].class_name  # a class of Java
        else _get_first_line(causes[0].message) or causes[0].class_name
    )


def _list_java_causes(error: Any) -> list[ExceptionCause]:
    causes: list[ExceptionCause] = []
    while error is not None and len(causes) < 20:  # causes may form a cycle
        causes.append(
            ExceptionCause(str(error.getClass().getName()), str(error.getMessage() or ""))
        )
        error = error.getCause()
    return causes


def _format_reason(causes: Sequence[ExceptionCause]) -> str:
    """Return the first line of the innermost cause that is more than a wrapper."""
    for cause in reversed(causes):
        if _TRACEBACK_PATTERN.search(cause.message):
            python_errors = _PYTHON_ERROR_PATTERN.findall(cause.message)
            if python_errors:
                name, text = python_errors[-1]
                if name.endswith("Py4JJavaError"):  # its own text only names the method
                    java_causes = [
                        ExceptionCause(*match)
                        for match in _JAVA_CAUSE_PATTERN.findall(cause.message)
                    ]
                    return _format_reason(java_causes or [ExceptionCause(name, text)])
                if name.startswith("gateway.errors."):
                    return str(text)  # as a whole, as it ends with what to do
                return _truncate(f"{name}: {text}" if text else name)
        line = _get_first_line(cause.message)
        if line and not _WRAPPER_PATTERN.search(cause.class_name):
            return _truncate(f"{cause.class_name.rpartition('.')[2]}: {line}")
    lines = (_get_first_line(cause.message) for cause in reversed(causes))
    return _truncate(next(filter(None, lines), "the query ended without a reason"))


def _get_first_line(message: str) -> str:
    """Return the first line that is not empty, without Spark's error condition."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return _CONDITION_PATTERN.sub("", line)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of the functions that an exception passed.

    Otherwise everything that these functions have opened stays open as long as the exception is
    referenced. This also applies to the exceptions that it was raised from. Tracebacks can still be
    printed.
    """
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) not in seen:
            seen.add(id(current))
            traceback.clear_frames(current.__traceback__)
            related = (current.__cause__, current.__context__)
            pending += [other for other in related if other is not None]
