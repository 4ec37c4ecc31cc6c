from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from uuid import UUID

import pytest
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.metadata import Metadata
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.protocol.requests import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

ID, OTHER = UUID(int=1), UUID(int=2)


def build_topic_answer(leader: int = 1, epoch: int = 0, topic_id: UUID | None = ID, error: int = 0):
    partitions = {} if error else {0: PartitionMetadata(leader, epoch, (1, 2), (1, 2), 0)}
    return TopicMetadata("orders", topic_id, error, partitions)


NO_SUCH = build_topic_answer(topic_id=None, error=3)
DENIED = build_topic_answer(topic_id=None, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class FakeConnections:
    """Connections to brokers that say what `says` holds: topics, an error, or nothing."""

    def __init__(self, **says: object) -> None:
        self.answers = {int(name[1:]): value for name, value in says.items()}
        self.bootstrap_answer: object = None  # as broker 1
        self.thawed = asyncio.Event()
        self.requests: list[tuple[int, tuple[str, ...]]] = []
        self.addresses: dict[int, tuple[str, int]] = {}

    def update_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        self.addresses.update(addresses)

    async def send(
        self, node: int, role: ConnectionRole, request: MetadataRequest
    ) -> MetadataResponse:
        self.requests.append((node, tuple(request.topics)))
        said = (
            self.answers[node] if node in self.answers else self.bootstrap_answer or self.answers[1]
        )
        await asyncio.sleep(0)
        if said is None:
            await self.thawed.wait()
            said = self.answers[node]
        if isinstance(said, Exception):
            raise said
        assert isinstance(said, TopicMetadata)
        brokers = tuple(BrokerMetadata(n, "127.0.0.1", 9000 + n, None) for n in self.answers)
        topics = {said.name: said} if said.name in request.topics else {}
        return MetadataResponse(0, "cluster", brokers, topics)

    def get_failure(self, node: int) -> KafkaError | None:
        said = self.answers.get(node)
        return said if isinstance(said, KafkaError) else None

    def combine_failures(self, nodes: Iterable[int]) -> KafkaError | None:
        return None

    def list_asked_nodes(self) -> list[int]:
        return [node for node, _ in self.requests]


OPENED: list[Metadata] = []  # by `open_metadata`; closed at the end of the test


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()


def open_metadata(kafka: FakeConnections, **options: float) -> tuple[Metadata, list[TopicChange]]:
    metadata = Metadata(kafka, [("127.0.0.1", 9000)], **options)  # type: ignore[arg-type]
    OPENED.append(metadata)
    changes: list[TopicChange] = []
    metadata.add_listener(changes.append)
    metadata.watch("orders")
    return metadata, changes


AWAY = BrokerUnavailable("away")


async def test_a_watched_topic_has_leaders_after_a_refresh():
    metadata, changes = open_metadata(FakeConnections(b1=build_topic_answer(leader=1, epoch=4)))
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) is None
    assert not metadata.is_reachable
    await metadata.refresh("test")
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (1, 4)
    assert metadata.leader_for_partition(TopicPartition("orders", 1)) is None
    assert (metadata.cluster_id, metadata.is_reachable) == ("cluster", True)
    assert [change.added for change in changes] == [(0,)]


