"""Define every exception that the gateway raises on purpose, as one tree.

    GatewayError
    +-- ConfigError
    +-- TokenError
    |   +-- TokenCorrupt, TokenForeign, TokenTooOld
    +-- KafkaError
    |   +-- BrokerUnavailable
    |   |   +-- TransactionOpen, WritesFull
    |   +-- BrokerTooOld, AuthenticationFailed, AccessDenied, UnknownTopic
    |   +-- Fenced, NotOwned
    |   +-- PartitionFailed
    |   |   +-- PartitionUnreadable
    |   +-- GroupFailed
    |       +-- GroupInUse, UnknownGroup
    +-- RecordRefused
    |   +-- RecordTooLarge, InvalidRecord, KeyReused
    +-- RequestError                                has an HTTP status
    |   +-- NotGranted, GuardUnavailable
    |   +-- Busy
    |       +-- MemoryFull
    +-- FormatError
    |   +-- SchemaNotFound
    +-- PipelineError
    |   +-- CheckpointRefused, PipelineUnavailable
    +-- TableTooLarge, RegistryUnavailable, StreamEnded, ExtraMissing, LocalBrokerError

A message has three parts: what happened, with what, and what to do.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MESSAGE_CHARS = 1000  # of a FormatError


class GatewayError(Exception):
    """The base class of all exceptions that the gateway raises on purpose."""


class ConfigError(GatewayError):
    """A configuration file is wrong.

    Attributes:
        problems: One line for each problem, `file:line:column: problem; remedy`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class TokenError(GatewayError):
    """A resume token cannot be used; nothing is replayed in its place."""


class TokenCorrupt(TokenError):
    """The token is damaged, truncated, or of a version this gateway does not know."""


class TokenForeign(TokenError):
    """The token is intact, but belongs to another cluster or to other topics."""


class TokenTooOld(TokenError):
    """The token is intact, but goes further back than the `history` of its route."""


