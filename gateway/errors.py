"""Every exception the gateway raises on purpose.

    GatewayError
    +-- ConfigError             a configuration file is wrong; carries every problem found
    +-- TokenError              a resume token cannot be used
    |   +-- TokenCorrupt        damaged, truncated, or of an unknown version
    |   +-- TokenForeign        whole, but of another cluster or other topics
    |   +-- TokenTooOld         further back than its route lets anyone go
    +-- KafkaError              Kafka did not do what was asked
    |   +-- BrokerUnavailable   no connection, or no answer in time
    |   +-- AuthenticationFailed
    |   +-- AccessDenied        the principal may not read or write it
    |   +-- UnknownTopic        no broker knows the topic
    |   +-- PartitionFailed     one partition answered with an error code
    |   +-- GroupFailed         a consumer group cannot be joined, or used
    |   |   +-- GroupInUse      it has members, so nobody else may change it
    |   +-- Fenced              another one has the transactional id by now: nothing is written
    |   +-- NotOwned            a partition is not this member's (any more): nothing is committed
    +-- RequestError            a client asked for something it cannot have; carries an HTTP status
    |   +-- KeyReused           an idempotency key, for another record than at first
    |   +-- NotGranted          a guard does not let the client in; carries what it lacks
    |   +-- GuardUnavailable    nobody can say now whether it may come in
    |   +-- Busy                there is no place for it now; it may come back later
    |       +-- MemoryFull      the option `memory` is used up
    +-- FormatError             a value and its format, or its schema, do not go together
    +-- RegistryUnavailable     schemas cannot be asked for now
    +-- StreamEnded             a stream of the Python API was cut short
    +-- LocalBrokerError        the local broker cannot be started
    +-- PipelineError           a Spark job cannot run, or ended; the message says of which job
        +-- CheckpointRefused   its checkpoint is of another definition; carries what differs
        +-- PipelineUnavailable what it needs is away for now; the job is tried again

A message has three parts: what happened, with what, what to do.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class GatewayError(Exception):
    """The root of the tree above."""


class ConfigError(GatewayError):
    """A configuration file is wrong.

    problems: one line each, `file:line:column: what; what to do`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class TokenError(GatewayError):
    """A resume token cannot be used; nothing is replayed in its place."""


class TokenCorrupt(TokenError):
    """The token is damaged, truncated, or of a version this gateway does not know."""


class TokenForeign(TokenError):
    """The token is whole, but belongs to another cluster or to other topics."""


class TokenTooOld(TokenError):
    """The token is whole, but goes further back than the `history` of its route."""


class KafkaError(GatewayError):
    """Kafka did not do what was asked. `retry_after` in seconds, where one is known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BrokerUnavailable(KafkaError):
    """No connection to a broker, or no answer in time. `node` is its id, None for bootstrap."""

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


class AuthenticationFailed(KafkaError):
    """The broker refused the credentials or its certificate was refused."""


class AccessDenied(KafkaError):
    """The principal may not use the topic."""

    def __init__(self, message: str, *, topic: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic


class UnknownTopic(KafkaError):
    """No broker knows the topic."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class PartitionFailed(KafkaError):
    """One partition answered with an error. `code` is Kafka's error code."""

    def __init__(self, message: str, *, topic: str, partition: int, code: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.code = code


class GroupFailed(KafkaError):
    """A consumer group cannot be joined, or used. `code` is Kafka's error code."""

    def __init__(self, message: str, *, group: str, code: int) -> None:
        super().__init__(message)
        self.group = group
        self.code = code


class GroupInUse(GroupFailed):
    """The group has members: its offsets are theirs to change."""


class Fenced(KafkaError):
    """Another one writes under the transactional id by now; what was open is undone."""


class NotOwned(KafkaError):
    """The member does not own a partition (any more); nothing of it is committed or read."""


class RequestError(GatewayError):
    """A client asked for something it cannot have.

    status: the HTTP status. title: RFC 9457 title. The message is the detail.
    """

    def __init__(
        self, status: int, title: str, detail: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.retry_after = retry_after


class KeyReused(RequestError):
    """An idempotency key came again with another record; nothing is written."""


class NotGranted(RequestError):
    """A guard does not let a client in.

    challenge: what it is asked for, as `WWW-Authenticate` has it (RFC 9110 11.6.1); None where
               no header helps. roles: those it lacks.
    """

    def __init__(
        self, status: int, detail: str, *, challenge: str | None = None, roles: Sequence[str] = ()
    ) -> None:
        title = {400: "Bad request", 401: "Unauthorized", 403: "Forbidden"}[status]
        super().__init__(status, title, detail)
        self.challenge = challenge
        self.roles = tuple(roles)


class GuardUnavailable(RequestError):
    """The keys of an issuer, or the application, cannot be asked now: nobody is let in unseen.

    retry_after in seconds.
    """

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(503, "Guard unavailable", detail, retry_after=retry_after)


class Busy(RequestError):
    """There is no place for a client now; it may come back after `retry_after` seconds."""

    def __init__(self, status: int, detail: str, *, retry_after: float) -> None:
        super().__init__(status, "Busy", detail, retry_after=retry_after)


class MemoryFull(Busy):
    """What cannot give way takes most of the option `memory`; nobody new is let in."""

    def __init__(self) -> None:
        detail = "the gateway has no memory left for new clients; come back later"
        super().__init__(503, detail, retry_after=random.uniform(3.0, 10.0))


class FormatError(GatewayError):
    """A value and its format or schema do not go together: the fault of who wrote it.

    pointer: where in the value, as a JSON pointer (RFC 6901); empty where it is all of it, or
             not about a value at all.
    """

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class RegistryUnavailable(GatewayError):
    """The registry does not answer, or not as one; `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StreamEnded(GatewayError):
    """A stream of the Python API ended before what was asked for had come.

    reason: as the `end` event has it. position: where it ended; subscribe again from there.
    """

    def __init__(self, reason: str, position: str) -> None:
        super().__init__(f"the stream ended ({reason}); subscribe again with its position")
        self.reason = reason
        self.position = position


class LocalBrokerError(GatewayError):
    """The local broker cannot be started; the message says what to install."""


class PipelineError(GatewayError):
    """A Spark job cannot run, or ended; the message says which and why."""


class CheckpointRefused(PipelineError):
    """A checkpoint does not go together with what is asked of it: nothing of it was changed.

    differences: one line for each part of the definition that is another one now.
    """

    def __init__(self, message: str, *, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class PipelineUnavailable(PipelineError):
    """Something that a job needs is away for now: the job is started again after a while."""
