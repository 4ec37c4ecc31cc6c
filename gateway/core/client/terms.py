"""Define the terms of a client: where its stream ends, and its treatment if it is slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.channel.byte_counts import ByteSum
from gateway.core.log.record import TopicPartition

from .slow_client_policy import SlowClientPolicy
from .snapshot import Snapshot

PartitionPredicate: TypeAlias = Callable[[TopicPartition], bool]


@dataclass(frozen=True, slots=True)
class SubscriptionTerms:
    """The wishes of a client, besides its channel and its positions.

    The hub creates one for each `Subscription`, which keeps the parts that change, such as credit.

    Attributes:
        end_offsets: Offsets at which partitions end; the stream ends when all have. A client with
            an end reads privately throughout.
        max_records: How many records to send before the stream ends.
        credit: How many records the client may be sent at first; others wait, in the ring at first.
        resolve_since: As of when pending partitions are resolved, in seconds since 1970.
        reads_partition: Whether a partition may hold records of the view. The others' positions of
            a token are neither verified nor read.
        delivered_sum: The sum over the earlier bytes; None on wires without sums.
    """

    slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP
    end_offsets: Mapping[TopicPartition, int] | None = None
    max_records: int | None = None
    credit: int | None = None
    resolve_since: int | None = None
    snapshot: Snapshot | None = None
    reads_partition: PartitionPredicate | None = None
    delivered_sum: ByteSum | None = None


DEFAULT_TERMS = SubscriptionTerms()
