from __future__ import annotations

from uuid import UUID

from gateway.kafka.client.metadata_changes import DENIED, Moved, difference
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer

ID, OTHER = UUID(int=1), UUID(int=2)


def led(leader: int, epoch: int = 0, error: int = 0) -> PartitionAnswer:
    return PartitionAnswer(leader, epoch, (1, 2), (1, 2), error)


def topic(*partitions: PartitionAnswer, topic_id: UUID | None = ID, error: int = 0) -> TopicAnswer:
    return TopicAnswer("orders", topic_id, error, dict(enumerate(partitions)))


NOTHING = TopicAnswer("orders", None, 0, {})


def test_the_first_answer_adds_every_partition():
    change = difference(NOTHING, topic(led(1), led(2)))
    assert (change.added, change.recreated, change.restored) == ((0, 1), False, False)
    assert change.topic == topic(led(1), led(2))


def test_the_same_answer_is_no_change():
    assert not difference(topic(led(1)), topic(led(1)))


def test_a_new_leader_or_epoch_is_a_move():
    change = difference(topic(led(1, 4), led(1, 4)), topic(led(2, 5), led(1, 5)))
    assert change.moved == {0: Moved(led(1, 4), led(2, 5)), 1: Moved(led(1, 4), led(1, 5))}


def test_an_older_epoch_is_not_believed():
    change = difference(topic(led(2, 5), led(1, 0)), topic(led(1, 4), led(2, 1)))
    assert change.moved.keys() == {1}
    assert change.topic.partitions == {0: led(2, 5), 1: led(2, 1)}


def test_a_broker_that_tells_no_epochs_is_believed():
    assert difference(topic(led(2, -1)), topic(led(1, -1))).moved.keys() == {0}


def test_a_lost_leader_is_a_move_with_its_error():
    change = difference(topic(led(1, 4)), topic(led(-1, 4, error=5)))
    assert change.moved[0].after.error == 5


def test_a_grown_topic_adds_the_new_partitions_only():
    change = difference(topic(led(1)), topic(led(1), led(2)))
    assert (change.added, change.moved) == ((1,), {})


def test_an_answer_with_fewer_partitions_of_the_same_topic_is_old():
    change = difference(topic(led(1), led(2)), topic(led(1)))
    assert not change
    assert change.topic.partitions.keys() == {0, 1}


def test_another_id_is_another_topic_whatever_its_epochs():
    change = difference(topic(led(1, 9), led(1, 9)), topic(led(2, 0), topic_id=OTHER))
    assert (change.recreated, change.removed, change.added) == (True, (1,), ())
    assert change.topic == topic(led(2, 0), topic_id=OTHER)


def test_denial_is_told_once_and_keeps_what_was_known():
    denied = topic(topic_id=None, error=DENIED)
    change = difference(topic(led(1)), denied)
    assert change.denied
    assert change.topic.partitions == {0: led(1)}
    assert not difference(change.topic, denied)
    assert difference(change.topic, topic(led(1))).restored
