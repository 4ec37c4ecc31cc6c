"""Provide the bytes of one client: its subscription, and what is read for it.

A `ClientSource` knows nothing of the way that its bytes go: a `Client` is one that has an outlet,
and a `SharedCatchUp` keeps those of its leader. Each sets `subscription.delivery`, and is woken
when there may be more. The bytes come from the channel's ring, from the private reader, which
`Backfill` feeds from Kafka, or from a `SharedCatchUp`, which reads for several clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SubscriptionTerms
from gateway.core.log.partition_reader import TimestampStart
from gateway.core.log.record import GapReason, Position, TopicPartition
from gateway.hub.reads.backfill import Backfill
from gateway.hub.reads.pacing import RateLimiter
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.reads.services import ReadServices
from gateway.hub.reads.shared_tail import SharedTail
from gateway.hub.wires.wire import Beginning, Wire
from gateway.telemetry.logs import log_context
from gateway.telemetry.traffic import CATCHING_UP, NO_CREDIT, SLOW, THROTTLED

from .state_log import LIVE, StateLog
from .state_log import log as state_logger

if TYPE_CHECKING:
    from .shared_catch_up import SharedCatchUp, SharedCatchUps


class ClientPosition(NamedTuple):
    position: Position
    topic_ids: Mapping[str, str]


class ClientSource:
    """The source of the bytes of one client, from its first block to its end.

    The leader of a shared catch-up is one alone. It has the number 0, for which no states are
    logged. The resume token of `start` is verified.
    """

    __slots__ = (
        "_backfill", "_services", "_state_log", "_wire", "number", "rate_limiter",
        "shared_catch_up", "shared_tail", "subscription",
    )  # fmt: skip

    def __init__(
        self,
        services: ReadServices,
        shared_tail: SharedTail,
        subscription: Subscription,
        wire: Wire,
        start: StreamStart,
        number: int = 0,
    ) -> None:
        self.subscription = subscription
        self.shared_tail = shared_tail
        self.shared_catch_up: SharedCatchUp | None = None
        self.rate_limiter: RateLimiter | None = None
        self.number = number
        self._services = services
        self._wire = wire
        self._backfill: Backfill | None = None
        self._state_log: StateLog | None = None  # created when it first logs
        if start.token is not None or start.since is not None or subscription.private_positions:
            self._backfill = self._create_backfill(start)

    def limit_rate(self, rate_limiter: RateLimiter) -> None:
        """Limit the rate from now on; called before anything is taken."""
        self.rate_limiter = rate_limiter

    def encode_begin(
        self,
        catch_ups: SharedCatchUps,
        *,
        heartbeat: float,
        position_refused: bool,
        is_continuation: bool,
    ) -> bytes:
        """Return the first block. It is called once, before anything that follows is taken."""
        shared_reads, subscription = self._services.shared_reads, self.subscription
        if self._backfill is not None:
            self._backfill.retire_recreated()
        # What BEGIN calls pending must be so at this instant.
        shared_reads.refresh_readiness(self.shared_tail)
        pending, token = subscription.begin()
        shared_reads.pin_starts(pending)
        # Partitions that only its token knows of are pending, too, for this client only.
        logs = self.shared_tail.tail.logs
        unknown = [tp for tp in subscription.private_positions if tp not in logs]
        pending = sorted([*pending, *unknown])
        data = self._build_begin_data(pending) | {"heartbeat": heartbeat}
        if is_continuation:
            data["changed"] = True
        first = self._wire.encode_begin(Beginning(data, token, position_refused, is_continuation))
        traffic = subscription.traffic
        traffic.token_bytes.observe(len(token))
        if position_refused:
            traffic.count_gaps((GapReason.POSITION_REFUSED,))
        self._count_private(first)
        # Before its backfill is started: a member reads nothing itself.
        if self._backfill is not None:
            self.shared_catch_up = catch_ups.join(self)
        if state_logger.isEnabledFor(logging.DEBUG) and self.number:
            state_log = self._get_state_log()
            state_log.log_begin(data["topics"], pending, subscription.private_positions)
            if self.shared_catch_up is not None:
                state_log.log_joined()
        self._start_backfill()
        return first

    def _build_begin_data(self, pending: Sequence[TopicPartition]) -> dict[str, Any]:
        tail = self.shared_tail.tail
        # Conflated output and snapshots have an id only at the end of each flush.
        flushes = tail.is_conflated or self.subscription.snapshot is not None
        data: dict[str, Any] = {
            "topics": list(tail.topic_ids),
            "partitions": self.shared_tail.count_partitions(),
            "pending": [{"topic": tp.topic, "partition": tp.partition} for tp in pending],
            "resume": "exact" if tail.has_exact_tokens and not flushes else "batch",
        }
        token = None if self._backfill is None else self._backfill.token
        if token is not None and token.view_digest != self.subscription.channel.view_digest:
            data["view"] = "changed"
        return data

    def take(self) -> bytes:
        """Return about `max_take_bytes` that can be sent now; empty while there are none."""
        subscription = self.subscription
        if subscription.end_reason is EndReason.TOKEN_EXPIRED:
            # Nothing more is sent after the expiry. A member of a shared catch-up has to get its
            # position back first, because `end` carries it.
            if self.shared_catch_up is not None:
                self.shared_catch_up.release_member(self)
            return b""
        if self.shared_catch_up is not None:
            data = self.shared_catch_up.take_piece(self)
            if data is not None:
                return self._count_private(data)
            # `resume` was called: from here on it goes on by itself.
        # Ids name a topic as it is now: positions of an earlier one must be marked before.
        if self._backfill is not None:
            self._backfill.retire_recreated()
        max_bytes = self._services.max_take_bytes
        if self.rate_limiter is None:
            data = subscription.take(max_bytes, time.time())
        else:
            data = self.rate_limiter.take(subscription, max_bytes, self._wake)
        subscription.traffic.bytes += len(data)
        self._start_backfill()  # what was taken made space for more, or moved a position
        return data

    def encode_event(self, kind: str, data: Mapping[str, Any]) -> bytes:
        return self._count_private(self._wire.encode_event(kind, dict(data)))

    def encode_heartbeat(self) -> bytes:
        """Return a heartbeat; empty on wires that have none."""
        return self._count_private(self._wire.encode_heartbeat())

    def encode_end(self, reason: EndReason) -> bytes:
        subscription = self.subscription
        last = self._wire.encode_end(reason, subscription.token, subscription.delivered_sum)
        subscription.traffic.bytes += len(last)
        return last

    def _count_private(self, data: bytes) -> bytes:
        self.subscription.count_private(data)
        self.subscription.traffic.bytes += len(data)
        return data

    @property
    def credit(self) -> int | None:
        return self.subscription.credit if self.rate_limiter is None else self.rate_limiter.credit

    def find_state(self, *, is_full: bool) -> str:
        """Return why it may not have all that was published, if rounds do not write to it."""
        if is_full:
            return SLOW
        if self.subscription.credit != 0:
            return CATCHING_UP
        return NO_CREDIT if self.credit == 0 else THROTTLED

    def log_changes(self, *, is_full: bool = False) -> None:
        """Log how its state differs from the last line; callers ask first whether to log."""
        if not self.number:
            return
        state, subscription = self.find_state(is_full=is_full), self.subscription
        if self.shared_catch_up is not None:  # its subscription is not up to date meanwhile
            self._get_state_log().log_waiting(state)
            return
        has_all = subscription.next_seq == subscription.channel.next_seq
        if state == CATCHING_UP and has_all and subscription.private_reader is None:
            state = LIVE
        self._get_state_log().log_state(state, subscription)

    def stop_reading(self, *, keep_position: bool = False) -> None:
        """Stop reading for the client, and following its channel. It may be called again.

        `keep_position` keeps the position for a last id or a handover.
        """
        if self.rate_limiter is not None:
            self.rate_limiter.close()
        if self.shared_catch_up is not None:
            self.shared_catch_up.remove_member(self)
        # References that are cycles are dropped, so that a closed client is freed at once. Else
        # its 40 objects and the texts of its filters wait for the garbage collector.
        if self._backfill is not None:
            self._backfill.close()
            self._backfill = None
        self.subscription.close(keep_position=keep_position)
        self.shared_tail.on_client_left(self.subscription.channel)

    # what a shared catch-up needs

    @property
    def max_age(self) -> float | None:
        """Return how many seconds its route lets it go back; None for no limit."""
        token = None if self._backfill is None else self._backfill.token
        return None if token is None else token.max_age

    @property
    def since(self) -> TimestampStart | None:
        return None if self._backfill is None else self._backfill.start.since

    def get_position(self) -> ClientPosition:
        """Return where it stands, also while a shared catch-up reads for it.

        Clients that began with this one can `resume` from it, too.
        """
        if self.shared_catch_up is not None:
            return self.shared_catch_up.get_member_position(self)
        return ClientPosition(
            self.subscription.get_position(), self._backfill.topic_ids if self._backfill else {}
        )

    def resume(self, position: ClientPosition, cursor: int | None = None) -> None:
        """Leave a shared catch-up and go on from a position.

        `cursor` is the number of the channel's chunk that follows the position; None if the
        position is not one of the channel's.
        """
        left, self.shared_catch_up = self.shared_catch_up, None
        self.subscription.reattach(position.position, cursor)
        if self._backfill is not None:
            self._backfill.topic_ids = position.topic_ids
        if left is not None and state_logger.isEnabledFor(logging.DEBUG):
            has_ended = self.subscription.end_reason or left.subscription.end_reason
            cause = "ended" if has_ended else SLOW if cursor is None else "caught-up"
            self._get_state_log().log_left(cause, self.subscription.private_positions)

    def create_twin(self) -> ClientSource:
        """Create a source without a client that starts from the same position as this one.

        Its bytes are counted for nobody, its reads for this client's route. Its creator owns it.
        """
        subscription = self.subscription
        return ClientSource(
            self._services,
            self.shared_tail,
            Subscription(
                subscription.channel,
                subscription.private_positions,
                SubscriptionTerms(
                    resolve_since=subscription.resolve_since, client_key=subscription.client_key
                ),
                subscription.traffic.create_reader_counts(),
            ),
            self._wire,
            StreamStart() if self._backfill is None else self._backfill.start,
        )

    # reading

    def _create_backfill(self, start: StreamStart) -> Backfill:
        return Backfill(self._services, self.shared_tail, self.subscription, self._wake, start)

    def _wake(self) -> None:
        self.subscription.wake()  # not bound earlier: what delivers the bytes sets it later

    def _start_backfill(self) -> None:
        if self.subscription.private_reader is None or self.shared_catch_up is not None:
            return
        if self._backfill is None:
            self._backfill = self._create_backfill(StreamStart())
        with self.log_context():  # the calling task may serve another stream
            self._backfill.start_missing()

    def log_context(self) -> log_context:
        return log_context(**self._build_log_ids())

    def _build_log_ids(self) -> dict[str, Any]:
        return {
            "route": self.subscription.traffic.route or None,
            "stream": self.number or None,  # the leader of a shared catch-up is no stream
        }

    def _get_state_log(self) -> StateLog:
        if self._state_log is None:
            self._state_log = StateLog(self._build_log_ids())
        return self._state_log
