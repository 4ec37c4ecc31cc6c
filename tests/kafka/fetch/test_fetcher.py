"""Readings driven against a cluster whose every answer is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from uuid import UUID

from support.log_lines import LogLine, collect_lines
from support.record_sets import BatchRecord, build_batch
from support.waiting import wait_until

from gateway.core.log.partition_reader import (
    LiveStart,
    OffsetStart,
    OutOfRangePolicy,
    PartitionReader,
)
from gateway.core.log.record import NO_EPOCH, Entry, Gap, Ready, Record, TopicPartition
from gateway.core.log.recovery import Backoff, Cause
from gateway.errors import AuthenticationFailed
from gateway.kafka.client import offsets
from gateway.kafka.client.cluster import FetchLimits
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.metadata_changes import TopicChange
from gateway.kafka.client.outages import Outages
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchSession, FetchTarget
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata

ID = UUID(int=7)
NODE, OTHER = 1, 2


def tp(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def partition(leader: int = NODE, epoch: int = 0) -> PartitionMetadata:
    return PartitionMetadata(leader, epoch, (leader,), (leader,), 0)


def fetch_record(offset: int, epoch: int = 0) -> FetchedPartition:
    """What a fetch from this offset brings."""
    data = build_batch([BatchRecord(offset)], leader_epoch=epoch)
    return FetchedPartition(0, offset + 1, offset + 1, 0, records=data)


class PendingFetch:
    """One fetch under way, and its answer."""

    def __init__(self, node: int, role: ConnectionRole, session: FetchSession, wait: float) -> None:
        self.node, self.role, self.max_wait = node, role, wait
        self.session, self.targets = session, dict(session.targets)
        self.requested, self.forgotten = session.take_changes()
        session.on_response(5)
        self.answer_future: asyncio.Future[dict[TopicPartition, FetchedPartition]] = (
            asyncio.get_running_loop().create_future()
        )


class ScriptedCluster:
    """A cluster that answers when the test says so, in sessions as Kafka has them."""

    cluster_id = "scripted"

    def __init__(self, partitions: int) -> None:
        self._recovery_listeners: list[Callable[[int], None]] = []
        self.connections = SimpleNamespace(
            get_retry_time=lambda node, role: None, add_listener=self._listen_to_recoveries
        )
        self.outages = Outages(lambda: 0.0)
        self.metadata = self
        self.topic_answer = TopicMetadata(
            "orders", ID, 0, {p: partition() for p in range(partitions)}
        )
        self.fetches: list[PendingFetch] = []
        self.epoch_requests: list[dict[TopicPartition, int]] = []
        self.refresh_reasons: list[str] = []
        self.log_end, self.epoch_end = 10, 100
        self.lookup_error: Exception | None = None
        self._listeners: list[Callable[[TopicChange], None]] = []

    def add_listener(self, listener: Callable[[TopicChange], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _listen_to_recoveries(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._recovery_listeners.append(listener)
        return lambda: self._recovery_listeners.remove(listener)

    def report_recovery(self, node: int) -> None:
        """A broker answers again, to whomever."""
        for listener in self._recovery_listeners:
            listener(node)

    def request_refresh(self, reason: str) -> None:
        self.refresh_reasons.append(reason)

    def get_topic(self, name: str) -> TopicMetadata:
        return self.topic_answer

    def move_leader(self, index: int, after: PartitionMetadata) -> None:
        partitions = {**self.topic_answer.partitions, index: after}
        self.topic_answer = self.topic_answer._replace(partitions=partitions)
        for listener in self._listeners:
            listener(TopicChange(self.topic_answer, leader_changes=(index,)))

    def recreate_topic(self, topic_id: UUID) -> None:
        self.topic_answer = self.topic_answer._replace(topic_id=topic_id)
        for listener in self._listeners:
            listener(TopicChange(self.topic_answer, is_recreated=True))

    def delete_topic(self) -> None:
        self.topic_answer = TopicMetadata("orders", None, 3, {})
        for listener in self._listeners:
            listener(TopicChange(self.topic_answer, is_deleted=True))

    def restore_topic(self, *partitions: PartitionMetadata) -> None:
        self.topic_answer = TopicMetadata("orders", None, 0, dict(enumerate(partitions)))
        for listener in self._listeners:
            listener(TopicChange(self.topic_answer, is_restored=True))

    async def fetch(
        self,
        node: int,
        role: ConnectionRole,
        session: FetchSession,
        limits: FetchLimits,
    ) -> dict[TopicPartition, FetchedPartition]:
        self.fetches.append(PendingFetch(node, role, session, limits.max_wait))
        return await self.fetches[-1].answer_future

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, offsets.EpochEnd]:
        self.epoch_requests.append(dict(epochs))
        return {at: offsets.EpochEnd(epoch, self.epoch_end) for at, epoch in epochs.items()}

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, offsets.OffsetAndTimestamp]:
        if self.lookup_error is not None:
            raise self.lookup_error
        return {at: offsets.OffsetAndTimestamp(self.log_end, -1, 0) for at in timestamps}

    async def wait_for_fetch(
        self, node: int = NODE, role: ConnectionRole = ConnectionRole.TAIL
    ) -> PendingFetch:
        """The fetch that waits for its answer."""
        found: list[PendingFetch] = []

        def find_pending() -> bool:
            found[:] = [
                one
                for one in self.fetches
                if (one.node, one.role) == (node, role) and not one.answer_future.done()
            ]
            return bool(found)

        await wait_until(find_pending, f"a fetch of node {node}", interval_s=0.001)
        return found[-1]

    async def wait_for_fetch_of(self, partition: int) -> PendingFetch:
        """The fetch that waits for its answer and asks for a partition."""
        found: list[PendingFetch] = []

        def find_pending() -> bool:
            found[:] = [
                one
                for one in self.fetches
                if tp(partition) in one.targets and not one.answer_future.done()
            ]
            return bool(found)

        await wait_until(find_pending, f"a fetch of partition {partition}", interval_s=0.001)
        return found[-1]

    async def answer_fetch(self, *partitions: int, offset: int = 0, epoch: int = 0) -> PendingFetch:
        """Each of these has a record now. The fetch that was answered so."""
        asked = await self.wait_for_fetch()
        asked.answer_future.set_result({tp(p): fetch_record(offset, epoch) for p in partitions})
        return asked


class FetcherScene:
    def __init__(
        self, kafka: ScriptedCluster, fetcher: Fetcher, readings: Sequence[PartitionReader]
    ) -> None:
        self.kafka, self.fetcher, self.readers = kafka, fetcher, readings
        self.entries: list[Entry] = []
        self.failing_partitions: set[int] = set()  # whose entries are not taken

    def deliver(self, reader: PartitionReader, entries: Sequence[Entry]) -> None:
        if reader.tp.partition in self.failing_partitions:
            raise RuntimeError("a bug of the receiver")
        self.entries.extend(entries)

    def list_partitions(self, kind: type) -> list[int]:
        return [entry.tp.partition for entry in self.entries if type(entry) is kind]


@asynccontextmanager
async def running_fetcher(
    partitions: int, is_committed: Iterable[bool] = ()
) -> AsyncIterator[FetcherScene]:
    """All partitions are read from their first record on, as the tail reads them."""
    kafka = ScriptedCluster(partitions)
    scene: FetcherScene
    fetcher = Fetcher(kafka, lambda *delivered: scene.deliver(*delivered))  # type: ignore[arg-type]
    backoff = Backoff(1.0, lambda: 0.5)
    readings = [
        PartitionReader(tp(p), OffsetStart(0), OutOfRangePolicy.EARLIEST, backoff)
        for p in range(partitions)
    ]
    scene = FetcherScene(kafka, fetcher, readings)
    try:
        isolated = dict(enumerate(is_committed))
        for p, each in enumerate(readings):
            fetcher.add_partition(each, read_committed=isolated.get(p, True))
        yield scene
    finally:
        await fetcher.close()


async def test_a_fetch_names_what_moved_since_the_one_before_and_no_other():
    async with running_fetcher(3) as scene:
        first = await scene.kafka.answer_fetch(0, 1, 2)
        assert first.requested.keys() == {tp(0), tp(1), tp(2)}
        assert (await scene.kafka.answer_fetch(1, offset=1)).requested.keys() == {
            tp(0),
            tp(1),
            tp(2),
        }
        third = await scene.kafka.wait_for_fetch()
        assert third.requested == {tp(1): FetchTarget(2, 0, ID)}
        assert third.targets.keys() == {tp(0), tp(1), tp(2)}
        assert scene.list_partitions(Record) == [0, 1, 2, 1]


async def test_who_can_be_read_is_told_so_by_an_answer_without_it():
    async with running_fetcher(2) as scene:
        asked = await scene.kafka.answer_fetch()
        assert asked.max_wait == 0
        assert (await scene.kafka.wait_for_fetch()).max_wait > 0
        assert scene.list_partitions(Ready) == [0, 1]


async def test_partitions_without_news_count_as_heard_of():
    async with running_fetcher(2) as scene:
        await scene.kafka.answer_fetch(0)
        await scene.kafka.wait_for_fetch()
        before = scene.readers[1].last_response_at

        async def answer_empty() -> None:
            while True:
                (await scene.kafka.wait_for_fetch()).answer_future.set_result({})
                await asyncio.sleep(0.01)

        answering = asyncio.create_task(answer_empty())
        await wait_until(
            lambda: scene.readers[1].last_response_at > before, "an answer counts for all"
        )
        answering.cancel()


async def test_after_a_silence_the_first_answer_tells_who_is_ready_again():
    async with running_fetcher(2) as scene:
        await scene.kafka.answer_fetch()
        asked = await scene.kafka.wait_for_fetch()
        for each in scene.readers:
            each.is_ready = False  # as whoever looks at `heard_at` does
        await wait_until(lambda: scene.fetcher.now() - scene.readers[0].last_response_at > 0.3)
        asked.answer_future.set_result({})
        await wait_until(
            lambda: scene.list_partitions(Ready) == [0, 1, 0, 1], "both are ready again"
        )


async def test_what_comes_of_a_partition_whose_leader_moved_is_too_late():
    async with running_fetcher(2) as scene:
        await scene.kafka.answer_fetch()
        asked = await scene.kafka.wait_for_fetch()
        scene.kafka.move_leader(0, partition(OTHER, 1))
        asked.answer_future.set_result({tp(0): fetch_record(0), tp(1): fetch_record(0)})
        moved = await scene.kafka.wait_for_fetch(OTHER)
        assert moved.targets.keys() == {tp(0)}
        following = await scene.kafka.wait_for_fetch()
        assert [gone.tp for gone in following.forgotten] == [tp(0)]
        assert scene.list_partitions(Record) == [1]
        moved.answer_future.set_result({tp(0): fetch_record(0, epoch=1)})
        await wait_until(lambda: scene.list_partitions(Record) == [1, 0])


async def test_what_comes_from_behind_a_truncation_is_too_late():
    async with running_fetcher(1) as scene:
        for offset in (0, 1):
            await scene.kafka.answer_fetch(0, offset=offset)
        asked = await scene.kafka.wait_for_fetch()
        scene.kafka.epoch_end = 1
        scene.kafka.move_leader(0, partition(NODE, 1))
        await wait_until(lambda: scene.readers[0].position.offset == 1)
        asked.answer_future.set_result({tp(0): fetch_record(2)})
        assert (await scene.kafka.wait_for_fetch_of(0)).targets[tp(0)].offset == 1
        assert [each.offset for each in scene.entries if type(each) is Record] == [0, 1]


async def test_one_that_came_meanwhile_is_not_held_up_by_the_fetch_that_waits():
    async with running_fetcher(1) as scene:
        await scene.kafka.answer_fetch()
        waiting = await scene.kafka.wait_for_fetch()
        late = PartitionReader(
            tp(1), OffsetStart(0), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
        )
        scene.kafka.topic_answer.partitions[1] = partition()
        scene.fetcher.add_partition(late)
        fresh = await scene.kafka.wait_for_fetch(role=ConnectionRole.FRESH)
        fresh.answer_future.set_result({tp(1): fetch_record(0)})
        await wait_until(lambda: scene.list_partitions(Record) == [1])
        waiting.answer_future.set_result({})
        await wait_until(lambda: any(tp(1) in one.targets for one in scene.kafka.fetches[-2:]))
        assert [gone.tp for gone in (await scene.kafka.wait_for_fetch()).forgotten] == []


async def test_one_that_came_meanwhile_is_read_on_where_the_fetch_that_waited_was_the_last():
    """Nobody woke the main lane, which had nothing to do by then: a partition stood still."""
    async with running_fetcher(1) as scene:
        await scene.kafka.answer_fetch()
        waiting = await scene.kafka.wait_for_fetch()
        scene.kafka.topic_answer.partitions[1] = partition()
        scene.fetcher.add_partition(
            PartitionReader(
                tp(1), OffsetStart(0), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
            )
        )
        fresh = await scene.kafka.wait_for_fetch(role=ConnectionRole.FRESH)
        scene.fetcher.remove_partition(tp(0))
        waiting.answer_future.set_result({})
        await wait_until(
            lambda: not scene.fetcher.fetch_loops[NODE][0].is_busy, "it has nothing to do"
        )
        fresh.answer_future.set_result({tp(1): fetch_record(0)})
        assert (await scene.kafka.wait_for_fetch()).targets.keys() == {tp(1)}


async def test_a_dropped_partition_is_not_asked_for_again():
    async with running_fetcher(2) as scene:
        await scene.kafka.answer_fetch()
        asked = await scene.kafka.wait_for_fetch()
        scene.fetcher.remove_partition(tp(0))
        asked.answer_future.set_result({tp(0): fetch_record(0)})
        following = await scene.kafka.wait_for_fetch()
        assert following.targets.keys() == {tp(1)}
        assert [gone.tp for gone in following.forgotten] == [tp(0)]
        assert scene.list_partitions(Record) == []


async def test_topics_of_either_isolation_have_a_session_of_their_own():
    async with running_fetcher(2, is_committed=[True, False]) as scene:
        for _ in range(4):
            await scene.kafka.answer_fetch()
        one, other = scene.kafka.fetches[-2:]
        assert {frozenset(one.targets), frozenset(other.targets)} == {
            frozenset({tp(0)}),
            frozenset({tp(1)}),
        }
        assert one.session is not other.session
        assert one.requested == other.requested == {}
        assert 0 < one.max_wait <= 0.1


async def test_a_first_record_of_an_earlier_epoch_is_held_against_the_log_at_once():
    """Nobody asked where that epoch ended before something else happened in the cluster, and
    until then the partition stood still."""
    async with running_fetcher(0) as scene:
        scene.kafka.topic_answer.partitions[0] = partition(epoch=3)
        late = PartitionReader(
            tp(0), OffsetStart(0, NO_EPOCH), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
        )
        scene.fetcher.add_partition(late)
        await scene.kafka.answer_fetch(0, epoch=1)
        await scene.kafka.answer_fetch(0, offset=1, epoch=3)
        await wait_until(lambda: len(scene.list_partitions(Record)) == 2, "the record after it")
        assert scene.kafka.epoch_requests == [{tp(0): 1}]
        assert scene.list_partitions(Gap) == []


def list_delayed(scene: FetcherScene) -> list[int]:
    """Partitions that wait for the end of a delay of their own."""
    now = scene.fetcher.now()
    return [each.tp.partition for each in scene.readers if each.retry_at > now]


async def test_after_a_refused_login_no_partition_waits_longer_than_its_broker():
    """Each came back by a draw of its own, up to 60 s after the first."""
    async with running_fetcher(12) as scene:
        asked = await scene.kafka.wait_for_fetch()
        refused = AuthenticationFailed("wrong password", retry_after=40.0)
        asked.answer_future.set_exception(refused)
        await wait_until(lambda: len(list_delayed(scene)) == 12, "all have heard of it")
        retries = [each.retry_at for each in scene.readers]
        assert max(retries) - min(retries) < 1.0
        scene.kafka.report_recovery(OTHER)
        assert len(list_delayed(scene)) == 12
        scene.kafka.report_recovery(NODE)
        assert list_delayed(scene) == []
        asked = await scene.kafka.answer_fetch(*range(12))
        assert len(asked.targets) == 12
        await wait_until(
            lambda: sorted(scene.list_partitions(Record)) == list(range(12)), "all are read"
        )


async def test_one_partition_that_is_allowed_again_brings_its_topic_back():
    """The others waited on, each for up to 60 s."""
    denied = FetchedPartition(29, -1, -1, -1, records=b"")
    async with running_fetcher(12) as scene:
        asked = await scene.kafka.wait_for_fetch()
        asked.answer_future.set_result({tp(p): denied for p in range(12)})
        await wait_until(lambda: len(list_delayed(scene)) == 12, "all have heard of it")
        scene.readers[5].retry_now(scene.fetcher.now())  # the first whose delay is over
        scene.fetcher.wake_loops()
        asked = await scene.kafka.wait_for_fetch()
        assert list(asked.targets) == [tp(5)] and len(list_delayed(scene)) == 11
        asked.answer_future.set_result({tp(5): fetch_record(0)})
        await wait_until(lambda: scene.list_partitions(Record) == [5], "it is read")
        assert list_delayed(scene) == []
        await wait_until(lambda: len(scene.kafka.fetches[-1].targets) == 12, "all are asked for")


async def test_a_partition_that_is_read_does_not_bring_back_what_fails_for_another_reason():
    denied, moved = (
        FetchedPartition(29, -1, -1, -1, records=b""),
        FetchedPartition(100, -1, -1, -1, records=b""),
    )
    async with running_fetcher(3) as scene:
        asked = await scene.kafka.wait_for_fetch()
        asked.answer_future.set_result({tp(0): denied, tp(1): denied, tp(2): moved})
        await wait_until(lambda: len(list_delayed(scene)) == 3, "all have heard of it")
        due = scene.readers[2].retry_at
        scene.readers[0].retry_now(scene.fetcher.now())
        scene.fetcher.wake_loops()
        asked = await scene.kafka.wait_for_fetch()
        asked.answer_future.set_result({tp(0): fetch_record(0)})
        await wait_until(lambda: scene.list_partitions(Record) == [0], "it is read")
        assert scene.readers[1].retry_at <= scene.fetcher.now()
        assert scene.readers[2].retry_at == due


def list_states(lines: Iterable[LogLine]) -> list[str]:
    """The lines about the state of a partition, without what is the same in each."""
    known = " role=tail topic=orders partition=0"
    return [
        line.text.removeprefix("partition ").removesuffix(known)
        for line in lines
        if line.text.startswith("partition state=")
    ]


async def test_each_change_of_a_partition_is_a_line_with_its_cause():
    now = asyncio.get_running_loop().time()
    live = PartitionReader(
        tp(0), LiveStart(0, now), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
    )
    with collect_lines("gateway.kafka.fetch") as lines:
        async with running_fetcher(0) as scene:
            kafka = scene.kafka
            kafka.topic_answer.partitions[0] = partition()
            scene.fetcher.add_partition(live)
            for offset in (10, 11):  # records alone are no change
                await kafka.answer_fetch(0, offset=offset)
            denied = FetchedPartition(29, -1, -1, -1, records=b"")
            (await kafka.wait_for_fetch()).answer_future.set_result({tp(0): denied})
            await wait_until(lambda: live.cause is not None)
            live.retry_now(scene.fetcher.now())
            scene.fetcher.wake_loops()
            await kafka.answer_fetch(0, offset=12)
            await wait_until(lambda: live.position.offset == 13)
            kafka.move_leader(0, partition(-1))
            kafka.epoch_end = 12
            kafka.move_leader(0, partition(OTHER, 1))
            await wait_until(lambda: live.position.offset == 12)
            kafka.recreate_topic(UUID(int=77))
            await wait_until(lambda: live.position.offset == 0)
    assert list_states(lines) == [
        "state=resolving cause=none leader=1 epoch=0 offset=none",
        "state=streaming cause=none leader=1 epoch=0 offset=10",
        "state=recovering cause=access-denied leader=1 epoch=0 offset=12",
        "state=streaming cause=none leader=1 epoch=0 offset=13",
        "state=leaderless cause=no-leader leader=none epoch=0 offset=13",
        "state=recovering cause=no-leader leader=2 epoch=1 offset=13",
        "state=validating cause=no-leader leader=2 epoch=1 offset=13",
        "state=recovering cause=no-leader leader=2 epoch=1 offset=12",
        "state=recovering cause=no-leader leader=2 epoch=1 offset=0",
    ]


async def test_a_broker_is_read_on_after_an_error_that_nobody_expects(caplog):
    """The task that read from it ended, and nothing started another one: all streams of its
    partitions stalled until the gateway was restarted."""
    async with running_fetcher(2) as scene:
        asked = await scene.kafka.wait_for_fetch()
        asked.answer_future.set_exception(RuntimeError("bound to a different event loop"))
        asked = await scene.kafka.wait_for_fetch()
        assert list_delayed(scene) == [] and len(asked.targets) == 2
        await scene.kafka.answer_fetch(0, 1)
        await wait_until(lambda: sorted(scene.list_partitions(Record)) == [0, 1], "both are read")
    assert f"reading from broker {NODE} failed" in caplog.text
    assert "bound to a different event loop" in caplog.text


async def test_a_partition_whose_receiver_fails_loses_nothing_and_holds_up_no_other(caplog):
    async with running_fetcher(3) as scene:
        scene.failing_partitions = {0}
        await scene.kafka.answer_fetch(0, 1, 2)
        await wait_until(lambda: sorted(scene.list_partitions(Record)) == [1, 2], "others are read")
        assert "a bug of the receiver" in caplog.text
        scene.failing_partitions.clear()
        asked = await scene.kafka.wait_for_fetch_of(0)
        asked.answer_future.set_result({tp(0): fetch_record(asked.targets[tp(0)].offset)})
        await wait_until(lambda: 0 in scene.list_partitions(Record), "it is read")
        offsets_read = [e.offset for e in scene.entries if type(e) is Record and e.tp == tp(0)]
        assert offsets_read == [0]


async def test_a_topic_without_an_id_is_read_on_after_it_was_deleted_and_created_again():
    """The leader epochs of the new topic are below those of the former one, so its leaders counted
    as out of date, and nothing was read."""
    async with running_fetcher(1) as scene:
        scene.kafka.move_leader(0, partition(NODE, 9))
        scene.kafka.delete_topic()
        assert scene.readers[0].leader is None
        scene.kafka.restore_topic(partition(OTHER, 0))
        asked = await scene.kafka.wait_for_fetch(OTHER)
        assert asked.targets[tp(0)].leader_epoch == 0


async def test_a_lookup_that_fails_unexpectedly_is_repeated():
    """Its partitions waited for it for ever."""
    async with running_fetcher(0) as scene:
        scene.kafka.topic_answer.partitions[0] = partition()
        scene.kafka.lookup_error = RuntimeError("a bug")
        now = asyncio.get_running_loop().time()
        live = PartitionReader(
            tp(0), LiveStart(0, now), OutOfRangePolicy.EARLIEST, Backoff(1.0, lambda: 0.5)
        )
        scene.fetcher.add_partition(live)
        await wait_until(lambda: live.cause is Cause.UNEXPECTED, "it has failed")
        scene.kafka.lookup_error = None
        await scene.kafka.answer_fetch(0, offset=10)
        await wait_until(lambda: scene.list_partitions(Record) == [0], "it is read")
