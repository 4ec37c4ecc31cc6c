"""Why a query ended: one line of it for people, and whether trying again may help.

Spark wraps what happened in three or four exceptions, some with pages of plans and traces; of a
Python function the cause is the last line of a trace within a message.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.errors import PipelineError, PipelineUnavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

# Errors that another try meets again, by librdkafka's names and Java's, and what to do. All others
# of librdkafka may pass, and those of Java and Spark that `_RETRIED` has.
_ADVICE_BY_ERRORS: Mapping[tuple[str, ...], str] = {
    (
        "MSG_SIZE_TOO_LARGE",
        "INVALID_MSG_SIZE",
        "RecordTooLargeException",
        "RecordBatchTooLargeException",
    ): "raise max.message.bytes of the topic, or make its rows smaller",
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
        "allow the job's user to make topics, or make them yourself"
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
# Of Spark's KAFKA_MALFORMED_RECORD_TIMESTAMP. Its cause, "long overflow", names no record.
_TIMESTAMP_PATTERN = re.compile(
    r"Record at topic (\S+) partition ([0-9]+) offset ([0-9]+) "
    r"has timestamp value (-?[0-9]+) that overflows"
)
_TIMESTAMP_ADVICE = (
    "Spark's connector reads no batch with it: move the topic's start behind it with "
    "kafka-delete-records.sh (a gap tells what was not read yet), and let the topic's "
    "message.timestamp.after.max.ms and .before.max.ms refuse such records"
)
_KAFKA_ERROR_PATTERN = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(\w+)|KafkaError\{code=(\w+)"
)
_RETRIABLE_PATTERN = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|"
    r"NotLeaderOr\w+|UnknownTopicOrPartition|LeaderNotAvailable|CoordinatorNotAvailable|"
    r"CoordinatorLoadInProgress|NotEnoughReplicas\w*|Retriable|FencedLeaderEpoch|UnknownLeaderEpoch|NotController)\w*"
    r"|java\.net\.(ConnectException|SocketTimeoutException|UnknownHostException|SocketException)"
    r"|KafkaError\{code=(_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_MSG_TIMED_OUT|_RESOLVE|_FENCED|"
    r"_TIMED_OUT_QUEUE|REQUEST_TIMED_OUT|COORDINATOR_\w+|NOT_COORDINATOR|LEADER_NOT_AVAILABLE|"
    r"NOT_LEADER\w*|UNKNOWN_TOPIC_OR_PART|NOT_ENOUGH_REPLICAS\w*|CONCURRENT_TRANSACTIONS|"
    r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH)\b"
    r"|\b(RegistryUnavailable|BrokerUnavailable|PipelineUnavailable|TopicMissing|TransactionInterrupted):"
    r"|Failed to (?:create new|construct) Kafka\w*"
)
_TRACEBACK_PATTERN = re.compile(r"Traceback \(most recent call last\)")
_PYTHON_ERROR_PATTERN = re.compile(r"^([A-Za-z_][\w.]*): (.*)$", re.MULTILINE)
_JAVA_CAUSE_PATTERN = re.compile(r"^(?:Caused by)?: ([A-Za-z_][\w.$]*)(?:: (.*))?$", re.MULTILINE)
_WRAPPER_PATTERN = re.compile(
    r"(StreamingQuery|Spark|ForeachBatchUserFunc|ForeachUserFunc|Execution|Py4J|Python)Exception$"
)
_CONDITION_PATTERN = re.compile(r"^\[[A-Z0-9_.]+\] ")
MAX_REASON_CHARS = 400  # characters of a reason


class QueryFailure(NamedTuple):
    """reason: one line. transient: may it be over by itself?"""

    reason: str
    is_transient: bool


class ExceptionCause(NamedTuple):
    """An exception of a chain. kind: its class."""

    class_name: str
    message: str


class UnreadableOffset(NamedTuple):
    """A record that Spark's connector cannot read, as its timestamp in microseconds is no long."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # ms since 1970

    @property
    def reason(self) -> str:
        """Return why a job ends by it, in one line."""
        place = f"topic {self.topic} partition {self.partition} offset {self.offset}"
        said = f"Record at {place} has timestamp value {self.timestamp_ms} that overflows"
        return f"{said}; {_TIMESTAMP_ADVICE}"


