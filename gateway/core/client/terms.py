"""Say on which terms a client is served: where its stream ends, and what becomes of it if slow."""

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
    """Describe what a client asked for, besides its channel and its positions.

    The hub creates one for each `Subscription`. What changes while the client is served, such as
    its credit, is kept by the subscription.

    Attributes:
        slow_policy: What happens when the client falls behind.
        end_offsets: Offsets at which partitions end; the stream ends when all have. None for no
            end. A client with an end reads privately throughout.
        max_records: How many records to send before the stream ends; None for no end.
        credit: How many records the client may be sent at first; None for any number.
        resolve_since: As of when pending partitions are resolved, in seconds since 1970.
        snapshot: The snapshot to begin with; None for none.
        reads_partition: Whether a partition may hold what the view lets through; None if every
            one may. What a token says about the others is neither verified nor read.
        delivered_sum: The sum over what the client was sent before; None on wires without sums.
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
