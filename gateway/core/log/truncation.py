"""Decide where a reader goes on whose offset Kafka does not have (OFFSET_OUT_OF_RANGE).

Below the log, retention or DeleteRecords have removed the records. Above it, an unclean election
has cut the log off (KIP-320), and the records after the cut are not read yet.
"""

from __future__ import annotations

from enum import Enum

from .position import NO_EPOCH


class OffsetRange(Enum):
    BELOW_LOG = "below the log"
    IN_LOG = "in the log"  # the broker that answered was behind: fetch again
    ABOVE_LOG = "above the log"
    # Of a topic of the same name that was deleted, or of a leader that is to come: brokers answer
    # so wherever the offset lies.
    OTHER_LOG = "of another log"


def locate_offset(
    offset: int, epoch: int, *, log_start: int, log_end: int, leader_epoch: int
) -> OffsetRange:
    """Return where an offset lies that is out of range, by the leader's log and epoch.

    A topic that was created again is known by its id. Without topic ids (before Kafka 2.8), it is
    noticed only if the leader epoch of the new topic is lower. `log_end` is not limited to the last
    stable offset.
    """
    if offset < log_start:
        return OffsetRange.BELOW_LOG
    if leader_epoch != NO_EPOCH and epoch > leader_epoch:
        return OffsetRange.OTHER_LOG  # a log has no record of an epoch that is still to come
    return OffsetRange.IN_LOG if offset <= log_end else OffsetRange.ABOVE_LOG


def find_divergence(offset: int, epoch_end: int, log_end: int | None = None) -> int | None:
    """Return where the leader's log and that of a reader part; None if they agree up to here.

    `epoch_end` is where the epoch before the offset ends (OffsetForLeaderEpoch); -1 if unknown.
    """
    end = epoch_end if epoch_end >= 0 or log_end is None else log_end
    return end if 0 <= end < offset else None
