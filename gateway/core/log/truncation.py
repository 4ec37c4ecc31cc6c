"""Decide where a reader goes on whose offset Kafka does not have (OFFSET_OUT_OF_RANGE).

Below the log, retention or DeleteRecords have removed the records. Above it, an unclean election
has cut the log off (KIP-320), and what follows the cut is not read yet.
"""

from __future__ import annotations

from enum import Enum

from .position import NO_EPOCH


class OffsetRange(Enum):
    """Where an offset lies that a broker found to be out of range, by what its leader says."""

    BELOW_LOG = "below the log"
    IN_LOG = "in the log"  # the broker that answered was behind: fetch again
    ABOVE_LOG = "above the log"
    # Of a topic of the same name that was deleted, or of a leader that is to come: brokers answer
    # so wherever the offset lies.
    OTHER_LOG = "of another log"


def locate_offset(
    offset: int, epoch: int, *, log_start: int, log_end: int, leader_epoch: int
) -> OffsetRange:
    """Return where an offset lies that is out of range.

    That a topic was deleted and created again is known by its id. Where brokers have no topic ids
    (before Kafka 2.8), it is noticed only if the leader epoch of the new topic is lower.

    Args:
        offset: The next offset to fetch.
        epoch: The leader epoch of the record before it; NO_EPOCH if unknown.
        log_start: The first offset of the leader's log.
        log_end: The end of the leader's log, not limited to the last stable offset.
        leader_epoch: The epoch of the leader; NO_EPOCH if unknown.
    """
    if offset < log_start:
        return OffsetRange.BELOW_LOG
    if leader_epoch != NO_EPOCH and epoch > leader_epoch:
        return OffsetRange.OTHER_LOG  # a log has no record of an epoch that is still to come
    return OffsetRange.IN_LOG if offset <= log_end else OffsetRange.ABOVE_LOG


def find_divergence(offset: int, epoch_end: int, log_end: int | None = None) -> int | None:
    """Return where the leader's log and that of a reader part.

    Args:
        epoch_end: Where the epoch of the record before it ends in the leader's log
            (OffsetForLeaderEpoch); -1 if the epoch is not known, to the reader or the leader.
        log_end: The end of the leader's log; None if it was not asked for.

    Returns:
        The offset from which the reader must go on; None if the logs agree up to its own.
    """
    end = epoch_end if epoch_end >= 0 or log_end is None else log_end
    return end if 0 <= end < offset else None
