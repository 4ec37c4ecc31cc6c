"""What is done about an error of Kafka, and after which delay: a table, not code.

Delays have full jitter (each is drawn between 0 and the grown bound) per partition or
broker, because a thousand partitions that lost one leader must not come back as one wave.
Sources: Kafka's error codes (protocol guide), KIP-320 for leader epochs, and
"Exponential Backoff And Jitter", Marc Brooker, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum


class Cause(StrEnum):
    """Why a partition or a broker cannot be read; also a metric's label."""

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


class Action(Enum):
    """What to do before the next attempt."""

    REFRESH = "refresh metadata, then retry the partition"
    RECONNECT = "reconnect the broker"
    RESET = "find the offset to go on from"
    WATCH = "keep watching metadata until it is back"
    TELL = "tell the clients, retry slowly"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Rule:
    """action, and the delay's bounds in seconds: `first` for the first retry (0 is at
    once), growing by `factor` from `low` to `high`."""

    action: Action
    first: float
    low: float
    high: float
    factor: float = 2.0


RULES: dict[Cause, Rule] = {
    Cause.NOT_LEADER: Rule(Action.REFRESH, first=0.0, low=0.02, high=0.25),
    Cause.NO_LEADER: Rule(Action.REFRESH, first=0.02, low=0.02, high=0.25),
    Cause.CONNECTION: Rule(Action.RECONNECT, first=0.05, low=0.05, high=1.0),
    Cause.TIMEOUT: Rule(Action.RECONNECT, first=0.05, low=0.05, high=1.0),
    Cause.OUT_OF_RANGE: Rule(Action.RESET, first=0.0, low=0.02, high=0.25),
    Cause.UNKNOWN_TOPIC: Rule(Action.WATCH, first=0.25, low=0.25, high=2.0),
    Cause.DENIED: Rule(Action.TELL, first=5.0, low=5.0, high=60.0),
    Cause.AUTHENTICATION: Rule(Action.TELL, first=5.0, low=5.0, high=60.0),
    Cause.CORRUPT: Rule(Action.RETRY, first=0.0, low=0.25, high=2.0),
    Cause.STORAGE: Rule(Action.REFRESH, first=0.25, low=0.25, high=2.0),
    Cause.REGISTRY: Rule(Action.TELL, first=0.25, low=0.25, high=5.0),
    Cause.UNEXPECTED: Rule(Action.RETRY, first=0.25, low=0.25, high=5.0),
}

# Kafka's error codes, https://kafka.apache.org/protocol#protocol_error_codes
CAUSES: dict[int, Cause] = {
    1: Cause.OUT_OF_RANGE,
    2: Cause.CORRUPT,
    3: Cause.UNKNOWN_TOPIC,
    5: Cause.NO_LEADER,
    6: Cause.NOT_LEADER,
    7: Cause.TIMEOUT,
    9: Cause.NO_LEADER,  # REPLICA_NOT_AVAILABLE
    13: Cause.CONNECTION,  # NETWORK_EXCEPTION
    29: Cause.DENIED,
    31: Cause.DENIED,  # CLUSTER_AUTHORIZATION_FAILED
    56: Cause.STORAGE,
    58: Cause.AUTHENTICATION,
    74: Cause.NOT_LEADER,  # FENCED_LEADER_EPOCH
    75: Cause.NOT_LEADER,  # UNKNOWN_LEADER_EPOCH
    76: Cause.UNEXPECTED,  # UNSUPPORTED_COMPRESSION_TYPE
    78: Cause.NO_LEADER,  # OFFSET_NOT_AVAILABLE: the new leader is catching up
    100: Cause.UNKNOWN_TOPIC,  # UNKNOWN_TOPIC_ID
    103: Cause.UNKNOWN_TOPIC,  # INCONSISTENT_TOPIC_ID
}


def cause_of(code: int) -> Cause:
    """The cause behind one of Kafka's error codes; unknown codes are UNEXPECTED."""
    return CAUSES.get(code, Cause.UNEXPECTED)


@dataclass(slots=True)
class Backoff:
    """Delays of one partition's or broker's retries.

    ceiling: `reconnect.max` of the topic, in seconds; bounds connection causes.
    random:  draws from [0, 1).
    """

    ceiling: float
    random: Callable[[], float]
    floor: float = 0.05
    attempts: int = 0
    _cause: Cause | None = None

    def delay(self, cause: Cause) -> float:
        """Seconds to wait before the next attempt. Another cause starts over."""
        if cause is not self._cause:
            self._cause, self.attempts = cause, 0
        rule = RULES[cause]
        low, high = rule.low, rule.high
        if rule.action is Action.RECONNECT:
            low, high = self.floor, self.ceiling
        self.attempts += 1
        if self.attempts == 1 and rule.first == 0.0:
            return 0.0
        # the exponent is bounded: 2 ** 1024 is no delay at all
        bound = min(high, low * rule.factor ** min(self.attempts - 1, 32))
        least = low if rule.action in (Action.TELL, Action.WATCH) else 0.5 * low
        return max(least, bound * self.random())

    def succeeded(self) -> None:
        self.attempts, self._cause = 0, None
