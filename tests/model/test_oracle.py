from __future__ import annotations

import pytest
from model.oracle import BrokenPromise, Oracle
from model.simulation import Partition, SimulatedBrokers
from support.sse import SseEvent


def send_record(oracle: Oracle, partition: Partition, offset: int) -> None:
    value = partition.slots[offset].value
    oracle.check_event(SseEvent("message", b"r 0 %d %b" % (offset, value), ""))


def send_gap(oracle: Oracle, start: int, end: int, reason: str) -> None:
    oracle.check_event(SseEvent("gap", b"g 0 %d %d %b" % (start, end, reason.encode()), ""))


class TestGapAfterTruncation:
    """A client of key a has offset 1 of a, b, b, a, a: all but the first two are cut off."""

    @pytest.fixture
    def kafka(self) -> SimulatedBrokers:
        kafka = SimulatedBrokers(1)
        for key in (b"a", b"b", b"b", b"a", b"a"):
            kafka.append_record(kafka.partitions[0], 0, key)
        return kafka

    @pytest.fixture
    def oracle(self, kafka: SimulatedBrokers) -> Oracle:
        oracle = Oracle(kafka, b"a", skips=True)
        oracle.on_start(is_earliest=True, partitions=1)
        send_record(oracle, kafka.partitions[0], 0)
        self.truncate(kafka, lost=3)
        return oracle

    def truncate(self, kafka: SimulatedBrokers, lost: int) -> None:
        (partition,) = kafka.partitions
        kafka.elect_leader(partition, lost)
        for key in (b"a", b"b", b"a"):
            kafka.append_record(partition, 0, key)

    def test_may_begin_where_the_log_was_cut_off(self, oracle: Oracle):
        """A gateway that did not know of the election was held to have lost a newer record."""
        send_gap(oracle, 3, 5, "skipped")

    def test_may_not_begin_after_a_record_that_was_cut_off(self, oracle: Oracle):
        with pytest.raises(BrokenPromise, match="lost b'v6' at 2"):
            send_gap(oracle, 4, 5, "skipped")

    def test_may_not_begin_there_once_the_truncation_was_sent(self, oracle: Oracle):
        send_gap(oracle, 5, 2, "truncated")
        with pytest.raises(BrokenPromise, match="lost b'v6' at 2"):
            send_gap(oracle, 3, 5, "skipped")

    def test_may_begin_where_the_log_was_cut_off_again(self, oracle, kafka):
        send_gap(oracle, 5, 2, "truncated")
        send_record(oracle, kafka.partitions[0], 2)
        self.truncate(kafka, lost=2)
        send_gap(oracle, 4, 5, "skipped")

    def test_may_not_begin_there_once_both_truncations_were_sent(self, oracle, kafka):
        send_gap(oracle, 5, 2, "truncated")
        send_record(oracle, kafka.partitions[0], 2)
        self.truncate(kafka, lost=3)
        send_gap(oracle, 5, 2, "truncated")
        with pytest.raises(BrokenPromise, match="lost b'v9' at 2"):
            send_gap(oracle, 4, 5, "skipped")
