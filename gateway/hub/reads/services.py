"""What the clients of a hub read with, as one value.

`Hub` creates it at each start, and hands it to what reads for clients: nothing below the hub needs
the hub itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.kafka.client.cluster import Cluster

from .backfill_reader import BackfillReader
from .epoch_ends import EpochEnds
from .shared_reads import SharedReads
from .snapshots import Snapshots
from .token_verifier import TokenVerifier
from .topic_opener import TopicOpener

LATER_EPOCH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ReadServices:
    """Hold the readers of one hub; the hub closes them.

    Attributes:
        topics: Opens topics, and knows their settings.
        shared_reads: The reads that all clients share.
        backfill_reader: Reads from Kafka what no log holds.
        epoch_ends: Finds where leader epochs end, to verify positions.
        token_verifier: Verifies resume tokens, and bounds how far back they go.
        snapshots: The tables that snapshots are made of.
        max_take_bytes: About how many bytes are taken from a subscription at once.
        later_epoch_timeout_s: Seconds for which the leader epoch of a log stays below that of a
            position, until the position counts as one of an earlier topic, where brokers send no
            topic ids.
    """

    cluster: Cluster
    topics: TopicOpener
    shared_reads: SharedReads
    backfill_reader: BackfillReader
    epoch_ends: EpochEnds
    token_verifier: TokenVerifier
    snapshots: Snapshots
    max_take_bytes: int = 64 * 1024
    later_epoch_timeout_s: float = LATER_EPOCH_TIMEOUT_S