def find_unreadable(causes: Sequence[ExceptionCause]) -> UnreadableOffset | None:
    """Return the record that a query ended by, if it was one that Spark's connector cannot read."""
    for each in causes:
        if found := _TIMESTAMP_PATTERN.search(each.message):
            topic, *numbers = found.groups()
            return UnreadableOffset(topic, *map(int, numbers))
    return None


def classify_causes(causes: Sequence[ExceptionCause]) -> QueryFailure:
    """Of a chain of causes, the outermost first."""
    texts = [f"{each.class_name}: {each.message}" for each in causes]
    names = [
        name for text in texts for found in _KAFKA_ERROR_PATTERN.findall(text) for name in found
    ]
    if advice := next((_ADVICE_BY_ERROR[name] for name in names if name in _ADVICE_BY_ERROR), None):
        return QueryFailure(_truncate(f"{_format_reason(causes)}; {advice}"), False)
    if found := find_unreadable(causes):
        return QueryFailure(found.reason, False)
    return QueryFailure(
        _format_reason(causes), any(_RETRIABLE_PATTERN.search(text) for text in texts)
    )


def build_kafka_error(operation: str, error: KafkaException) -> PipelineError:
    """Return what to raise where Kafka did not do something: `what` and why.

    That is PipelineUnavailable where another try may help; else the message says what to do.
    """
    cause = error.args[0]
    if advice := _ADVICE_BY_ERROR.get(cause.name()):
        return PipelineError(f"{operation}: {cause.str()}; {advice}")
    return PipelineUnavailable(f"{operation}: {cause.str()}")


def list_query_causes(query: Any) -> list[ExceptionCause]:
    """Of a StreamingQuery that ended; empty if nothing failed."""
    held = query._jsq.exception()
    if not held.isDefined():
        return []
    return _list_java_causes(held.get())


def list_causes(error: BaseException) -> list[ExceptionCause]:
    """Return the causes of what was raised here: those of Java where Spark's JVM raised it, else
    itself."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return _list_java_causes(java) or [ExceptionCause(type(error).__name__, str(error))]


def explain_error(error: BaseException) -> str:
    """Return one line of why something was raised here: of Java's exceptions their cause."""
    found = list_causes(error)
    return (
        _format_reason(found)
        if "." in found[0].class_name
        else _get_first_line(found[0].message) or found[0].class_name
    )


def _list_java_causes(error: Any) -> list[ExceptionCause]:
    found: list[ExceptionCause] = []
    while error is not None and len(found) < 20:
        found.append(ExceptionCause(str(error.getClass().getName()), str(error.getMessage() or "")))
        error = error.getCause()
    return found


def _format_reason(causes: Sequence[ExceptionCause]) -> str:
    """The innermost that says something of its own."""
    for each in reversed(causes):
        if _TRACEBACK_PATTERN.search(each.message):
            raised = _PYTHON_ERROR_PATTERN.findall(each.message)
            if raised:
                kind, said = raised[-1]
                if kind.endswith("Py4JJavaError"):  # its own text says which call it was, no more
                    java = [
                        ExceptionCause(*found)
                        for found in _JAVA_CAUSE_PATTERN.findall(each.message)
                    ]
                    return _format_reason(java or [ExceptionCause(kind, said)])
                return _truncate(said if kind.startswith("gateway.errors.") else f"{kind}: {said}")
        line = _get_first_line(each.message)
        if line and not _WRAPPER_PATTERN.search(each.class_name):
            return _truncate(f"{each.class_name.rpartition('.')[2]}: {line}")
    lines = [
        _get_first_line(each.message) for each in reversed(causes) if _get_first_line(each.message)
    ]
    return _truncate(lines[0] if lines else "it ended without saying why")


def _get_first_line(message: str) -> str:
    line = next((each.strip() for each in message.splitlines() if each.strip()), "")
    return _CONDITION_PATTERN.sub("", line)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


def clear_frames(error: BaseException) -> None:
    """Let go of the local variables of the functions that an exception went through.

    They hold on to what the functions had opened for as long as anybody holds on to the exception.
    The exceptions that it was raised from are treated likewise. Traces can still be printed.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += [other for other in (each.__cause__, each.__context__) if other is not None]
