"""Define the reaction to each error of Kafka, and its delay, as a table.

Delays have full jitter (each is drawn between 0 and a bound that grows) per partition or broker,
because a thousand partitions that lost one leader must not all retry at the same moment. Sources:
Kafka's error codes (protocol guide), and KIP-320 for leader epochs.

OFFSET_OUT_OF_RANGE has more than one reaction. `partition_reader` decides it for streams, by
`find_divergence`, and `kafka.group.prefetch_fetcher` for groups, by `locate_offset` of
`core.group.partition_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum

from gateway.core.backoff import BackoffPolicy
from gateway.core.error_code import ErrorCode


class Cause(StrEnum):
    """Why a partition or a broker cannot be read; also the label of a metric."""

    NOT_LEADER = "not-leader"
    NO_LEADER = "no-leader"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    OUT_OF_RANGE = "offset-out-of-range"
    UNKNOWN_TOPIC = "unknown-topic"
    DENIED = "access-denied"
    AUTHENTICATION = "authentication"
    CORRUPT = "corrupt"
    STORAGE = "storage"
    REGISTRY = "schema-registry"
    UNEXPECTED = "unexpected"


class RecoveryAction(Enum):
    REFRESH = "refresh metadata, then retry the partition"
    RECONNECT = "reconnect the broker"
    RESET = "find the offset to go on from"
    WATCH_METADATA = "keep watching metadata until it is back"
    REPORT = "inform the clients, retry slowly"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class RecoveryRule:
    """The reaction to one cause, and the bounds of its delays in seconds.

    `first_delay` is before the first retry; 0 means at once, without jitter. The bound of later
    random delays grows by `factor` from `min_delay` to `max_delay`.
    """

    action: RecoveryAction
    first_delay: float
    min_delay: float
    max_delay: float
    factor: float = 2.0


RECOVERY_RULES: dict[Cause, RecoveryRule] = {
    Cause.NOT_LEADER: RecoveryRule(
        RecoveryAction.REFRESH, first_delay=0.0, min_delay=0.02, max_delay=0.25
    ),
    Cause.NO_LEADER: RecoveryRule(
        RecoveryAction.REFRESH, first_delay=0.02, min_delay=0.02, max_delay=0.25
    ),
    Cause.CONNECTION: RecoveryRule(
        RecoveryAction.RECONNECT, first_delay=0.05, min_delay=0.05, max_delay=1.0
    ),
    Cause.TIMEOUT: RecoveryRule(
        RecoveryAction.RECONNECT, first_delay=0.05, min_delay=0.05, max_delay=1.0
    ),
    Cause.OUT_OF_RANGE: RecoveryRule(
        RecoveryAction.RESET, first_delay=0.0, min_delay=0.02, max_delay=0.25
    ),
    Cause.UNKNOWN_TOPIC: RecoveryRule(
        RecoveryAction.WATCH_METADATA, first_delay=0.25, min_delay=0.25, max_delay=2.0
    ),
    Cause.DENIED: RecoveryRule(
        RecoveryAction.REPORT, first_delay=5.0, min_delay=5.0, max_delay=60.0
    ),
    Cause.AUTHENTICATION: RecoveryRule(
        RecoveryAction.REPORT, first_delay=5.0, min_delay=5.0, max_delay=60.0
    ),
    Cause.CORRUPT: RecoveryRule(
        RecoveryAction.RETRY, first_delay=0.0, min_delay=0.25, max_delay=2.0
    ),
    Cause.STORAGE: RecoveryRule(
        RecoveryAction.REFRESH, first_delay=0.25, min_delay=0.25, max_delay=2.0
    ),
    Cause.REGISTRY: RecoveryRule(
        RecoveryAction.REPORT, first_delay=0.25, min_delay=0.25, max_delay=5.0
    ),
    Cause.UNEXPECTED: RecoveryRule(
        RecoveryAction.RETRY, first_delay=0.25, min_delay=0.25, max_delay=5.0
    ),
}

CAUSE_BY_ERROR_CODE: dict[int, Cause] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Cause.OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE: Cause.CORRUPT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Cause.UNKNOWN_TOPIC,
    ErrorCode.LEADER_NOT_AVAILABLE: Cause.NO_LEADER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Cause.NOT_LEADER,
    ErrorCode.REQUEST_TIMED_OUT: Cause.TIMEOUT,
    ErrorCode.REPLICA_NOT_AVAILABLE: Cause.NO_LEADER,
    ErrorCode.NETWORK_EXCEPTION: Cause.CONNECTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Cause.DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Cause.DENIED,
    ErrorCode.KAFKA_STORAGE_ERROR: Cause.STORAGE,
    ErrorCode.SASL_AUTHENTICATION_FAILED: Cause.AUTHENTICATION,
    ErrorCode.FENCED_LEADER_EPOCH: Cause.NOT_LEADER,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Cause.NOT_LEADER,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Cause.UNEXPECTED,
    ErrorCode.OFFSET_NOT_AVAILABLE: Cause.NO_LEADER,  # the new leader is catching up
    ErrorCode.UNKNOWN_TOPIC_ID: Cause.UNKNOWN_TOPIC,
    ErrorCode.INCONSISTENT_TOPIC_ID: Cause.UNKNOWN_TOPIC,
}


def cause_from_code(code: int) -> Cause:
    return CAUSE_BY_ERROR_CODE.get(code, Cause.UNEXPECTED)


@dataclass(slots=True)
class Backoff:
    """The delays between the retries of one partition or broker.

    Each reader and each broker connection owns one. `min_delay` and `max_delay` are those of
    `reconnect` of the topic, in seconds, for connection causes only. `attempts` counts the delays
    in a row for the present cause. `random` draws a number from [0, 1).
    """

    max_delay: float
    random: Callable[[], float]
    min_delay: float = 0.05
    attempts: int = 0
    _cause: Cause | None = None

    def next_delay(self, cause: Cause) -> float:
        """Return the seconds to wait. Another cause than last time starts with its first delay."""
        if cause is not self._cause:
            self._cause, self.attempts = cause, 0
        rule = RECOVERY_RULES[cause]
        low, high = rule.min_delay, rule.max_delay
        if rule.action is RecoveryAction.RECONNECT:
            low, high = self.min_delay, self.max_delay
        self.attempts += 1
        if self.attempts == 1 and rule.first_delay == 0.0:
            return 0.0
        policy = BackoffPolicy(low, high, jitter=1.0, factor=rule.factor)
        # Nobody gains from a quick retry of what an operator has to mend, so these causes wait
        # for at least their whole lower bound, the others for half of it.
        shortest = (
            low
            if rule.action in (RecoveryAction.REPORT, RecoveryAction.WATCH_METADATA)
            else 0.5 * low
        )
        return max(shortest, policy.compute_delay(self.attempts, self.random))

    def reset(self) -> None:
        self.attempts, self._cause = 0, None


def find_divergence(offset: int, epoch_end: int, log_end: int | None = None) -> int | None:
    """Return where the leader's log and that of a reader part; None if they agree up to here.

    `epoch_end` is where the epoch before the offset ends (OffsetForLeaderEpoch); -1 if unknown.
    """
    end = epoch_end if epoch_end >= 0 or log_end is None else log_end
    return end if 0 <= end < offset else None
