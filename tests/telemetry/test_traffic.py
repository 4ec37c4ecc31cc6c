"""What one round sent, counted for all its clients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.counts import LATENCY_BUCKETS_S, Histogram
from gateway.telemetry.traffic import ClientsBehind, SentEvent, StreamCounts, StreamCountsByRoute

NOW = 1_700_000_000.0
STAMPS = st.lists(st.none() | st.integers(-1, 5) | st.integers(0, 10**6), max_size=12)


def events(stamps: Sequence[int | None]) -> list[SentEvent]:
    """stamps: milliseconds before NOW, -1 for a record without a timestamp."""
    before = int(NOW * 1000)
    at = [each if each is None or each < 0 else before - each for each in stamps]
    return [(None, b"", None, each) for each in at]


@given(stamps=STAMPS, times=st.integers(1, 1000))
def test_every_record_is_counted_once_a_client_with_its_own_latency(stamps, times):
    traffic, wanted = StreamCounts(), Histogram(LATENCY_BUCKETS_S)
    traffic.count_sent(events(stamps), NOW, times)
    now = [each for _, _, _, each in events(stamps)]
    for stamp in now:
        if stamp is not None and stamp >= 0:
            wanted.observe(NOW - stamp * 0.001, times)
    assert traffic.latency.counts == wanted.counts
    assert traffic.latency.sum == pytest.approx(wanted.sum)
    assert traffic.untimed == times * sum(each is not None and each < 0 for each in now)
    assert traffic.records == times * sum(each is not None for each in now)


def test_a_producer_whose_clock_is_ahead_is_no_latency_at_all():
    traffic = StreamCounts()
    traffic.count_sent([(None, b"", None, int(NOW * 1000) + 5000)], NOW, 3)
    assert (traffic.latency.counts[0], traffic.latency.sum) == (3, 0.0)


def test_what_is_open_is_what_was_opened_and_has_not_ended():
    traffic = StreamCounts()
    traffic.opened = 5
    traffic.ended["drain"] += 2
    traffic.ended["left"] += 1
    assert traffic.open == 2


def test_what_one_reads_for_others_is_read_for_its_route_and_drained_for_whom_it_goes_to():
    traffic = StreamCounts("/a", "sse")
    reader = traffic.create_reader_counts()
    reader.catch_up_records["kafka"] += 7
    reader.untimed += 4
    reader.count_sent([(None, b"", None, int(NOW * 1000))], NOW)
    reader.count_gaps(["retention"])
    assert traffic.catch_up_records == {"kafka": 7}
    assert reader.drain() == (5, {"retention": 1})
    assert reader.drain() == (0, {})
    assert traffic.records == 0


def test_one_route_on_one_wire_is_counted_in_one_place():
    traffics = StreamCountsByRoute()
    assert traffics.get_counts("/a", "sse") is traffics.get_counts("/a", "sse")
    assert traffics.get_counts("/a", "sse") is not traffics.get_counts("/a", "ndjson")
    assert [(each.route, each.wire) for each in traffics] == [("/a", "sse"), ("/a", "ndjson")]


def test_who_is_behind_is_told_in_all_and_by_the_last_one():
    behind = ClientsBehind()
    for records in (3, 10, 1):
        behind.add("/a", "slow", records)
    assert behind.clients["/a", "slow"] == 3
    assert (behind.records["/a", "slow"], behind.max_records["/a", "slow"]) == (14, 10)
