"""What a token is taken for; that a resume is exact is shown end to end (tests/e2e)."""

from __future__ import annotations

import pytest

from gateway.core.channel.tail import Tail
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    NO_EPOCH,
    RETIRED_EPOCH,
    UNVERIFIED_LINEAGE,
    PartitionPosition,
    TopicPartition,
)
from gateway.core.token.resume_token import (
    ResumeToken,
    TokenWriter,
    TopicPositions,
    parse_token,
    seal_token,
)
from gateway.errors import TokenForeign
from gateway.hub.reads.position_resolver import (
    build_position,
    check_token,
    has_recreated_topic,
)
from gateway.hub.reads.shared_tail import count_partitions

ORDERS = TopicPositions("orders", "id-1", [5, None, 7], [2, 3, 2])


def build_token(*topics: TopicPositions, cluster: str = "c1") -> ResumeToken:
    return parse_token(seal_token(TokenWriter(cluster, topics).to_text(), b"view-").decode())


def build_tail(id: str = "id-1", partitions: int = 3, **others: int) -> Tail:
    """A tail of `orders`, and of other topics with so many partitions."""
    tps = [TopicPartition("orders", p) for p in range(partitions)]
    tps += [TopicPartition(name, p) for name, count in others.items() for p in range(count)]
    ids = {"orders": id} | {name: f"id-{name}" for name in others}
    return Tail("c1", [PartitionLog(tp, 1000, 60.0) for tp in tps], ids)


def test_a_token_of_this_cluster_and_topic_is_taken():
    check_token(build_token(ORDERS), "c1", ("orders",))
    check_token(build_token(ORDERS), "c1", ("refunds", "orders"))


def test_a_token_of_another_cluster_is_refused_with_what_to_do():
    with pytest.raises(TokenForeign, match=r"of another cluster; connect without Last-Event-ID"):
        check_token(build_token(ORDERS), "c2", ("orders",))


def test_a_token_of_other_topics_is_refused_with_those_that_are_here():
    with pytest.raises(TokenForeign, match=r"another stream \(here: a, b\); connect without"):
        check_token(build_token(ORDERS), "c1", ("a", "b"))


def test_a_cluster_that_is_not_known_yet_refuses_nobody():
    check_token(build_token(ORDERS), "", ("orders",))
    check_token(build_token(ORDERS, cluster=""), "c1", ("orders",))


def test_each_partition_stands_where_the_token_says_and_is_not_believed_yet():
    assert build_position(build_token(ORDERS), build_tail()) == {
        TopicPartition("orders", 0): PartitionPosition(5, 2, UNVERIFIED_LINEAGE),
        TopicPartition("orders", 1): PartitionPosition(None, 3, UNVERIFIED_LINEAGE),
        TopicPartition("orders", 2): PartitionPosition(7, 2, UNVERIFIED_LINEAGE),
    }


def test_a_partition_that_came_after_the_token_starts_at_its_first_record():
    own = build_position(build_token(ORDERS), build_tail(partitions=4))
    assert own[TopicPartition("orders", 3)] == PartitionPosition(0, NO_EPOCH, UNVERIFIED_LINEAGE)


def test_a_partition_that_metadata_here_does_not_know_yet_keeps_its_place():
    """Another replica had seen it: forgotten here, it would have been read again from 0."""
    own = build_position(build_token(ORDERS), build_tail(partitions=2))
    assert own[TopicPartition("orders", 2)] == PartitionPosition(7, 2, UNVERIFIED_LINEAGE)


def test_a_topic_that_was_added_to_the_route_starts_live_and_the_others_keep_their_place():
    own = build_position(build_token(ORDERS), build_tail(refunds=2))
    assert {tp.topic for tp in own} == {"orders"}


def test_a_topic_that_was_taken_off_the_route_is_forgotten():
    refunds = TopicPositions("refunds", "id-refunds", [9], [0])
    assert build_position(build_token(refunds, ORDERS), build_tail()) == build_position(
        build_token(ORDERS), build_tail()
    )


def test_a_token_of_an_earlier_topic_of_the_name_is_marked_as_such():
    own = build_position(build_token(ORDERS), build_tail(id="id-2"))
    assert {place.epoch for place in own.values()} == {RETIRED_EPOCH}
    assert has_recreated_topic(build_token(ORDERS), build_tail(id="id-2"))


@pytest.mark.parametrize("id", ["id-1", ""], ids=["the same id", "a cluster without ids"])
def test_a_topic_is_not_called_recreated_without_two_ids_that_differ(id: str):
    assert not has_recreated_topic(build_token(ORDERS), build_tail(id=id))
    assert not has_recreated_topic(
        build_token(TopicPositions("orders", "", [5], [2])), build_tail()
    )


def test_topics_are_named_with_how_many_partitions_they_have():
    assert count_partitions(build_tail(refunds=2).logs) == {"orders": 3, "refunds": 2}
