"""Define the terms of a client's stream: its rate, its ends, and what happens if it is slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import NamedTuple, TypeAlias

from gateway.core.channel.chunk_ring import ByteSum
from gateway.core.log.record import TopicPartition

from .snapshot import Snapshot


class SlowClientPolicy(StrEnum):
    """What happens to a client that falls out of its channel's ring (`slowClient` of a route).

    CATCH_UP reads the missed records, SKIP leaves them out and sends a gap, CONFLATE sends the
    latest record of each key, and DISCONNECT ends the stream.

    `PrivateReader` applies it in `_apply_slow_policy`: after `fall_behind`, and when a client
    without credit has missed as much (`_apply_credit_policy`). CONFLATE also holds while a client
    that catches up has no credit (`_conflate_without_credit`).
    """

    CATCH_UP = "catchUp"
    SKIP = "skip"
    CONFLATE = "conflate"
    DISCONNECT = "disconnect"


PartitionPredicate: TypeAlias = Callable[[TopicPartition], bool]
ClientKey: TypeAlias = str | frozenset[str]


@dataclass(frozen=True, slots=True)
class SubscriptionTerms:
    """The wishes of a client, besides its channel and its positions.

    The hub creates one for each `Subscription`, which keeps the parts that change, such as credit.

    Attributes:
        end_offsets: Offsets at which partitions end; the stream ends when all have. A client with
            an end reads privately throughout.
        end_lineages: The lineages of the logs when their ends were asked for; None for the present.
        max_records: How many records to send before the stream ends.
        credit: How many records the client may be sent at first; others wait, in the ring at first.
        resolve_since: As of when pending partitions are resolved, in seconds since 1970.
        reads_partition: Whether a partition may hold records of the view. The others' positions of
            a token are neither verified nor read.
        delivered_sum: The sum over the earlier bytes; None on wires without sums.
        client_key: The client's guard and identity, or its address, by which clients take turns in
            being read for; a set of them for what is read for several.
    """

    slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP
    end_offsets: Mapping[TopicPartition, int] | None = None
    end_lineages: Mapping[TopicPartition, int] | None = None
    max_records: int | None = None
    credit: int | None = None
    resolve_since: int | None = None
    snapshot: Snapshot | None = None
    reads_partition: PartitionPredicate | None = None
    delivered_sum: ByteSum | None = None
    client_key: ClientKey = ""


DEFAULT_TERMS = SubscriptionTerms()


class EndReason(StrEnum):
    """Why a stream ended: the `reason` of an `end` event, and of `gateway_streams_ended_total`.

    The comment of each member says who gives it, and when. `UNSENT_END_REASONS` are in no event.

    The first reason that `SharedCursor.end` is given counts. `gateway/README.md` lists the modules
    that give them, and the README of the project the messages to clients.
    """

    # The stream itself, as it takes what it is sent.
    UNTIL = "until"  # everything up to the end that the client asked for was sent
    # The client fell out of the ring, and `slowClient` of its route is `disconnect`; or what waits
    # for it is too much of `memory`.
    SLOW = "slow"
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"  # records are lost: `offsetOutOfRange` is `fail`
    # The hub.
    LIFETIME = "lifetime"  # the stream has been open for as long as its route allows
    TOKEN_EXPIRED = "token-expired"  # what let the client in has expired, and was not renewed
    DRAIN = "drain"  # the gateway shuts down
    ERROR = "error"  # reading for the client failed by a fault of the gateway
    WAIT = "wait"  # the page of a long poll is complete
    # What clients may have: a reload, a renewal, or an operator.
    ACCESS_CHANGED = "access-changed"  # a reload or a renewal left the client without access
    ROUTE_REMOVED = "route-removed"  # a reload removed its route or its topic
    ACCESS_REVOKED = "access-revoked"  # an operator blocked the identity of the client
    PAUSED = "paused"  # an operator paused the route
    DISCONNECTED = "disconnected"  # an operator ended the stream
    # A stream that cannot be served. An EventSource is told so by a stream of one `end`, as it
    # would not connect again after any other response.
    BUSY = "busy"  # too many streams, or too many requests of the client
    KAFKA_UNAVAILABLE = "kafka-unavailable"  # Kafka does not answer; also after a reload
    GUARD_UNAVAILABLE = "guard-unavailable"  # the server that a guard asks does not answer
    REFUSED = "refused"  # the query cannot be used; the `error` before it says why
    # The client.
    UNSUBSCRIBED = "unsubscribed"  # it ended the stream by a message over WebSocket
    CLOSED = "closed"  # its socket, its `Stream` of the Python API or that gateway was closed
    LEFT = "left"  # its connection was lost before an end was written; in metrics only
    # Another client goes on with the stream on the same connection, with another view.
    CHANGED = "changed"


UNSENT_END_REASONS = frozenset({EndReason.CLOSED, EndReason.LEFT, EndReason.CHANGED})
"""Reasons that are in no `end` event. The Python API reports `closed`, metrics count the others."""


WINDOW_PARTS = 10  # what is sent within such a part of the window is remembered as one interval


class SentInterval(NamedTuple):
    first: float
    last: float
    records: int


class Throttle:
    """A bound of the records that a stream is sent in any span of `window_s` seconds (`maxRate`).

    Records are counted over every span of that length, not from one full second to the next: in no
    second, whenever it begins, does a client get more than `100/s` says. Sans-I/O: `now` is in
    seconds of any monotonic clock.

    Invariant between calls: `_sent` is in order of time, and no interval is longer than a part of
    the window. An interval counts until `window_s` seconds after its end, so the bound is never
    exceeded, and capacity comes back at most one part too late. The records of a previous throttle
    count as well, such as that of the stream before a change of its settings.
    """

    __slots__ = ("_sent", "_window_s", "max_records")

    def __init__(self, max_records: int, window_s: float, previous: Throttle | None = None) -> None:
        self.max_records = max_records
        self._window_s = window_s
        self._sent: list[SentInterval] = [] if previous is None else list(previous._sent)

    def get_capacity(self, now: float) -> int:
        sent = self._sent
        while sent and sent[0].last + self._window_s <= now:
            del sent[0]
        return max(0, self.max_records - sum(interval.records for interval in sent))

    def record_sent(self, records: int, now: float) -> None:
        sent = self._sent
        if sent and now - sent[-1].first < self._window_s / WINDOW_PARTS:
            sent[-1] = SentInterval(sent[-1].first, now, sent[-1].records + records)
        else:
            sent.append(SentInterval(now, now, records))

    def next_capacity_at(self, now: float) -> float:
        return self._sent[0].last + self._window_s if self._sent else now


_GOLDEN_RATIO = (sqrt(5) - 1) / 2


class ReconnectDelays:
    """A sequence of delays that are spread evenly over a range, however many are drawn.

    They spread the reconnects of clients that are ended at once. Delays drawn at random fill some
    seconds by chance: of 330 clients over 14 s, which is 24 a second, the fullest second had 32 in
    the median of 200 draws, and 42 at most. Multiples of the golden ratio, modulo 1, fill a range
    about evenly however many they are (the three-distance theorem): the fullest second had 25.

    One for each process, whose clients share it. `start`, from 0 to 1, is where it begins in the
    range: at random for each process, as for replicas.
    """

    def __init__(self, low_s: float, high_s: float, start: float) -> None:
        self._low_s, self._width_s = low_s, high_s - low_s
        self._place = start

    def draw_ms(self) -> int:
        self._place = (self._place + _GOLDEN_RATIO) % 1.0
        return int(1000 * (self._low_s + self._place * self._width_s))
