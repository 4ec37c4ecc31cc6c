"""Describe one partition that the fetcher reads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from gateway.core.log.partition_reader import PartitionReader
from gateway.core.log.record import NO_EPOCH
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.fetch_messages import MAX_PARTITION_BYTES, FetchTarget

log = logging.getLogger(__name__)

_tuple_new = tuple.__new__  # 0.2 us less than `FetchTarget(...)`

PartitionWork: TypeAlias = Callable[[Callable[[], bool]], Awaitable[None]]
"""Do something for a partition, as long as the given function returns True."""


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """One partition that is read: its reader, and the request that is under way for it.

    Created and owned by the `Fetcher`. It is one of the fetcher's `idle_fetches` if and only if
    `in_flight` is None. A response to anything other than `in_flight` comes too late and is
    ignored. Times are loop times.

    Attributes:
        read_committed: Read no further than the last stable offset, without aborted records.
        newcomer_at: When it last became new to its broker; for NEWCOMER_S it is a newcomer there.
        topic_id: The id of its topic; None if the broker has none.
        in_flight: The `FetchRound` that it is part of, or the token of another request.
        replica: The nearer replica that the leader named (KIP-392); None for the leader itself.
        failures: How many fetches in a row brought a batch that makes no sense.
        is_waiting: It has not been ready since it was added.
        want: The target that was last put into a fetch session.
    """

    reader: PartitionReader
    read_committed: bool
    added_at: float
    newcomer_at: float
    topic_id: UUID | None = None
    in_flight: object | None = None
    replica: int | None = None
    replica_until: float = 0.0
    failures: int = 0
    is_waiting: bool = True
    want: FetchTarget | None = None
    role: ConnectionRole = ConnectionRole.TAIL
    _logged_state: tuple[object, ...] = ()

    def choose_node(self, now: float) -> int | None:
        """Return the broker to fetch from: the nearer replica, the leader, or None."""
        if self.replica is not None and now < self.replica_until:
            return self.replica
        return self.reader.leader

    def build_want(self) -> FetchTarget:
        """Return the present target; the same object as last time if nothing changed."""
        offset, epoch = self.reader.position.offset, self.reader.leader_epoch
        assert offset is not None
        want = self.want
        if (
            want is None
            or want.offset != offset
            or want.leader_epoch != epoch
            or want.topic_id is not self.topic_id
        ):
            # NO_EPOCH as the last fetched epoch: the reader asks for the end of an epoch itself
            # (OffsetForLeaderEpoch), so the broker need not compare it.
            fields = (offset, epoch, self.topic_id, MAX_PARTITION_BYTES, NO_EPOCH)
            want = self.want = _tuple_new(FetchTarget, fields)
        return want

    def log_state(self) -> None:
        """Log the reader's state at debug if it changed; not called after usual fetches."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        reader = self.reader
        name = reader.reported_state
        state = name, reader.cause, reader.leader, reader.leader_epoch, reader.topic_id
        if state != self._logged_state:
            self._logged_state, tp, offset = state, reader.tp, reader.position.offset
            log.debug(
                "partition state=%s cause=%s leader=%s epoch=%d offset=%s role=%s "
                "topic=%s partition=%d",
                name, str(reader.cause or "none"),
                "none" if reader.leader is None else reader.leader, reader.leader_epoch,
                "none" if offset is None else offset, self.role, tp.topic, tp.partition,
                extra=tp._asdict(),
            )  # fmt: skip
