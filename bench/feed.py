"""Produce the records of a work: to Kafka, or as finished bytes to servers that only write."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import confluent_kafka
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import TokenWriter, TopicPositions, digest_text, seal_token
from gateway.wire.websocket import encode_text

from .records import build_value

POLL_INTERVAL_S = 0.001  # s between two looks at what is due
ALL_CLIENTS = -1


class Wire(StrEnum):
    SSE = "sse"
    WS = "ws"


class Feed(Protocol):
    sent_count: int

    def send(self, count: int = 1, key: int | None = None) -> None:
        """So many records at once, to the next partition, or all with one client's key."""

    async def flush(self) -> None:
        """Until all of it has been taken in."""

    def close(self) -> None: ...


class KafkaFeed:
    """batch_records: how many records of one `send` become one batch.
    channel: the header that is to name the client's key, or `all`.
    acked_at: when each record was acknowledged, by its number, where keeps_acks."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        batch_records: int = 1,
        *,
        channel: str = "",
        has_orders: bool = False,
        keeps_acks: bool = False,
        **options: Any,
    ) -> None:
        self.sent_count = 0
        self.acked_at: dict[int, float] = {}
        self._has_orders = has_orders
        self._topic = topic
        self._partitions = partitions
        self._send_number = 0
        self._channel = channel
        self._keeps_acks = keeps_acks
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 50 if batch_records > 1 else 0,  # a batch that is full does not linger
                "batch.num.messages": batch_records if batch_records > 1 else 10_000,
                "partitioner": "murmur2_random",
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                **options,
            }
        )

    def send(self, count: int = 1, key: int | None = None) -> None:
        where: dict[str, Any] = {"partition": self._send_number % self._partitions}
        self._send_number += 1
        if key is not None:
            where = {"key": b"%d" % key}
        if self._channel:
            where["headers"] = {self._channel: where.get("key", b"all")}
        for _ in range(count):
            if self._keeps_acks:
                where["on_delivery"] = partial(self._note_ack, self.sent_count)
            value = build_value(self.sent_count, is_order=self._has_orders)
            self._client.produce(self._topic, value, **where)
            self.sent_count += 1
        self._client.poll(0)

    def _note_ack(self, n: int, error: object, _: object) -> None:
        if error is None:
            self.acked_at[n] = time.monotonic()

    async def flush(self) -> None:
        left = await asyncio.to_thread(self._client.flush, 60)
        assert left == 0, f"{left} records were not acknowledged within 60 s"

    def close(self) -> None:
        self._client.purge()
        self._client.flush(5)


class RawFeed:
    """Tells a raw server what to write, byte for byte what the gateway writes: one chunk a `send`.

    The server gets `length, client` (both int32; -1 is every client) and the bytes.
    """

    def __init__(self, port: int, wire: Wire, partitions: int = 12) -> None:
        self.sent_count = 0
        self._wire = wire
        self._send_number = 0
        self._partitions = [TopicPartition("bench", p) for p in range(partitions)]
        places = TopicPositions("bench", "bench", [1000] * partitions, [0] * partitions)
        self._token_writer = TokenWriter("bench", [places])
        self._view_digest = digest_text("bench")
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._pending = bytearray()

    def send(self, count: int = 1, key: int | None = None) -> None:
        tp = self._partitions[self._send_number % len(self._partitions)]
        self._send_number += 1
        encode = self._encode_events if self._wire is Wire.SSE else self._encode_message
        chunk = encode(tp, count)
        self._pending += struct.pack("!ii", len(chunk), ALL_CLIENTS if key is None else key) + chunk
        self._write_pending()

    def _write_pending(self) -> None:
        try:
            taken = self._socket.send(self._pending)
        except BlockingIOError:
            taken = 0
        del self._pending[:taken]
        if self._pending:
            asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._write_pending)

    async def flush(self) -> None:
        await wait_until(lambda: not self._pending, "the server to take it in", 60, POLL_INTERVAL_S)

    def close(self) -> None:
        self._pending.clear()
        self._socket.close()

    def _encode_events(self, tp: TopicPartition, count: int) -> bytes:
        events = [
            b"data: %b\nid: %b\n\n" % (build_value(self.sent_count + n), self._advance_token(tp))
            for n in range(count)
        ]
        self.sent_count += count
        body = b"".join(events)
        return b"%x\r\n%b\r\n" % (len(body), body)

    def _encode_message(self, tp: TopicPartition, count: int) -> bytes:
        records = b",".join(build_value(self.sent_count + n) for n in range(count))
        self.sent_count += count
        for _ in range(count):
            token = self._advance_token(tp)
        return encode_text(b'{"type":"records","records":[%b],"position":"%b"}' % (records, token))

    def _advance_token(self, tp: TopicPartition) -> bytes:
        offset = self._token_writer.get_position(tp).offset or 0
        self._token_writer.move(tp, offset + 1, 0)
        return seal_token(self._token_writer.to_text(), self._view_digest)


async def send_steadily(
    feed: Feed, rate: float, seconds: float, key_count: int = 0, batch_records: int = 1
) -> float:
    """`rate` records a second, so many at once; with `keys` each has another client's key.

    What is due is sent every `POLL` (and the loop's own millisecond): above 1,000 a second in
    small bursts. The seconds that the latest of all was late by.
    """
    began, n, late = time.monotonic(), 0, 0.0
    while (now := time.monotonic() - began) < seconds:
        late = max(late, now - n / rate)
        while n < now * rate:
            feed.send(batch_records, key=n % key_count if key_count else None)
            n += batch_records
        await asyncio.sleep(POLL_INTERVAL_S)
    return late


@asynccontextmanager
async def sending(feed: Feed, rate: float) -> AsyncIterator[None]:
    """So many records a second while the block lasts."""
    task = asyncio.create_task(send_steadily(feed, rate, math.inf))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
