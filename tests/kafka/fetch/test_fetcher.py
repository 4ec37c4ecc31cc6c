"""Readings driven against a cluster whose every answer is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from support.record_sets import Item, batch
from support.until import until

from gateway.core.log.partition_reader import At, OutOfRange, Reading
from gateway.core.log.position import NO_EPOCH
from gateway.core.log.record import Entry, Gap, Ready, Record, TopicPartition
from gateway.core.log.recovery import Backoff
from gateway.errors import AuthenticationFailed
from gateway.kafka.client import offsets
from gateway.kafka.client.connections import Role
from gateway.kafka.client.metadata_changes import Change, Moved
from gateway.kafka.client.outages import Outages
from gateway.kafka.fetch.fetch_sessions import FetchSession
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.protocol.fetch_messages import Fetched, Want
from gateway.kafka.protocol.requests import PartitionAnswer, TopicAnswer

ID = UUID(int=7)
NODE, OTHER = 1, 2


def tp(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def partition(leader: int = NODE, epoch: int = 0) -> PartitionAnswer:
    return PartitionAnswer(leader, epoch, (leader,), (leader,), 0)


def with_record(offset: int, epoch: int = 0) -> Fetched:
    """What a fetch from this offset brings."""
    data = batch([Item(offset)], epoch=epoch)
    return Fetched(0, offset + 1, offset + 1, 0, records=data)


class Asked:
    """One fetch under way, and its answer."""

    def __init__(self, node: int, role: Role, session: FetchSession, wait: float) -> None:
        self.node, self.role, self.wait = node, role, wait
        self.session, self.all = session, dict(session.wants)
        self.named, self.forgotten = session.ask()
        session.answered(5)
        self.answer: asyncio.Future[dict[TopicPartition, Fetched]] = (
            asyncio.get_running_loop().create_future()
        )


class Scripted:
    """A cluster that answers when the test says so, in sessions as Kafka has them."""

    id = "scripted"

    def __init__(self, partitions: int) -> None:
        self._recovery_listeners: list[Callable[[int], None]] = []
        self.connections = SimpleNamespace(
            retry_at=lambda node: None, listen=self._listen_to_recoveries
        )
        self.outages = Outages(lambda: 0.0)
        self.metadata = self
        self.known = TopicAnswer("orders", ID, 0, {p: partition() for p in range(partitions)})
        self.asked: list[Asked] = []
        self.epochs: list[dict[TopicPartition, int]] = []
        self.refreshes: list[str] = []
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _listen_to_recoveries(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._recovery_listeners.append(listener)
        return lambda: self._recovery_listeners.remove(listener)

    def recover(self, node: int) -> None:
        """A broker answers again, to whomever."""
        for listener in self._recovery_listeners:
            listener(node)

    async def refresh(self, reason: str) -> None:
        self.refreshes.append(reason)

    def topic(self, name: str) -> TopicAnswer:
        return self.known

    def move(self, index: int, after: PartitionAnswer) -> None:
        before = self.known.partitions[index]
        partitions = {**self.known.partitions, index: after}
        self.known = self.known._replace(partitions=partitions)
        for listener in self._listeners:
            listener(Change(self.known, moved={index: Moved(before, after)}))

    async def fetch(
        self, node: int, role: Role, session: FetchSession, *, max_wait: float, **options: Any
    ) -> dict[TopicPartition, Fetched]:
        self.asked.append(Asked(node, role, session, max_wait))
        return await self.asked[-1].answer

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, offsets.EpochEnd]:
        self.epochs.append(dict(epochs))
        return {at: offsets.EpochEnd(epoch, 100) for at, epoch in epochs.items()}

    async def next(self, node: int = NODE, role: Role = Role.TAIL) -> Asked:
        """The fetch that waits for its answer."""
        found: list[Asked] = []

        def waits() -> bool:
            found[:] = [
                one
                for one in self.asked
                if (one.node, one.role) == (node, role) and not one.answer.done()
            ]
            return bool(found)

        await until(waits, f"a fetch of node {node}", every=0.001)
        return found[-1]

    async def answer(self, *partitions: int, offset: int = 0, epoch: int = 0) -> Asked:
        """Each of these has a record now. The fetch that was answered so."""
        asked = await self.next()
        asked.answer.set_result({tp(p): with_record(offset, epoch) for p in partitions})
        return asked


class Scene:
    def __init__(self, kafka: Scripted, fetcher: Fetcher, readings: Sequence[Reading]) -> None:
        self.kafka, self.fetcher, self.readings = kafka, fetcher, readings
        self.came: list[Entry] = []

    def kinds(self, kind: type) -> list[int]:
        return [entry.tp.partition for entry in self.came if type(entry) is kind]


@asynccontextmanager
async def reading(partitions: int, committed: Iterable[bool] = ()) -> AsyncIterator[Scene]:
    """All partitions are read from their first record on, as the tail reads them."""
    kafka = Scripted(partitions)
    scene: Scene
    fetcher = Fetcher(kafka, lambda _, entries: scene.came.extend(entries))  # type: ignore[arg-type]
    backoff = Backoff(1.0, lambda: 0.5)
    readings = [Reading(tp(p), At(0), OutOfRange.EARLIEST, backoff) for p in range(partitions)]
    scene = Scene(kafka, fetcher, readings)
    try:
        isolated = dict(enumerate(committed))
        for p, each in enumerate(readings):
            fetcher.add(each, committed=isolated.get(p, True))
        yield scene
    finally:
        await fetcher.close()


async def test_a_fetch_names_what_moved_since_the_one_before_and_no_other():
    async with reading(3) as scene:
        first = await scene.kafka.answer(0, 1, 2)
        assert first.named.keys() == {tp(0), tp(1), tp(2)}
        assert (await scene.kafka.answer(1, offset=1)).named.keys() == {tp(0), tp(1), tp(2)}
        third = await scene.kafka.next()
        assert third.named == {tp(1): Want(2, 0, ID)}
        assert third.all.keys() == {tp(0), tp(1), tp(2)}
        assert scene.kinds(Record) == [0, 1, 2, 1]


async def test_who_can_be_read_is_told_so_by_an_answer_without_it():
    async with reading(2) as scene:
        asked = await scene.kafka.answer()
        assert asked.wait == 0
        assert (await scene.kafka.next()).wait > 0
        assert scene.kinds(Ready) == [0, 1]


async def test_partitions_without_news_count_as_heard_of():
    async with reading(2) as scene:
        await scene.kafka.answer(0)
        await scene.kafka.next()
        before = scene.readings[1].heard_at

        async def quiet() -> None:
            while True:
                (await scene.kafka.next()).answer.set_result({})
                await asyncio.sleep(0.01)

        answering = asyncio.create_task(quiet())
        await until(lambda: scene.readings[1].heard_at > before, "an answer counts for all")
        answering.cancel()


async def test_after_a_silence_the_first_answer_tells_who_is_ready_again():
    async with reading(2) as scene:
        await scene.kafka.answer()
        asked = await scene.kafka.next()
        for each in scene.readings:
            each.is_ready = False  # as whoever looks at `heard_at` does
        await until(lambda: scene.fetcher.now() - scene.readings[0].heard_at > 0.3)
        asked.answer.set_result({})
        await until(lambda: scene.kinds(Ready) == [0, 1, 0, 1], "both are ready again")


async def test_what_comes_of_a_partition_whose_leader_moved_is_too_late():
    async with reading(2) as scene:
        await scene.kafka.answer()
        asked = await scene.kafka.next()
        scene.kafka.move(0, partition(OTHER, 1))
        asked.answer.set_result({tp(0): with_record(0), tp(1): with_record(0)})
        moved = await scene.kafka.next(OTHER)
        assert moved.all.keys() == {tp(0)}
        following = await scene.kafka.next()
        assert [gone.tp for gone in following.forgotten] == [tp(0)]
        assert scene.kinds(Record) == [1]
        moved.answer.set_result({tp(0): with_record(0, epoch=1)})
        await until(lambda: scene.kinds(Record) == [1, 0])


async def test_one_that_came_meanwhile_is_not_held_up_by_the_fetch_that_waits():
    async with reading(1) as scene:
        await scene.kafka.answer()
        waiting = await scene.kafka.next()
        late = Reading(tp(1), At(0), OutOfRange.EARLIEST, Backoff(1.0, lambda: 0.5))
        scene.kafka.known.partitions[1] = partition()
        scene.fetcher.add(late)
        fresh = await scene.kafka.next(role=Role.FRESH)
        fresh.answer.set_result({tp(1): with_record(0)})
        await until(lambda: scene.kinds(Record) == [1])
        waiting.answer.set_result({})
        await until(lambda: any(tp(1) in one.all for one in scene.kafka.asked[-2:]))
        assert [gone.tp for gone in (await scene.kafka.next()).forgotten] == []


async def test_one_that_came_meanwhile_is_read_on_where_the_fetch_that_waited_was_the_last():
    """Nobody woke the main lane, which had nothing to do by then: a partition stood still."""
    async with reading(1) as scene:
        await scene.kafka.answer()
        waiting = await scene.kafka.next()
        scene.kafka.known.partitions[1] = partition()
        scene.fetcher.add(Reading(tp(1), At(0), OutOfRange.EARLIEST, Backoff(1.0, lambda: 0.5)))
        fresh = await scene.kafka.next(role=Role.FRESH)
        scene.fetcher.drop(tp(0))
        waiting.answer.set_result({})
        await until(lambda: not scene.fetcher._lanes[NODE][0].busy, "it has nothing to do")
        fresh.answer.set_result({tp(1): with_record(0)})
        assert (await scene.kafka.next()).all.keys() == {tp(1)}


async def test_a_dropped_partition_is_not_asked_for_again():
    async with reading(2) as scene:
        await scene.kafka.answer()
        asked = await scene.kafka.next()
        scene.fetcher.drop(tp(0))
        asked.answer.set_result({tp(0): with_record(0)})
        following = await scene.kafka.next()
        assert following.all.keys() == {tp(1)}
        assert [gone.tp for gone in following.forgotten] == [tp(0)]
        assert scene.kinds(Record) == []


async def test_topics_of_either_isolation_have_a_session_of_their_own():
    async with reading(2, committed=[True, False]) as scene:
        for _ in range(4):
            await scene.kafka.answer()
        one, other = scene.kafka.asked[-2:]
        assert {frozenset(one.all), frozenset(other.all)} == {
            frozenset({tp(0)}),
            frozenset({tp(1)}),
        }
        assert one.session is not other.session
        assert one.named == other.named == {}
        assert 0 < one.wait <= 0.1


async def test_a_first_record_of_an_earlier_epoch_is_held_against_the_log_at_once():
    """Nobody asked where that epoch ended before something else happened in the cluster, and
    until then the partition stood still."""
    async with reading(0) as scene:
        scene.kafka.known.partitions[0] = partition(epoch=3)
        late = Reading(tp(0), At(0, NO_EPOCH), OutOfRange.EARLIEST, Backoff(1.0, lambda: 0.5))
        scene.fetcher.add(late)
        await scene.kafka.answer(0, epoch=1)
        await scene.kafka.answer(0, offset=1, epoch=3)
        await until(lambda: len(scene.kinds(Record)) == 2, "the record after it")
        assert scene.kafka.epochs == [{tp(0): 1}]
        assert scene.kinds(Gap) == []


def waits(scene: Scene) -> list[int]:
    """Partitions that wait for the end of a delay of their own."""
    now = scene.fetcher.now()
    return [each.tp.partition for each in scene.readings if each.retry_at > now]


async def test_after_a_refused_login_no_partition_waits_longer_than_its_broker():
    """Each came back by a draw of its own, up to 60 s after the first."""
    async with reading(12) as scene:
        asked = await scene.kafka.next()
        refused = AuthenticationFailed("wrong password", retry_after=40.0)
        asked.answer.set_exception(refused)
        await until(lambda: len(waits(scene)) == 12, "all have heard of it")
        assert len({round(each.retry_at, 1) for each in scene.readings}) == 1
        scene.kafka.recover(OTHER)
        assert len(waits(scene)) == 12
        scene.kafka.recover(NODE)
        assert waits(scene) == []
        asked = await scene.kafka.answer(*range(12))
        assert len(asked.all) == 12
        await until(lambda: sorted(scene.kinds(Record)) == list(range(12)), "all are read")


async def test_one_partition_that_is_allowed_again_brings_its_topic_back():
    """The others waited on, each for up to 60 s."""
    denied = Fetched(29, -1, -1, -1, records=b"")
    async with reading(12) as scene:
        asked = await scene.kafka.next()
        asked.answer.set_result({tp(p): denied for p in range(12)})
        await until(lambda: len(waits(scene)) == 12, "all have heard of it")
        scene.readings[5].retry(scene.fetcher.now())  # the first whose delay is over
        scene.fetcher.kick()
        asked = await scene.kafka.next()
        assert list(asked.all) == [tp(5)] and len(waits(scene)) == 11
        asked.answer.set_result({tp(5): with_record(0)})
        await until(lambda: scene.kinds(Record) == [5], "it is read")
        assert waits(scene) == []
        await until(lambda: len(scene.kafka.asked[-1].all) == 12, "all are asked for")


async def test_a_partition_that_is_read_does_not_bring_back_what_fails_for_another_reason():
    denied, moved = Fetched(29, -1, -1, -1, records=b""), Fetched(100, -1, -1, -1, records=b"")
    async with reading(3) as scene:
        asked = await scene.kafka.next()
        asked.answer.set_result({tp(0): denied, tp(1): denied, tp(2): moved})
        await until(lambda: len(waits(scene)) == 3, "all have heard of it")
        due = scene.readings[2].retry_at
        scene.readings[0].retry(scene.fetcher.now())
        scene.fetcher.kick()
        asked = await scene.kafka.next()
        asked.answer.set_result({tp(0): with_record(0)})
        await until(lambda: scene.kinds(Record) == [0], "it is read")
        assert scene.readings[1].retry_at <= scene.fetcher.now()
        assert scene.readings[2].retry_at == due
