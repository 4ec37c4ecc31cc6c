from __future__ import annotations

from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.kafka.client.metadata_changes import compare_topics
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata

ID, OTHER = UUID(int=1), UUID(int=2)


def build_partition_answer(leader: int, epoch: int = 0, error: int = 0) -> PartitionMetadata:
    return PartitionMetadata(leader, epoch, (1, 2), (1, 2), error)


def build_topic_answer(
    *partitions: PartitionMetadata, topic_id: UUID | None = ID, error: int = 0
) -> TopicMetadata:
    return TopicMetadata("orders", topic_id, error, dict(enumerate(partitions)))


NOTHING = TopicMetadata("orders", None, 0, {})


def test_the_first_answer_adds_every_partition():
    change = compare_topics(
        NOTHING, build_topic_answer(build_partition_answer(1), build_partition_answer(2))
    )
    assert (change.added, change.is_recreated, change.is_restored) == ((0, 1), False, False)
    assert change.topic == build_topic_answer(build_partition_answer(1), build_partition_answer(2))


def test_the_same_answer_is_no_change():
    assert not compare_topics(
        build_topic_answer(build_partition_answer(1)), build_topic_answer(build_partition_answer(1))
    )


def test_a_new_leader_or_epoch_is_a_move():
    change = compare_topics(
        build_topic_answer(build_partition_answer(1, 4), build_partition_answer(1, 4)),
        build_topic_answer(build_partition_answer(2, 5), build_partition_answer(1, 5)),
    )
    assert change.leader_changes == (0, 1)
    assert change.topic.partitions == {
        0: build_partition_answer(2, 5),
        1: build_partition_answer(1, 5),
    }


def test_an_older_epoch_is_not_believed():
    change = compare_topics(
        build_topic_answer(build_partition_answer(2, 5), build_partition_answer(1, 0)),
        build_topic_answer(build_partition_answer(1, 4), build_partition_answer(2, 1)),
    )
    assert change.leader_changes == (1,)
    assert change.topic.partitions == {
        0: build_partition_answer(2, 5),
        1: build_partition_answer(2, 1),
    }


def test_a_broker_that_tells_no_epochs_is_believed():
    assert compare_topics(
        build_topic_answer(build_partition_answer(2, -1)),
        build_topic_answer(build_partition_answer(1, -1)),
    ).leader_changes == (0,)


def test_a_lost_leader_is_a_move_with_its_error():
    change = compare_topics(
        build_topic_answer(build_partition_answer(1, 4)),
        build_topic_answer(build_partition_answer(-1, 4, error=5)),
    )
    assert change.topic.partitions[0].error == 5


def test_a_grown_topic_adds_the_new_partitions_only():
    change = compare_topics(
        build_topic_answer(build_partition_answer(1)),
        build_topic_answer(build_partition_answer(1), build_partition_answer(2)),
    )
    assert (change.added, change.leader_changes) == ((1,), ())


def test_an_answer_with_fewer_partitions_of_the_same_topic_is_old():
    change = compare_topics(
        build_topic_answer(build_partition_answer(1), build_partition_answer(2)),
        build_topic_answer(build_partition_answer(1)),
    )
    assert not change
    assert change.topic.partitions.keys() == {0, 1}


def test_another_id_is_another_topic_whatever_its_epochs():
    change = compare_topics(
        build_topic_answer(build_partition_answer(1, 9), build_partition_answer(1, 9)),
        build_topic_answer(build_partition_answer(2, 0), topic_id=OTHER),
    )
    assert (change.is_recreated, change.removed, change.added) == (True, (1,), ())
    assert change.topic == build_topic_answer(build_partition_answer(2, 0), topic_id=OTHER)


def test_denial_is_told_once_and_keeps_what_was_known():
    denied = build_topic_answer(topic_id=None, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    change = compare_topics(build_topic_answer(build_partition_answer(1)), denied)
    assert change.is_denied
    assert change.topic.partitions == {0: build_partition_answer(1)}
    assert not compare_topics(change.topic, denied)
    assert compare_topics(change.topic, build_topic_answer(build_partition_answer(1))).is_restored
