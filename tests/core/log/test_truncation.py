"""Offsets that are out of range, by what the leader says of its log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.partition_state import OffsetRange, locate_offset
from gateway.core.log.record import NO_EPOCH
from gateway.core.log.recovery import find_divergence

EPOCHS = st.integers(NO_EPOCH, 5)


@pytest.mark.parametrize(
    "offset, epoch, leader_epoch, expected",
    [
        (9, 3, 4, OffsetRange.BELOW_LOG),
        (9, 7, 4, OffsetRange.BELOW_LOG),
        (10, 3, 4, OffsetRange.IN_LOG),
        (20, NO_EPOCH, 4, OffsetRange.IN_LOG),
        (21, 3, 4, OffsetRange.ABOVE_LOG),
        (21, 4, 4, OffsetRange.ABOVE_LOG),
        (21, NO_EPOCH, 4, OffsetRange.ABOVE_LOG),
        (21, 3, NO_EPOCH, OffsetRange.ABOVE_LOG),
        (21, 5, 4, OffsetRange.OTHER_LOG),
        (15, 5, 4, OffsetRange.OTHER_LOG),
    ],
)
def test_an_offset_is_below_the_log_in_it_above_it_or_of_another_one(
    offset, epoch, leader_epoch, expected
):
    found = locate_offset(offset, epoch, log_start=10, log_end=20, leader_epoch=leader_epoch)
    assert found is expected


@given(st.lists(EPOCHS.filter(lambda epoch: epoch >= 0), max_size=12).map(sorted), st.data())
def test_a_reader_above_the_end_goes_on_in_the_log_and_never_beyond_what_the_logs_share(
    lost_log, data
):
    """The logs share their first records. Reading went on at the start of the log."""
    shared = data.draw(st.integers(0, len(lost_log)))
    later = data.draw(st.lists(st.integers(6, 8), max_size=4).map(sorted))
    log = lost_log[:shared] + later
    offset = data.draw(st.integers(0, len(lost_log)))
    is_epoch_known = offset > 0 and data.draw(st.booleans())
    epoch_end = -1
    if is_epoch_known:
        epoch = lost_log[offset - 1]
        epoch_end = sum(each <= epoch for each in log)
    found = find_divergence(offset, epoch_end, len(log))
    if found is None:
        assert offset <= len(log)
    else:
        assert found < offset and found <= len(log)
        # With the epoch, nothing of the log is passed that the reader has not read.
        assert found <= shared or not is_epoch_known
