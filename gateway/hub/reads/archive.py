"""Private reads from Kafka: for clients behind what the logs hold, and for starts by time.

One read of a partition at a time, and one fetch of a broker, however many clients wait:
those who want the same offsets share the answer, and nobody takes the live tail's
connection. A read that meets an offset out of range recovers as the shared read would.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.config import Topic
from gateway.core.log.partition_reader import At, Reading, Start
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Fault, Gap, Ready, TopicPartition
from gateway.hub.wires.transform import Transformer
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import Role
from gateway.kafka.fetch.fetcher import Fetcher
from gateway.kafka.fetch.understanding import Understand, as_it_is

from .feeds import new_reading

MAX_WAIT = 0.1  # seconds; what is asked for is there already
HOLD = 2.0  # seconds for which an answer is kept for others who come back from about there


class _Wanted(NamedTuple):
    start: Start
    answer: asyncio.Future[Sequence[Entry]]


class _Held(NamedTuple):
    """What was read of a partition. of: the lineage of its log, and its leader and epoch: a log
    that went back since has others; and the options of its topic, whose transforms were applied."""

    of: tuple[int, tuple[int, int] | None, Topic]
    at: float
    entries: Sequence[Entry]

    def since(self, offset: int) -> Sequence[Entry]:
        """What follows an offset, if it was read from there on."""
        entries = self.entries
        if not entries or not entries[0].offset <= offset < entries[-1].next:
            return ()
        found = entries[bisect_right(entries, offset, key=lambda entry: entry.next) :]
        first = found[0]
        if type(first) is Gap and first.offset < offset:
            return [first._replace(offset=offset), *found[1:]]
        return found


class Archive:
    """topic: the settings of a topic, by name. understand: how its entries are understood."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Callable[[str], Topic],
        understand: Callable[[str], Understand | None] = as_it_is,
    ) -> None:
        self._topic = topic
        self._cluster = cluster
        self.asked: Counter[tuple[str, str]] = Counter()  # reads, by topic and who answered
        self._held: dict[TopicPartition, _Held] = {}
        self.fetcher = Fetcher(
            cluster, self._deliver, role=Role.CATCHUP, max_wait=MAX_WAIT, understand=understand
        )
        self._wanted: dict[TopicPartition, deque[_Wanted]] = {}
        self._reading: dict[TopicPartition, Reading] = {}
        self._room = asyncio.Event()
        self._room.set()

    async def close(self) -> None:
        await self.fetcher.close()
        for wanted in self._wanted.values():
            for one in wanted:
                one.answer.cancel()

    def bound(self, full: bool) -> None:
        """Hold reads back while clients have too much in hand that they did not take yet."""
        now = asyncio.get_running_loop().time()
        for tp in [tp for tp, held in self._held.items() if now - held.at > HOLD]:
            del self._held[tp]
        if full:
            self._room.clear()
        else:
            self._room.set()

    async def read(self, tp: TopicPartition, place: Place) -> Sequence[Entry]:
        """Some entries from a place on: at least one. Waits as long as Kafka takes."""
        assert place.offset is not None
        await self._room.wait()
        topic = self._topic(tp.topic)
        of = place.lineage, self._cluster.leader(tp), topic
        held = self._held.get(tp)
        if held is not None and held.of == of and (found := held.since(place.offset)):
            self.asked[tp.topic, "held"] += 1
            return found
        entries = await self._ask(tp, At(place.offset, place.epoch))
        if topic.transforms:
            entries = list(map(Transformer(topic.transforms), entries))
        self._held[tp] = _Held(of, asyncio.get_running_loop().time(), entries)
        return entries

    async def resolve(self, tp: TopicPartition, start: Start) -> Place:
        """The offset of a start, as the shared read would find it."""
        (ready,) = await self._ask(tp, start)
        return Place(ready.next, ready.epoch)

    async def _ask(self, tp: TopicPartition, start: Start) -> Sequence[Entry]:
        answer: asyncio.Future[Sequence[Entry]] = asyncio.get_running_loop().create_future()
        queue = self._wanted.setdefault(tp, deque())
        queue.append(_Wanted(start, answer))
        if len(queue) == 1:
            self._next(tp)
        try:
            return await answer
        finally:
            if not answer.done() or answer.cancelled():
                self._withdraw(tp, answer)

    def _next(self, tp: TopicPartition) -> None:
        queue = self._wanted.get(tp)
        if not queue:
            self._wanted.pop(tp, None)
            self._reading.pop(tp, None)
            return
        topic = self._topic(tp.topic)
        reading = self._reading[tp] = new_reading(tp, queue[0].start, topic)
        self.fetcher.add(reading, committed=topic.isolation == "read_committed")

    def _deliver(self, reading: Reading, entries: Sequence[Entry]) -> None:
        queue = self._wanted.get(reading.tp)
        if not queue or self._reading.get(reading.tp) is not reading:
            return
        asked = queue[0].start
        found: list[Entry]
        if isinstance(asked, At):
            found = [entry for entry in entries if not isinstance(entry, Ready | Fault)]
        else:
            found = [entry for entry in entries if isinstance(entry, Ready)]
        if found:
            self._answer(reading.tp, asked, found)

    def _answer(self, tp: TopicPartition, asked: Start, found: Sequence[Entry]) -> None:
        self.fetcher.drop(tp)
        queue = self._wanted[tp]
        for n, wanted in enumerate(list(queue)):
            if wanted.start == asked:
                self.asked[tp.topic, "joined" if n else "kafka"] += 1
                queue.remove(wanted)
                if not wanted.answer.done():
                    wanted.answer.set_result(found)
        self._next(tp)

    def _withdraw(self, tp: TopicPartition, answer: asyncio.Future[Sequence[Entry]]) -> None:
        queue = self._wanted.get(tp)
        if not queue:
            return
        first = queue[0]
        self._wanted[tp] = deque(wanted for wanted in queue if wanted.answer is not answer)
        if first.answer is answer:
            self.fetcher.drop(tp)
            self._next(tp)
