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
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.grouped import ERROR_NAMES, iter_single_events
from support.oracle import AckedRecord, StreamOracle
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

PRODUCER_OPTIONS = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "socket.timeout.ms": 2000,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 1000,
    "log_level": 0,
}


class ContinuousWriter:
    """One record to every partition every `every` seconds, at most `ahead` of them not
    acknowledged. Told to the oracle when Kafka has acknowledged them.

    acked: of each partition, when Kafka acknowledged which offset (`time.monotonic()`).
    """

    def __init__(
        self,
        servers: str,
        oracle: StreamOracle,
        topic: str,
        partitions: Iterable[int],
        *,
        interval_s: float = 0.05,
        max_unacked: int = 40,
    ) -> None:
        self.partitions = [TopicPartition(topic, number) for number in partitions]
        self._producer = Producer(PRODUCER_OPTIONS | {"bootstrap.servers": servers})
        self._oracle = oracle
        self._interval_s = interval_s
        self._max_unacked = max_unacked
        self.acked_at: dict[TopicPartition, dict[int, float]] = defaultdict(dict)
        self._unacked_counts: Counter[TopicPartition] = Counter()
        self._paused_partitions: set[TopicPartition] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._write_forever()),
            asyncio.create_task(self._poll_forever()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._producer.purge()
        await asyncio.to_thread(self._producer.flush, 5)

    async def stop(self, timeout_s: float = 60.0) -> None:
        """Write no more; returns when all is acknowledged."""
        self._tasks[0].cancel()
        await wait_until(
            lambda: not +self._unacked_counts, lambda: f"answers: {self._unacked_counts}", timeout_s
        )

    async def pause_partitions(
        self, partitions: Iterable[TopicPartition], timeout_s: float = 60.0
    ) -> None:
        """Write no more to these until `resume`; returns when all of theirs is acknowledged.

        A leader that is killed may have kept a record that it did not acknowledge: where such a
        partition ends, only a writer that waited can say.
        """
        self._paused_partitions = paused = set(partitions)
        await wait_until(
            lambda: not any(self._unacked_counts[tp] for tp in paused),
            lambda: f"answers: {self._unacked_counts}",
            timeout_s,
        )

    def resume_all(self) -> None:
        self._paused_partitions = set()

    def write_now(self, partitions: Iterable[TopicPartition], count: int) -> None:
        """So many more to each of these partitions, at once."""
        for tp in partitions:
            for _ in range(count):
                self._produce_record(tp)

    def has_acked(self, partitions: Iterable[TopicPartition], since: float = 0.0) -> bool:
        """Was a record of each acknowledged after `since`?"""
        return all(max(self.acked_at[tp].values(), default=0.0) > since for tp in partitions)

    async def _write_forever(self) -> None:
        while True:
            for tp in self.partitions:
                if (
                    self._unacked_counts[tp] < self._max_unacked
                    and tp not in self._paused_partitions
                ):
                    self._produce_record(tp)
            await asyncio.sleep(self._interval_s)

    def _produce_record(self, tp: TopicPartition) -> None:
        (record,) = self._oracle.build_records(1, None, tp.partition, None, None)
        self._unacked_counts[tp] += 1

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._unacked_counts[tp] -= 1
            offset = message.offset()
            # A repeated request is answered as a duplicate: written, with no word of where.
            if error is not None or offset is None:
                self._oracle.add_uncertain(record.value or b"")
            else:
                self._oracle.add_acked([AckedRecord(tp, offset, record.key, record.value)])
                self.acked_at[tp][offset] = time.monotonic()

        self._producer.produce(
            tp.topic, record.value, record.key, tp.partition, on_delivery=on_delivery
        )

    async def _poll_forever(self) -> None:
        while True:
            self._producer.poll(0)
            await asyncio.sleep(0.005)


class TimedClient(RawClient):
    """A client of a stream in format envelope that notes when each event came
    (`time.monotonic()`)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events = self._timed_events = _TimedEvents()

    def get_event_data(self, name: str) -> list[Any]:
        """The data of all events of one name."""
        return [
            data
            for each in self.events
            if each["event"] in (name, f"partitions-{name}")
            for _, data in iter_single_events(each["event"], json.loads(each["data"]))
        ]

    def get_pending(self) -> set[TopicPartition]:
        """What the last `begin` named so."""
        begin = self.get_event_data("begin")[-1]
        return {TopicPartition(each["topic"], each["partition"]) for each in begin["pending"]}

    def get_ready(self) -> set[TopicPartition]:
        return {
            TopicPartition(each["topic"], each["partition"])
            for each in self.get_event_data("ready")
        }

    @property
    def received_offsets(self) -> dict[TopicPartition, list[tuple[float, int]]]:
        """Of each partition, when its records came and which."""
        found: dict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)
        for at, event in zip(self._timed_events.times, self._timed_events, strict=True):
            if event["event"] == "message":
                told = json.loads(event["data"])
                tp = TopicPartition(told["topic"], told["partition"])
                found[tp].append((at, told["offset"]))
        return found

    def get_first_time(self, tp: TopicPartition, since: float = 0.0) -> float | None:
        """When its first record after `since` came."""
        return next((at for at, _ in self.received_offsets[tp] if at > since), None)

    def has_received(self, partitions: Iterable[TopicPartition], since: float = 0.0) -> bool:
        """Did a record of each come after `since`?"""
        return all(self.get_first_time(tp, since) for tp in partitions)

    def measure_delay(
        self, writer: ContinuousWriter, partitions: Iterable[TopicPartition], since: float
    ) -> float:
        """The longest that a record acknowledged after `since` was under way, or still is:
        what Kafka or a busy machine keeps from the writer is no fault of the reader."""
        now, longest, offsets = time.monotonic(), 0.0, self.received_offsets
        for tp in partitions:
            came = {offset: at for at, offset in offsets[tp]}
            for offset, at in writer.acked_at[tp].items():
                if at > since:
                    longest = max(longest, came.get(offset, now) - at)
        return longest

    async def wait_until_received(
        self, writer: ContinuousWriter, partitions: Iterable[TopicPartition], since: float
    ) -> None:
        """Until every record came that was acknowledged after `since` and before this call."""
        asked = time.monotonic()
        due = {
            tp: {offset for offset, at in writer.acked_at[tp].items() if since < at < asked}
            for tp in partitions
        }

        def list_missing() -> list[tuple[TopicPartition, list[int]]]:
            offsets = self.received_offsets
            missing = [
                (tp, sorted(wanted - {offset for _, offset in offsets[tp]}))
                for tp, wanted in due.items()
            ]
            return [(tp, held) for tp, held in missing if held]

        await wait_until(
            lambda: not list_missing(), lambda: f"{list_missing()} {self.describe_state()}", 60, 0.1
        )

    async def wait_until_caught_up(
        self, oracle: StreamOracle, partitions: Iterable[TopicPartition]
    ) -> None:
        """Until the last record acknowledged of each came."""
        partitions = list(partitions)

        def list_behind() -> list[TopicPartition]:
            ends, offsets = oracle.get_end_offsets(), self.received_offsets
            last = {tp: offsets[tp][-1][1] if offsets[tp] else -1 for tp in partitions}
            return [tp for tp in partitions if last[tp] + 1 < ends.get(tp, 0)]

        await wait_until(
            lambda: not list_behind(), lambda: f"{list_behind()} {self.describe_state()}", 60, 0.1
        )

    def list_record_events(self) -> list[ReceivedEvent]:
        """Its events without `error`, which the oracle takes for the end."""
        return [event for event in self.events if event["event"] not in ERROR_NAMES]


class _TimedEvents(list[ReceivedEvent]):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def append(self, event: ReceivedEvent) -> None:
        super().append(event)
        self.times.append(time.monotonic())
