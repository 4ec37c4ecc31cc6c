"""Records that never stop: written to every partition all the time, and when each arrived.

    async with Flow(kafka.servers, oracle, topic, range(12)) as flow:
        ...
        await flow.stop()            # every record is acknowledged
    assert client.delay(flow, tp) < 1

librdkafka writes, for it gets an idempotent record through a leader that was killed or froze.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer
from support.clients.client import Event
from support.clients.raw import RawClient
from support.oracle import Acked, Oracle
from support.until import until

from gateway.core.log.record import TopicPartition

OPTIONS = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "socket.timeout.ms": 2000,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 1000,
    "log_level": 0,
}


class Flow:
    """One record to every partition every `every` seconds, at most `ahead` of them not
    acknowledged. Told to the oracle when Kafka has acknowledged them.

    acked: of each partition, when Kafka acknowledged which offset (`time.monotonic()`).
    """

    def __init__(
        self,
        servers: str,
        oracle: Oracle,
        topic: str,
        partitions: Iterable[int],
        *,
        every: float = 0.05,
        ahead: int = 40,
    ) -> None:
        self.tps = [TopicPartition(topic, number) for number in partitions]
        self._producer = Producer(OPTIONS | {"bootstrap.servers": servers})
        self._oracle = oracle
        self._every = every
        self._ahead = ahead
        self.acked: dict[TopicPartition, dict[int, float]] = defaultdict(dict)
        self._waiting: Counter[TopicPartition] = Counter()
        self._paused: set[TopicPartition] = set()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._running = [asyncio.create_task(self._write()), asyncio.create_task(self._poll())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._producer.purge()
        await asyncio.to_thread(self._producer.flush, 5)

    async def stop(self, within: float = 60.0) -> None:
        """Write no more; returns when all is acknowledged."""
        self._running[0].cancel()
        await until(lambda: not +self._waiting, lambda: f"answers: {self._waiting}", within)

    async def pause(self, tps: Iterable[TopicPartition], within: float = 60.0) -> None:
        """Write no more to these until `resume`; returns when all of theirs is acknowledged.

        A leader that is killed may have kept a record that it did not acknowledge: where such a
        partition ends, only a writer that waited can say.
        """
        self._paused = paused = set(tps)
        await until(
            lambda: not any(self._waiting[tp] for tp in paused),
            lambda: f"answers: {self._waiting}",
            within,
        )

    def resume(self) -> None:
        self._paused = set()

    def write(self, tps: Iterable[TopicPartition], count: int) -> None:
        """So many more to each of these partitions, at once."""
        for tp in tps:
            for _ in range(count):
                self._send(tp)

    def has(self, tps: Iterable[TopicPartition], since: float = 0.0) -> bool:
        """Was a record of each acknowledged after `since`?"""
        return all(max(self.acked[tp].values(), default=0.0) > since for tp in tps)

    async def _write(self) -> None:
        while True:
            for tp in self.tps:
                if self._waiting[tp] < self._ahead and tp not in self._paused:
                    self._send(tp)
            await asyncio.sleep(self._every)

    def _send(self, tp: TopicPartition) -> None:
        (record,) = self._oracle.make(1, None, tp.partition, None, None)
        self._waiting[tp] += 1

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            self._waiting[tp] -= 1
            if error is None:
                offset = message.offset()
                assert offset is not None
                self._oracle.adopt([Acked(tp, offset, record.key, record.value)])
                self.acked[tp][offset] = time.monotonic()

        self._producer.produce(
            tp.topic, record.value, record.key, tp.partition, on_delivery=acknowledged
        )

    async def _poll(self) -> None:
        while True:
            self._producer.poll(0)
            await asyncio.sleep(0.005)


class Clocked(RawClient):
    """A client of a stream in format envelope that notes when each event came
    (`time.monotonic()`)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events = self._noted = _Noting()

    def named(self, name: str) -> list[Any]:
        """The data of all events of one name."""
        return [json.loads(each["data"]) for each in self.events if each["event"] == name]

    def pending(self) -> set[TopicPartition]:
        """What the last `begin` named so."""
        begin = self.named("begin")[-1]
        return {TopicPartition(each["topic"], each["partition"]) for each in begin["pending"]}

    def ready(self) -> set[TopicPartition]:
        return {TopicPartition(each["topic"], each["partition"]) for each in self.named("ready")}

    @property
    def offsets(self) -> dict[TopicPartition, list[tuple[float, int]]]:
        """Of each partition, when its records came and which."""
        found: dict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)
        for at, event in zip(self._noted.at, self._noted, strict=True):
            if event["event"] == "message":
                told = json.loads(event["data"])
                tp = TopicPartition(told["topic"], told["partition"])
                found[tp].append((at, told["offset"]))
        return found

    def first(self, tp: TopicPartition, since: float = 0.0) -> float | None:
        """When its first record after `since` came."""
        return next((at for at, _ in self.offsets[tp] if at > since), None)

    def begun(self, tps: Iterable[TopicPartition], since: float = 0.0) -> bool:
        """Did a record of each come after `since`?"""
        return all(self.first(tp, since) for tp in tps)

    def delay(self, flow: Flow, tps: Iterable[TopicPartition], since: float) -> float:
        """The longest that a record acknowledged after `since` was under way, or still is:
        what Kafka or a busy machine keeps from the writer is no fault of the reader."""
        now, longest, offsets = time.monotonic(), 0.0, self.offsets
        for tp in tps:
            came = {offset: at for at, offset in offsets[tp]}
            for offset, at in flow.acked[tp].items():
                if at > since:
                    longest = max(longest, came.get(offset, now) - at)
        return longest

    async def caught_up(self, oracle: Oracle, tps: Iterable[TopicPartition]) -> None:
        """Until the last record acknowledged of each came."""
        tps = list(tps)

        def behind() -> list[TopicPartition]:
            ends, offsets = oracle.end(), self.offsets
            last = {tp: offsets[tp][-1][1] if offsets[tp] else -1 for tp in tps}
            return [tp for tp in tps if last[tp] + 1 < ends.get(tp, 0)]

        await until(lambda: not behind(), lambda: f"{behind()} {self.state()}", 60, 0.1)

    def records(self) -> list[Event]:
        """Its events without `error`, which the oracle takes for the end."""
        return [event for event in self.events if event["event"] != "error"]


class _Noting(list[Event]):
    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def append(self, event: Event) -> None:
        super().append(event)
        self.at.append(time.monotonic())
