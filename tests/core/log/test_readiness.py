from __future__ import annotations

from gateway.core.log.record import Readiness, TopicPartition

PARTITIONS = [TopicPartition("orders", p) for p in range(12)]


def test_begins_with_the_first_partition_not_the_last():
    view = Readiness(set(PARTITIONS))
    assert not view.should_begin(deadline=5.0, now=0.1)
    view.mark_ready(PARTITIONS[7])
    assert view.should_begin(deadline=5.0, now=0.1)
    assert view.list_pending() == [p for p in PARTITIONS if p != PARTITIONS[7]]


def test_begins_without_any_when_the_time_is_up():
    assert Readiness(set(PARTITIONS)).should_begin(deadline=5.0, now=5.0)


def test_a_partition_that_was_lost_is_pending_until_it_is_ready_again():
    view = Readiness(set(PARTITIONS))
    view.mark_ready(PARTITIONS[0])
    view.mark_pending(PARTITIONS[0])
    assert PARTITIONS[0] in view.list_pending()
    view.mark_ready(PARTITIONS[0])
    assert PARTITIONS[0] not in view.list_pending()


def test_a_partition_nobody_spoke_of_is_known_once_it_is_ready():
    view = Readiness(set())
    view.mark_ready(PARTITIONS[3])
    assert PARTITIONS[3] in view.partitions
    assert view.list_pending() == []
