"""Produce records that contain their send time, by librdkafka, whose thread is not the loop's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka

MARK = b"~"  # once in every record, never in an id: records are counted by one byte
POLL_INTERVAL_S = 0.002  # s; an acknowledgement is noticed when librdkafka is polled


class Producer:
    """acked: (partition, time produced, time acknowledged), times of `time.monotonic()`.

    options: of librdkafka, over those here.
    """

    def __init__(self, servers: str, **options: Any) -> None:
        self.sent_count = 0
        self.acknowledgements: list[tuple[int, float, float]] = []
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                **options,
            }
        )

    def send(self, topic: str, partition: int, value_bytes: int = 200) -> None:
        """size: bytes of the value."""
        now = time.monotonic()
        value = b"~%d %d;" % (now * 1e6, partition)

        def on_delivery(error: object, message: object) -> None:
            if error is None:
                self.acknowledgements.append((partition, now, time.monotonic()))

        self._client.produce(
            topic, value.ljust(value_bytes, b"x"), partition=partition, on_delivery=on_delivery
        )
        self.sent_count += 1

    async def warm_up(self, topic: str, partitions: int) -> float:
        """One record to each partition: what comes later waits for no connection of ours. The
        time from which on that holds."""
        for p in range(partitions):
            self.send(topic, p)
        await self.flush()
        return time.monotonic()

    def poll(self) -> None:
        self._client.poll(0)

    async def flush(self, timeout_s: float = 60.0) -> None:
        left = await asyncio.to_thread(self._client.flush, timeout_s)
        assert left == 0, f"{left} records were not acknowledged within {timeout_s:g} s"

    @asynccontextmanager
    async def produce_steadily(
        self, topic: str, partitions: int, rate: float, value_bytes: int = 200
    ) -> AsyncIterator[None]:
        """`rate` records a second while the block lasts, in turns; then acknowledged."""
        task = asyncio.create_task(self._run_steadily(topic, partitions, rate, value_bytes))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.flush()

    async def _run_steadily(
        self, topic: str, partitions: int, rate: float, value_bytes: int
    ) -> None:
        began = time.monotonic()
        n = 0
        while True:
            while n < (time.monotonic() - began) * rate:
                self.send(topic, n % partitions, value_bytes)
                n += 1
            self.poll()
            await asyncio.sleep(
                min(POLL_INTERVAL_S, max(0.001, began + n / rate - time.monotonic()))
            )
