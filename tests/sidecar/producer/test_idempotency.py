"""Ledgers without the sidecar around them: where they begin to read, and several on one topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.letters import committed
from support.until import until

from gateway.config.sections.sidecar import Idempotency, Producer
from gateway.core.log.record import TopicPartition
from gateway.errors import PartitionFailed
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.offsets import LATEST, Offset
from gateway.kafka.produce.producer import Producer as Writer
from gateway.kafka.produce.transactions import Placed, Transactions, Write
from gateway.sidecar.context import Context
from gateway.sidecar.producer.idempotency import Ledger, Work
from gateway.sidecar.producer.transactions import Transactors


class Log:
    """A cluster with one topic, to which another replica writes whenever it was asked."""

    outages = None

    def __init__(self) -> None:
        self.ends = {0: 3, 1: 0}
        self.first_new = dict(self.ends)

    def topic(self, name: str) -> Any:
        return SimpleNamespace(name=name, error=0, topic_id=None)

    async def list_offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        told = {
            tp: Offset(self.ends[tp.partition] if spec == LATEST else -1, -1, 0)
            for tp, spec in specs.items()
        }
        for number in self.ends:
            self.ends[number] += 1
        return told


async def test_a_claim_that_is_written_while_it_looks_where_to_begin_is_read():
    """Two replicas that began at once both had the first claim of one key, and both wrote."""
    log = Log()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions={0: None, 1: None}, topic_id=None)

    context: Any = SimpleNamespace(cluster=log, topic=topic)
    ledger = Ledger(context, Producer(), transactors=None)  # type: ignore[arg-type]
    places = await ledger._begin()
    assert {tp.partition: ledger._next[tp] for tp in places} == log.first_new


async def test_partitions_beyond_those_that_it_makes_the_topic_with_are_not_read():
    log = Log()

    async def topic(name: str) -> Any:
        return SimpleNamespace(name=name, partitions=dict.fromkeys(range(8)), topic_id=None)

    log.ends = dict.fromkeys(range(8), 0)
    context: Any = SimpleNamespace(cluster=log, topic=topic)
    section = Producer(idempotency=Idempotency(partitions=5))
    ledger = Ledger(context, section, transactors=None)  # type: ignore[arg-type]
    assert [tp.partition for tp in await ledger._begin()] == [0, 1, 2, 3]


class Replica:
    """A ledger of its own on a real cluster, and the work that its requests ask for."""

    def __init__(self, cluster: Cluster, section: Producer, name: str) -> None:
        context: Any = Context(None, cluster, None, None, None)  # type: ignore[arg-type]
        self.writer = context.producer = Writer(cluster)
        self.cluster = cluster
        self.transactors = Transactors(context, section.transaction_timeout)
        self.ledger = Ledger(context, section, self.transactors)
        self._name = name
        self._reading: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Begin to read, or go on."""
        self._reading = asyncio.create_task(self.ledger.run())

    async def pause(self) -> None:
        """Read no more, as a reader that has not noticed yet what became of the topic."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def writing(self, value: bytes) -> Work:
        """Write a record and the answer."""

        async def work(by: Transactions, result: Callable[[bytes], Write]) -> tuple[bytes, Placed]:
            now = time.time_ns() // 1_000_000
            record = Write(TopicPartition(self._name, 0), None, value, (), now)
            return b"done", await by.commit([record], then=lambda _: [result(b"done")])

        return work

    async def write(self, key: str) -> bool:
        """Return whether it was done before."""
        answered = await self.ledger.once(key, b"d" * 16, self.writing(key.encode()))
        return answered.again


@asynccontextmanager
async def replica(
    kafka: Any,
    name: str,
    log: str,
    *,
    patience: str = "5s",
    partitions: int = 4,
    max_age: float = 0.2,
) -> AsyncIterator[Replica]:
    """A replica that writes to the topic `name`. max_age: of metadata, in seconds."""
    idempotency = Idempotency(topic=log, partitions=partitions)
    section = Producer.model_validate({"timeout": patience, "idempotency": idempotency})
    async with Cluster(ClusterSettings(kafka.bootstrap, metadata_max_age=max_age)) as cluster:
        cluster.metadata.watch(name, await cluster.describe(name))
        made = Replica(cluster, section, name)
        made.resume()
        try:
            yield made
        finally:
            await made.pause()
            await made.transactors.close()
            await made.writer.close(0.0)


def values(kafka: Any, topic: str) -> list[bytes]:
    return sorted(each.value() for each in committed(kafka, topic))


def partitions_of(cluster: Cluster, topic: str) -> Mapping[int, Any]:
    known = cluster.topic(topic)
    assert known is not None
    return known.partitions


async def write_by_two_with_partitions_added(kafka: Any, topic: Any, used: int, more: int) -> None:
    """Have keys written by a replica that started before partitions are added, and a later one."""
    name, log = topic(), topic(2)
    keys = [f"k{number}" for number in range(12)]
    async with replica(kafka, name, log, partitions=used) as one:
        assert not await one.write("first")
        await asyncio.to_thread(kafka.admin.add_partitions, log, more)
        async with replica(kafka, name, log, partitions=used) as two:
            await until(lambda: len(partitions_of(one.cluster, log)) == more)
            await until(one.ledger._is_current)
            told = [(await two.write(key), await one.write(key)) for key in keys]
    assert told == [(False, True)] * 12
    assert values(kafka, name) == sorted([b"first", *(key.encode() for key in keys)])


async def test_partitions_that_are_added_make_no_difference_to_keys(kafka: Any, topic: Any):
    """A replica that had started before looked for keys elsewhere than one that started after it,
    and both wrote 7 of 12."""
    await write_by_two_with_partitions_added(kafka, topic, used=2, more=8)


async def test_a_replica_uses_the_partitions_that_were_missing_once_they_are_added(
    kafka: Any, topic: Any
):
    await write_by_two_with_partitions_added(kafka, topic, used=8, more=8)


async def test_a_claim_that_was_taken_over_is_not_released_by_whoever_had_it(
    kafka: Any, topic: Any
):
    """The first is refused, and slow to undo that. By the time that it released its claim another
    worked under it, and a third found the key free and wrote the record beside."""
    name, log = topic(), topic(2)
    refused, taken, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuse(by: Transactions, result: Callable[[bytes], Write]) -> tuple[bytes, Placed]:
        if not refused.is_set():
            await refused.wait()
            raise PartitionFailed("it is too large", topic=name, partition=0, code=10)
        return await one.writing(b"k")(by, result)

    async with (
        replica(kafka, name, log, patience="2s") as one,
        replica(kafka, name, log, patience="2s") as two,
    ):
        write = two.writing(b"k")

        async def wait(by: Transactions, result: Callable[[bytes], Write]) -> tuple[bytes, Placed]:
            taken.set()
            await go_on.wait()
            return await write(by, result)

        digest = b"d" * 16
        first = asyncio.create_task(one.ledger.once("k", digest, refuse))
        await until(lambda: two.ledger.claims._claims or one.ledger.claims._claims)
        second = asyncio.create_task(two.ledger.once("k", digest, wait))
        async with asyncio.timeout(60):
            await taken.wait()
        refused.set()
        await asyncio.wait([first], timeout=0.5)
        third = asyncio.create_task(one.write("k"))
        await asyncio.wait([third], timeout=0.5)
        go_on.set()
        told = await asyncio.gather(first, second, third, return_exceptions=True)
    assert values(kafka, name) == [b"k"]
    assert not any(isinstance(each, BaseException) for each in told), told


async def test_a_key_is_free_once_its_records_were_refused(kafka: Any, topic: Any):
    name, log = topic(configs={"max.message.bytes": "1000"}), topic(2)
    async with replica(kafka, name, log) as one, replica(kafka, name, log) as two:
        for each in (one, two):
            with pytest.raises(PartitionFailed):
                await each.ledger.once("k", b"d" * 16, each.writing(b"x" * 5000))
        assert not await one.write("k")
    assert values(kafka, name) == [b"k"]


async def make_anew(kafka: Any, topic: str) -> None:
    await asyncio.to_thread(kafka.admin.delete_topic, topic)
    await asyncio.to_thread(kafka.admin.create_topic, topic, 2)


async def test_a_claim_is_not_taken_over_by_what_was_read_of_a_topic_that_is_gone(
    kafka: Any, topic: Any
):
    """The positions were those of the topic of before, and beyond the ends of the one made anew:
    what stood there was not read, and the record written again."""
    name, log = topic(), topic(2)

    async def hang(by: Transactions, result: Callable[[bytes], Write]) -> tuple[bytes, Placed]:
        await asyncio.Event().wait()
        raise AssertionError

    async with replica(kafka, name, log, patience="2s", max_age=60.0) as one:
        for number in range(5):
            await one.write(f"{number}")
        async with replica(kafka, name, log, patience="2s") as gone:
            owner = asyncio.create_task(gone.ledger.once("k", b"d" * 16, hang))
            claims = one.ledger.claims._claims
            await until(lambda: claims)
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)
        late = [claim.until for each in claims.values() for claim in each.values()]
        await until(lambda: time.time() > max(late))
        await one.pause()
        await make_anew(kafka, log)
        async with replica(kafka, name, log) as other:
            assert not await other.write("k")
        again = asyncio.create_task(one.write("k"))
        await asyncio.wait([again], timeout=0.5)
        one.resume()
        assert await again
    assert values(kafka, name).count(b"k") == 1


async def test_a_claim_is_written_once_while_a_topic_made_anew_is_not_read_yet(
    kafka: Any, topic: Any
):
    """It was written over and over, since it seemed to be read already."""
    name, log = topic(), topic(2)
    async with replica(kafka, name, log) as one:
        for number in range(5):
            await one.write(f"{number}")
        await one.pause()
        await make_anew(kafka, log)
        await until(lambda: not one.ledger._is_current())
        written = asyncio.create_task(one.write("k"))
        await asyncio.wait([written], timeout=0.5)
        one.resume()
        assert not await written
        claims = [each for each in committed(kafka, log, 2) if len(each.key()) > 16]
        assert len([each for each in claims if each.value() is not None]) <= 2
    assert values(kafka, name).count(b"k") == 1