class KafkaError(GatewayError):
    """Kafka did not do what was asked.

    Attributes:
        retry_after: Seconds after which it may be tried again; None where that is not known.
        partitions: The topic and number of each partition that a commit failed for, while the
            others are committed; None where it is not known, or where nothing was committed.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.partitions = None if partitions is None else frozenset(partitions)


class BrokerTooOld(KafkaError):
    """A broker does not speak any version of a request that the gateway speaks."""


class BrokerUnavailable(KafkaError):
    """There is no connection to a broker, or it did not answer in time.

    Attributes:
        node: The id of the broker; None for a bootstrap server or where no broker is concerned.
        timeout: Whether no answer came in time, so that what was asked may have been done.
    """

    def __init__(
        self,
        message: str,
        *,
        node: int | None = None,
        timeout: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.node = node
        self.timeout = timeout


class TransactionOpen(BrokerUnavailable):
    """A transaction did not end in time, and what lies behind its start is not known yet."""


class WritesFull(BrokerUnavailable):
    """Nothing was written: too much waits to be written already, or the gateway is closing."""


class AuthenticationFailed(KafkaError):
    """Credentials or a certificate were refused, by broker or gateway, or are unusable."""


class AccessDenied(KafkaError):
    """The gateway's principal may not use a topic, a group or a transactional id.

    Attributes:
        topic: The topic; None where something else is denied.
    """

    def __init__(self, message: str, *, topic: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic


class UnknownTopic(KafkaError):
    """No broker knows the topic."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class PartitionFailed(KafkaError):
    """One partition answered with an error."""

    def __init__(self, message: str, *, topic: str, partition: int, code: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.code = code


class PartitionUnreadable(PartitionFailed):
    """Kafka has records that cannot be read here: their batch is damaged or too large."""


class GroupFailed(KafkaError):
    """A consumer group cannot be joined or used."""

    def __init__(self, message: str, *, group: str, code: int) -> None:
        super().__init__(message)
        self.group = group
        self.code = code


class GroupInUse(GroupFailed):
    """The group has members, so that only they may change its offsets."""


class UnknownGroup(GroupFailed):
    """There is no such group, or nothing is left of it."""


class Fenced(KafkaError):
    """Another producer took over the transactional id.

    The open transaction was aborted, or completed if its commit had begun.
    """


class NotOwned(KafkaError):
    """The member does not own a partition (any more), so nothing of it is committed or read."""


class RecordRefused(GatewayError):
    """A record cannot be written as it is; whoever wrote it has to change it."""


class RecordTooLarge(RecordRefused):
    """A record is larger than its topic takes, or its key is longer than the gateway takes."""


class InvalidRecord(RecordRefused):
    """A record names a partition that does not exist, or has a reserved header or a wrong key."""


class KeyReused(RecordRefused):
    """An idempotency key was used before with a different record; nothing is written."""


class TableTooLarge(GatewayError):
    """The latest records of a topic's keys are more than its cache or the memory may hold."""


class RequestError(GatewayError):
    """A client asked for something it cannot have.

    The message is the `detail`, and `title` the title, of the problem (RFC 9457).

    Attributes:
        retry_after: Seconds after which the client may try again; None where that does not help.
    """

    def __init__(
        self, status: int, title: str, detail: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.retry_after = retry_after


class NotGranted(RequestError):
    """A guard refused a client.

    Attributes:
        challenge: The value of `WWW-Authenticate` (RFC 9110 11.6.1); None where no
            credentials would help.
        roles: The roles that the client does not have.
    """

    def __init__(
        self, status: int, detail: str, *, challenge: str | None = None, roles: Sequence[str] = ()
    ) -> None:
        title = {
            400: "Bad request",
            401: "Unauthorized",
            403: "Forbidden",
            431: "Request header fields too large",
        }[status]
        super().__init__(status, title, detail)
        self.challenge = challenge
        self.roles = tuple(roles)


class GuardUnavailable(RequestError):
    """A guard cannot decide now, because an issuer's keys or the application cannot be reached.

    The client is refused with 503, because nobody is admitted unchecked.
    """

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(503, "Guard unavailable", detail, retry_after=retry_after)


class Busy(RequestError):
    """There is no capacity for a client now; it may come back after `retry_after` seconds."""

    def __init__(self, status: int, detail: str, *, retry_after: float) -> None:
        super().__init__(status, "Busy", detail, retry_after=retry_after)


class MemoryFull(Busy):
    """Memory that cannot be freed takes most of the option `memory`; new clients are refused."""

    def __init__(self) -> None:
        detail = "the gateway has no memory left for new clients; come back later"
        # A random delay spreads the reconnects of all the clients that are refused together.
        super().__init__(503, detail, retry_after=random.uniform(3.0, 10.0))


class FormatError(GatewayError):
    """A value does not fit its format or schema; whoever wrote the value has to correct it.

    Names of a schema may have a megabyte, and the message stands in an answer once for each record.
    So the middle of long ones is left out.

    Attributes:
        pointer: The part of the value that is wrong, as a JSON pointer (RFC 6901); empty where
            it is the whole value, or where no value is concerned.
    """

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(_shorten(message))
        self.pointer = _shorten(pointer)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:400]} ... {text[-200:]}"


class SchemaNotFound(FormatError):
    """The schema registry does not have a schema, and may have it later."""


class RegistryUnavailable(GatewayError):
    """The schema registry gives no usable answer; retry after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StreamEnded(GatewayError):
    """A stream of the Python API ended before the end that was asked for.

    Attributes:
        reason: The reason, as in the `end` event.
        position: The resume token of the end, to subscribe again from there.
    """

    def __init__(self, reason: str, position: str) -> None:
        super().__init__(f"the stream ended ({reason}); subscribe again with its position")
        self.reason = reason
        self.position = position


class ExtraMissing(GatewayError):
    """Something needs an extra of the distribution; the message has the command to install it."""


class LocalBrokerError(GatewayError):
    """The local broker cannot be started; the message says what to install."""


class PipelineError(GatewayError):
    """A Spark job cannot run, or ended; the message says which job and why."""


class CheckpointRefused(PipelineError):
    """A checkpoint does not fit the definition of its job; the checkpoint was not changed.

    Attributes:
        differences: One line for each part of the definition that differs.
    """

    def __init__(self, message: str, *, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class PipelineUnavailable(PipelineError):
    """Something that a job needs is not available now; the job is started again after a while."""
