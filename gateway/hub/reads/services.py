"""Define the readers that the clients of a hub use, as one value.

`Hub` creates it at each start: nothing below the hub needs the hub itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.kafka.client.cluster import Cluster

from .backfill_reader import BackfillReader
from .shared_reads import SharedReads
from .snapshots import Snapshots
from .token_verifier import TokenVerifier
from .topic_opener import TopicOpener

LATER_EPOCH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ReadServices:
    """The readers of one hub; the hub closes them.

    Attributes:
        max_take_bytes: About how many bytes are taken from a subscription at once.
        later_epoch_timeout_s: Seconds for which the leader epoch of a log stays below that of a
            position, until the position counts as one of an earlier topic, where brokers send no
            topic ids.
    """

    cluster: Cluster
    topics: TopicOpener
    shared_reads: SharedReads
    backfill_reader: BackfillReader
    token_verifier: TokenVerifier
    snapshots: Snapshots
    max_take_bytes: int = 64 * 1024
    later_epoch_timeout_s: float = LATER_EPOCH_TIMEOUT_S