async def test_what_was_described_is_known_as_soon_as_it_is_watched():
    """Topics opened one after the other had their clients wait for a refresh each, and refreshes
    are up to 250 ms apart: BEGIN on a cold topic took 250 ms (median), 12 partitions or 500."""
    kafka = FakeConnections(b1=build_topic_answer(leader=1, epoch=4))
    metadata = Metadata(kafka, [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    changes: list[TopicChange] = []
    metadata.add_listener(changes.append)
    metadata.watch("orders", await metadata.describe_topic("orders"))
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (1, 4)
    assert [change.added for change in changes] == [(0,)]
    assert len(kafka.requests) == 1
    await metadata.close()


async def test_a_watched_topic_that_was_gone_is_known_once_it_is_described_again():
    kafka = FakeConnections(b1=NO_SUCH)
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("test")
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) is None
    kafka.answers[1] = build_topic_answer(leader=2, topic_id=OTHER)
    metadata.watch("orders", await metadata.describe_topic("orders"))
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (2, 0)
    known = metadata.get_topic("orders")
    assert known is not None and known.topic_id == OTHER


async def test_all_who_ask_at_once_share_one_request():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    await asyncio.gather(*(metadata.refresh("test") for _ in range(50)))
    assert len(kafka.requests) == 1


async def test_refreshes_in_a_row_are_spaced():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    began = asyncio.get_running_loop().time()
    for _ in range(6):
        await metadata.refresh("test")
    # 0, 20, 40, 80, 160, 250 ms
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_a_partition_without_a_leader_is_asked_for_until_it_has_one():
    """A restarted broker led its partitions again for up to max_age before it was noticed."""
    kafka = FakeConnections(b1=build_topic_answer(leader=-1, epoch=4))
    metadata, _ = open_metadata(kafka, max_age=3600.0)
    metadata.start()
    await wait_until(lambda: len(kafka.requests) >= 3)
    kafka.answers[1] = build_topic_answer(leader=1, epoch=5)
    await wait_until(lambda: metadata.leader_for_partition(TopicPartition("orders", 0)) == (1, 5))


async def test_a_topic_watched_while_a_request_is_out_is_asked_for_at_once():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    first = asyncio.create_task(metadata.refresh("test"))
    await wait_until(lambda: kafka.requests)
    metadata.watch("other")
    await metadata.refresh("test")
    assert kafka.requests[-1][1] == ("orders", "other")
    await first


async def test_refreshes_requested_at_once_share_one_request():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, changes = open_metadata(kafka)
    for _ in range(50):
        metadata.request_refresh("test")
    await wait_until(lambda: changes)
    assert len(kafka.requests) == 1


async def test_a_refresh_requested_while_one_is_out_without_the_topic_is_sent():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    metadata.request_refresh("test")
    await wait_until(lambda: kafka.requests)
    metadata.watch("other")
    for _ in range(50):
        metadata.request_refresh("test")
    await wait_until(lambda: len(kafka.requests) == 2)
    assert kafka.requests[-1][1] == ("orders", "other")


async def test_a_requested_refresh_that_fails_is_no_error_in_the_log(caplog):
    metadata, _ = open_metadata(FakeConnections(b1=AWAY))
    metadata.request_refresh("test")
    await wait_until(lambda: metadata.error is not None)
    await metadata.close()
    assert "a metadata refresh failed" not in caplog.text


async def test_a_silent_broker_is_hedged_by_another_and_left_alone_next_time():
    kafka = FakeConnections(b1=None, b2=build_topic_answer(leader=2))
    kafka.bootstrap_answer = build_topic_answer(leader=2)
    metadata, _ = open_metadata(kafka, hedge_delay=0.02)
    await metadata.refresh("learn of the brokers")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await metadata.refresh("test")
        await metadata.refresh("test")
    assert kafka.list_asked_nodes() == [-1, 1, 2, 2]


async def test_a_broker_that_answers_late_is_not_the_first_to_be_asked_again():
    kafka = FakeConnections(b1=None, b2=build_topic_answer())
    kafka.bootstrap_answer = build_topic_answer()
    metadata, _ = open_metadata(kafka, hedge_delay=0.02)
    await metadata.refresh("learn of the brokers")
    await metadata.refresh("test")
    kafka.thawed.set()
    kafka.answers[1] = build_topic_answer()
    await asyncio.sleep(0)
    await metadata.refresh("test")
    assert kafka.list_asked_nodes() == [-1, 1, 2, 2]


async def test_a_broker_that_owes_an_answer_is_asked_after_one_that_failed_since():
    kafka = FakeConnections(b1=None, b2=build_topic_answer())
    kafka.bootstrap_answer = build_topic_answer()
    metadata, _ = open_metadata(kafka, hedge_delay=0.02)
    await metadata.refresh("learn of the brokers")
    await metadata.refresh("1 is silent")
    kafka.answers[2] = AWAY
    await metadata.refresh("2 fails after 1 did")
    kafka.answers[2] = build_topic_answer()
    await metadata.refresh("test")
    assert kafka.list_asked_nodes()[-1] == 2


async def test_the_failures_of_a_broker_that_left_the_cluster_are_forgotten():
    """They were kept for ever, one for each id that a broker ever had."""
    kafka = FakeConnections(b1=AWAY, b2=build_topic_answer())
    kafka.bootstrap_answer = build_topic_answer()
    metadata, _ = open_metadata(kafka, hedge_delay=60.0)
    await metadata.refresh("learn of the brokers")
    await metadata.refresh("1 fails")
    del kafka.answers[1]
    await metadata.refresh("1 is not listed any more")
    kafka.answers[1] = build_topic_answer()
    await metadata.refresh("1 is listed again")
    await metadata.refresh("1 is asked first, as if it had never failed")
    assert kafka.list_asked_nodes() == [-1, 1, 2, 2, 2, 1]


async def test_a_failing_broker_is_followed_by_the_next_at_once():
    kafka = FakeConnections(b1=AWAY, b2=build_topic_answer())
    kafka.bootstrap_answer = build_topic_answer()
    metadata, _ = open_metadata(kafka, hedge_delay=60.0)
    await metadata.refresh("learn of the brokers")
    await metadata.refresh("test")
    await metadata.refresh("test")
    assert kafka.list_asked_nodes() == [-1, 1, 2, 2]


async def test_no_broker_at_all_is_told_and_remembered():
    kafka = FakeConnections(b1=AWAY)
    metadata, _ = open_metadata(kafka)
    with pytest.raises(BrokerUnavailable):
        await metadata.refresh("test")
    assert (metadata.is_reachable, metadata.error) == (False, AWAY)
    kafka.answers[1] = build_topic_answer()
    await metadata.refresh("test")
    assert (metadata.is_reachable, metadata.error) == (True, None)


async def test_it_goes_on_by_itself_until_kafka_is_there():
    kafka = FakeConnections(b1=AWAY)
    metadata, changes = open_metadata(kafka, max_age=0.05)
    metadata.start()
    await wait_until(lambda: len(kafka.requests) >= 2)
    kafka.answers[1] = build_topic_answer(leader=1)
    await wait_until(lambda: changes)
    kafka.answers[1] = build_topic_answer(leader=2, epoch=1)
    await wait_until(lambda: len(changes) == 2)
    assert changes[1].leader_changes == (0,)


async def test_an_answer_of_a_replaced_topic_is_not_believed():
    kafka = FakeConnections(b1=build_topic_answer(epoch=9))
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("test")
    kafka.answers[1] = build_topic_answer(topic_id=OTHER)
    await metadata.refresh("test")
    kafka.answers[1] = build_topic_answer(epoch=9)
    await metadata.refresh("from a broker that has not heard")
    topic = metadata.get_topic("orders")
    assert topic is not None and topic.topic_id == OTHER
    assert [change.is_recreated for change in changes] == [False, True]


async def test_a_broker_that_lags_behind_does_not_bring_back_the_topic_before():
    """Its id took the place of the present one, which was then never believed again: clients were
    told that the topic was created again, and the elections of the present one went unnoticed."""
    new = build_topic_answer(leader=1, topic_id=OTHER)
    kafka = FakeConnections(b1=new, b2=build_topic_answer(leader=2, epoch=7, topic_id=ID))
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = AWAY
    await metadata.refresh("2 lags behind")
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (1, 0)
    kafka.answers[1] = kafka.answers[2] = build_topic_answer(epoch=9, topic_id=OTHER)
    await metadata.refresh("both know the present topic")
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (1, 9)
    assert not any(change.is_recreated for change in changes)


async def test_a_topic_that_was_created_again_is_believed_when_two_brokers_say_so():
    kafka = FakeConnections(b1=build_topic_answer(epoch=9), b2=build_topic_answer(epoch=9))
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = build_topic_answer(topic_id=OTHER)
    await metadata.refresh("1 knows it")
    await metadata.refresh("2 lags behind")
    assert kafka.list_asked_nodes()[-2:] == [1, 2]
    kafka.answers[2] = build_topic_answer(topic_id=OTHER)
    await metadata.refresh("1 knows it")
    assert not any(change.is_recreated for change in changes)
    await metadata.refresh("2 knows it, too")
    assert [change.is_recreated for change in changes] == [False, True]


async def test_a_new_topic_is_known_after_a_refresh_that_is_to_be_certain():
    """After one refresh the new id was only a claim of one broker, so a client whose token was of
    the new topic was told that the topic was created again."""
    kafka = FakeConnections(**{f"b{node}": build_topic_answer(epoch=9) for node in (1, 2, 3)})
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers = dict.fromkeys(kafka.answers, build_topic_answer(topic_id=OTHER))
    await metadata.refresh_until_certain(["orders"], "test")
    topic = metadata.get_topic("orders")
    assert topic is not None and topic.topic_id == OTHER


async def test_it_is_not_certain_which_topic_it_is_while_brokers_name_different_ones():
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = build_topic_answer(topic_id=OTHER)
    refreshing = asyncio.create_task(metadata.refresh_until_certain(["orders"], "test"))
    await wait_until(lambda: len(kafka.requests) > 8)
    assert not refreshing.done() and len(changes) == 1
    kafka.answers[2] = build_topic_answer(topic_id=OTHER)
    await refreshing
    assert changes[-1].is_recreated


async def test_brokers_that_go_on_naming_different_topics_are_not_asked_for_ever():
    kafka = FakeConnections(b1=build_topic_answer(topic_id=OTHER), b2=build_topic_answer())
    kafka.bootstrap_answer = build_topic_answer()
    metadata, changes = open_metadata(kafka, claim_period=0.5)
    await metadata.refresh("learn of the brokers")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await metadata.refresh_until_certain(["orders"], "test")
    assert len(changes) == 1 and not metadata.is_doubtful("orders")


async def test_a_topic_that_was_taken_for_replaced_is_believed_when_all_go_on_naming_it():
    """A replaced id was never believed again, also if that had been a mistake."""
    kafka = FakeConnections(b1=build_topic_answer(), b2=AWAY)
    metadata, changes = open_metadata(kafka, claim_period=0.5)
    await metadata.refresh("learn of the brokers")
    for count, topic_id in enumerate((OTHER, ID), start=1):
        kafka.answers[1] = build_topic_answer(topic_id=topic_id)
        await metadata.refresh("not believed at once")
        assert len(changes) == count
        await refresh_until(metadata, lambda count=count: len(changes) > count)
        assert changes[-1].topic.topic_id == topic_id


async def refresh_until(metadata: Metadata, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not condition():
            await metadata.refresh("test")


async def test_deletion_is_told_after_a_while_where_the_other_broker_is_away():
    """It was not told for as long as the other one was away, and metadata was asked for several
    times a second meanwhile."""
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, changes = open_metadata(kafka, claim_period=0.5)
    metadata.start()
    await wait_until(lambda: changes)
    kafka.answers, kafka.bootstrap_answer = {1: NO_SUCH, 2: AWAY}, AWAY
    metadata.request_refresh("the topic is deleted")
    began = asyncio.get_running_loop().time()
    await wait_until(lambda: changes[-1].is_deleted)
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_a_leader_of_a_topic_that_was_replaced_is_not_taken_over():
    """An answer that was under way named it, of an epoch above those of the present topic: for as
    long as these are below it, their leaders were ignored."""
    kafka = FakeConnections(b1=build_topic_answer(epoch=5), b2=build_topic_answer(epoch=5))
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = kafka.answers[2] = build_topic_answer(leader=2, topic_id=OTHER)
    await refresh_until(metadata, lambda: changes[-1].is_recreated)
    tp = TopicPartition("orders", 0)
    metadata.update_leader(tp, 1, 6, ID)
    assert metadata.leader_for_partition(tp) == (2, 0)
    metadata.update_leader(tp, 1, 1, OTHER)
    assert metadata.leader_for_partition(tp) == (1, 1)


async def test_a_topic_without_an_id_that_was_created_again_gets_its_leaders_after_a_while():
    """Brokers before Kafka 2.8 have no topic ids. Lower epochs were never believed, so the topic
    had no leader that could be read until its epochs reached those of the former one."""
    kafka = FakeConnections(
        b1=build_topic_answer(leader=1, epoch=9, topic_id=None),
        b2=build_topic_answer(leader=1, epoch=9, topic_id=None),
    )
    metadata, changes = open_metadata(kafka, claim_period=0.5)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = kafka.answers[2] = build_topic_answer(leader=2, topic_id=None)
    began = asyncio.get_running_loop().time()
    await refresh_until(metadata, lambda: len(changes) > 1)
    assert asyncio.get_running_loop().time() - began >= 0.5
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (2, 0)
    assert [(c.is_deleted, c.is_restored, c.added) for c in changes[1:]] == [
        (True, False, ()), (False, True, (0,)),
    ]  # fmt: skip


async def test_brokers_that_lag_behind_an_election_do_not_bring_back_the_leader_before():
    """Several may lag behind at the same time, so that two of them say so proves nothing."""
    behind = build_topic_answer(leader=1, epoch=4, topic_id=None)
    ahead = build_topic_answer(leader=2, epoch=5, topic_id=None)
    kafka = FakeConnections(b1=ahead, b2=behind, b3=behind)
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = behind
    for _ in range(4):
        await metadata.refresh("all brokers are asked")
    assert {1, 2} <= set(kafka.list_asked_nodes()) and metadata.is_doubtful("orders")
    kafka.answers = dict.fromkeys(kafka.answers, ahead)
    await metadata.refresh("they have caught up")
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) == (2, 5)
    assert len(changes) == 1 and not metadata.is_doubtful("orders")


async def test_deletion_is_told_when_two_brokers_say_so():
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers[1] = NO_SUCH
    await metadata.refresh("test")
    await metadata.refresh("the other one knows it")
    assert [change.is_deleted for change in changes] == [False]
    assert kafka.list_asked_nodes()[-1] == 2
    kafka.answers[2] = NO_SUCH
    await metadata.refresh("test")
    await metadata.refresh("test")
    assert [change.is_deleted for change in changes] == [False, True]
    assert metadata.leader_for_partition(TopicPartition("orders", 0)) is None
    kafka.answers = {1: build_topic_answer(topic_id=OTHER), 2: build_topic_answer(topic_id=OTHER)}
    await metadata.refresh("test")
    assert (changes[-1].is_restored, changes[-1].is_recreated, changes[-1].added) == (
        True,
        True,
        (0,),
    )


async def test_a_broker_that_lost_a_topic_is_still_asked_when_it_is_the_only_one_left():
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("learn of the brokers")
    kafka.answers = {1: NO_SUCH, 2: AWAY}
    kafka.bootstrap_answer = AWAY
    for _ in range(3):
        await metadata.refresh("test")
        assert metadata.is_reachable


async def test_who_waits_for_a_refresh_that_is_closed_is_told_and_not_cancelled():
    kafka = FakeConnections(b1=None)
    metadata, _ = open_metadata(kafka)
    waiting = asyncio.create_task(metadata.refresh("test"))
    describing = asyncio.create_task(metadata.describe_topic("orders"))
    await wait_until(lambda: len(kafka.requests) == 2)
    await metadata.close()
    for task in (waiting, describing):
        with pytest.raises(BrokerUnavailable, match="closed"):
            await task


async def test_a_topic_that_never_was_is_told_as_deleted_and_appears_later():
    kafka = FakeConnections(b1=NO_SUCH)
    metadata, changes = open_metadata(kafka)
    await metadata.refresh("by a bootstrap server")
    await metadata.refresh("by a broker")
    assert [change.is_deleted for change in changes] == [True]
    kafka.answers[1] = build_topic_answer()
    await metadata.refresh("test")
    assert (changes[-1].is_restored, changes[-1].added) == (True, (0,))


async def test_a_hint_of_a_newer_leader_is_believed_and_an_old_one_is_not():
    metadata, changes = open_metadata(
        FakeConnections(
            b1=build_topic_answer(leader=1, epoch=4), b2=build_topic_answer(leader=1, epoch=4)
        )
    )
    await metadata.refresh("test")
    tp = TopicPartition("orders", 0)
    metadata.update_leader(tp, 2, 4)
    assert metadata.leader_for_partition(tp) == (1, 4)
    metadata.update_leader(tp, 2, 5)
    assert metadata.leader_for_partition(tp) == (2, 5)
    assert changes[-1].leader_changes == (0,)
    await metadata.refresh("an older answer")
    assert metadata.leader_for_partition(tp) == (2, 5)


async def test_a_listener_that_fails_does_not_keep_others_from_hearing():
    metadata = Metadata(FakeConnections(b1=build_topic_answer()), [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    heard: list[TopicChange] = []
    metadata.add_listener(lambda change: 1 / 0)
    quit_listening = metadata.add_listener(heard.append)
    metadata.watch("orders")
    await metadata.refresh("test")
    assert heard
    quit_listening()
    metadata.update_leader(TopicPartition("orders", 0), 1, 99)
    assert len(heard) == 1
    await metadata.close()


async def test_describing_asks_two_brokers_before_a_topic_is_unknown():
    kafka = FakeConnections(b1=NO_SUCH, b2=NO_SUCH, b3=NO_SUCH)
    metadata = Metadata(kafka, [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        await metadata.describe_topic("orders")
    assert len({node for node in kafka.list_asked_nodes() if node >= 0}) == 2


async def test_describing_believes_the_one_broker_that_knows_the_topic():
    kafka = FakeConnections(b1=NO_SUCH, b2=build_topic_answer(leader=2))
    metadata = Metadata(kafka, [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    assert (await metadata.describe_topic("orders")).partitions.keys() == {0}


async def test_one_broker_is_enough_where_there_is_one():
    metadata = Metadata(FakeConnections(b1=NO_SUCH), [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        await metadata.describe_topic("orders")


async def test_one_broker_is_enough_where_the_others_are_away():
    kafka = FakeConnections(b1=NO_SUCH, b2=AWAY, b3=AWAY)
    metadata = Metadata(kafka, [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        await metadata.describe_topic("orders")


async def test_describing_a_denied_topic_says_so():
    metadata = Metadata(FakeConnections(b1=DENIED), [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    with pytest.raises(AccessDenied) as denied:
        await metadata.describe_topic("orders")
    assert denied.value.topic == "orders"


async def test_describing_without_kafka_is_unavailable_and_not_unknown():
    metadata = Metadata(FakeConnections(b1=AWAY), [("127.0.0.1", 9000)])  # type: ignore[arg-type]
    with pytest.raises(BrokerUnavailable):
        await metadata.describe_topic("orders")


async def test_describing_a_watched_topic_asks_nobody():
    kafka = FakeConnections(b1=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("test")
    assert (await metadata.describe_topic("orders")).topic_id == ID
    assert len(kafka.requests) == 1


async def test_closing_ends_the_periodic_refresh_at_whatever_moment_it_comes():
    """Both it and the round it waited for were cancelled, and it took that for the round's own
    end: it went on for ever, and with it the closing."""
    for turns in range(12):
        metadata, _ = open_metadata(FakeConnections(b1=build_topic_answer()), max_age=0.0)
        metadata.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await metadata.close()


async def test_closing_leaves_no_task():
    before = asyncio.all_tasks()
    kafka = FakeConnections(b1=None)
    metadata, _ = open_metadata(kafka, hedge_delay=0.01)
    metadata.start()
    await wait_until(lambda: kafka.requests)
    await metadata.close()
    assert asyncio.all_tasks() == before


async def test_a_kept_topic_is_watched_until_the_last_lets_go_and_no_watcher_is_left():
    metadata = Metadata(FakeConnections(_1=build_topic_answer()), [("a", 1)])
    metadata.acquire_watch("orders")
    metadata.acquire_watch("orders")
    metadata.watch("orders")
    await metadata.refresh("test")
    metadata.unwatch("orders")
    metadata.release_watch("orders")
    assert metadata.get_topic("orders") is not None
    metadata.release_watch("orders")
    assert metadata.get_topic("orders") is None
    metadata.watch("orders")
    metadata.acquire_watch("orders")
    await metadata.refresh("test")
    metadata.release_watch("orders")
    assert metadata.get_topic("orders") is not None
    await metadata.close()


async def test_a_broker_that_is_away_is_logged_once_and_when_it_is_back(caplog):
    caplog.set_level("INFO", "gateway.kafka.client.outages")
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("test")
    assert caplog.messages == ["Kafka is connected: cluster cluster, 2 brokers"]
    for _ in range(3):
        kafka.answers[2] = BrokerUnavailable("broker 2 cannot be reached: refused", node=2)
        await metadata.refresh("test")
    kafka.answers[2] = build_topic_answer()
    await metadata.refresh("test")
    lines = [message.partition(" after ")[0] for message in caplog.messages[1:]]
    assert lines == [
        "broker=2 cause=connection: broker 2 cannot be reached: refused", "broker=2 answers again",
    ]  # fmt: skip


class RememberingConnections(FakeConnections):
    """What it says of a broker is what became of the last request to it, as with real ones."""

    def __init__(self, **says: object) -> None:
        super().__init__(**says)
        self.failures: dict[int, KafkaError] = {}

    async def send(
        self, node: int, role: ConnectionRole, request: MetadataRequest
    ) -> MetadataResponse:
        try:
            response = await super().send(node, role, request)
        except KafkaError as exc:
            self.failures[node] = exc
            raise
        self.failures.pop(node, None)
        return response

    async def probe(self, node: int, request: MetadataRequest) -> None:
        await self.send(node, ConnectionRole.PROBE, request)

    def get_failure(self, node: int) -> KafkaError | None:
        return self.failures.get(node)


async def test_a_broker_that_nothing_is_asked_of_is_logged_as_back_too(caplog):
    """It was away for a second, and logged as away for minutes: until it led a partition again."""
    caplog.set_level("INFO", "gateway.kafka.client.outages")
    kafka = RememberingConnections(b1=build_topic_answer(), b2=AWAY)
    kafka.failures[2] = AWAY
    metadata, _ = open_metadata(kafka, max_age=0.01)
    metadata.start()
    await wait_until(lambda: f"broker=2 cause=connection: {AWAY}" in caplog.messages)
    kafka.answers[2] = build_topic_answer()
    await wait_until(lambda: "broker=2 answers again after" in caplog.text)


async def test_a_broker_that_owes_an_answer_is_not_asked_whether_it_is_back():
    kafka = RememberingConnections(b1=build_topic_answer(), b2=None)
    kafka.failures[2] = AWAY
    metadata, _ = open_metadata(kafka, max_age=0.01)
    metadata.start()
    await wait_until(lambda: kafka.list_asked_nodes().count(1) > 5)
    assert kafka.list_asked_nodes().count(2) == 1


async def test_brokers_of_a_cluster_that_was_away_have_no_lines_of_their_own(caplog):
    """The last failure of each broker stays until it is asked again."""
    caplog.set_level("INFO", "gateway.kafka.client.outages")
    kafka = FakeConnections(b1=build_topic_answer(), b2=build_topic_answer())
    metadata, _ = open_metadata(kafka)
    await metadata.refresh("test")
    kafka.answers[1] = kafka.answers[2] = kafka.bootstrap_answer = AWAY
    with pytest.raises(BrokerUnavailable):
        await metadata.refresh("test")
    kafka.answers[1] = build_topic_answer()
    await metadata.refresh("test")
    lines = [message.partition(" after ")[0] for message in caplog.messages[1:]]
    assert lines == [f"Kafka cause=connection: {AWAY}", "Kafka answers again"]
