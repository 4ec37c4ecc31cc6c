"""How records get in: by Kafka, or as finished bytes for the servers that only write."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from enum import StrEnum
from random import getrandbits
from typing import Any, Protocol

import confluent_kafka
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import TokenWriter, TopicPlaces, digest, seal
from gateway.wire.websocket import frame

from .records import value

POLL = 0.001  # s between two looks at what is due
ALL = -1


class Wire(StrEnum):
    SSE = "sse"
    WS = "ws"


class Feed(Protocol):
    sent: int

    def send(self, count: int = 1, key: int | None = None) -> None:
        """So many records at once, to the next partition, or all with one client's key."""

    async def flush(self) -> None:
        """Until all of it has been taken in."""

    def close(self) -> None: ...


class KafkaFeed:
    """joined: how many records of one `send` become one batch.
    channel: the header that is to name the client's key, or `all`.
    traced: each is of a trace of its own, which is recorded where it comes from."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        joined: int = 1,
        *,
        channel: str = "",
        prose: bool = False,
        traced: bool = False,
    ) -> None:
        self.sent = 0
        self._traced = traced
        self._prose = prose
        self._topic = topic
        self._partitions = partitions
        self._turn = 0
        self._channel = channel
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 50 if joined > 1 else 0,  # a batch that is full does not linger
                "batch.num.messages": joined if joined > 1 else 10_000,
                "partitioner": "murmur2_random",
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )

    def send(self, count: int = 1, key: int | None = None) -> None:
        self._turn += 1
        where: dict[str, Any] = {"partition": self._turn % self._partitions}
        if key is not None:
            where = {"key": b"%d" % key}
        if self._channel:
            where["headers"] = {self._channel: where.get("key", b"all")}
        for _ in range(count):
            if self._traced:
                trace = b"00-%032x-%016x-01" % (getrandbits(128), 1)
                where["headers"] = {"traceparent": trace}
            self._client.produce(self._topic, value(self.sent, prose=self._prose), **where)
            self.sent += 1
        self._client.poll(0)

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
        self.sent = 0
        self._wire = wire
        self._turn = 0
        self._places = [TopicPartition("bench", p) for p in range(partitions)]
        places = TopicPlaces("bench", "bench", [1000] * partitions, [0] * partitions)
        self._token = TokenWriter("bench", [places])
        self._view = digest("bench")
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._pending = bytearray()

    def send(self, count: int = 1, key: int | None = None) -> None:
        self._turn += 1
        tp = self._places[self._turn % len(self._places)]
        chunk = self._events(tp, count) if self._wire is Wire.SSE else self._message(tp, count)
        self._pending += struct.pack("!ii", len(chunk), ALL if key is None else key) + chunk
        self._push()

    def _push(self) -> None:
        try:
            taken = self._socket.send(self._pending)
        except BlockingIOError:
            taken = 0
        del self._pending[:taken]
        if self._pending:
            asyncio.get_running_loop().call_later(POLL, self._push)

    async def flush(self) -> None:
        await until(lambda: not self._pending, "the server to take it in", 60, POLL)

    def close(self) -> None:
        self._pending.clear()
        self._socket.close()

    def _events(self, tp: TopicPartition, count: int) -> bytes:
        events = [
            b"data: %b\nid: %b\n\n" % (value(self.sent + n), self._moved(tp)) for n in range(count)
        ]
        self.sent += count
        body = b"".join(events)
        return b"%x\r\n%b\r\n" % (len(body), body)

    def _message(self, tp: TopicPartition, count: int) -> bytes:
        records = b",".join(value(self.sent + n) for n in range(count))
        self.sent += count
        for _ in range(count):
            token = self._moved(tp)
        return frame(b'{"type":"records","records":[%b],"position":"%b"}' % (records, token))

    def _moved(self, tp: TopicPartition) -> bytes:
        offset = self._token.place(tp).offset or 0
        self._token.move(tp, offset + 1, 0)
        return seal(self._token.text(), self._view)


async def steadily(
    feed: Feed, rate: float, seconds: float, keys: int = 0, joined: int = 1
) -> float:
    """`rate` records a second, so many at once; with `keys` each has another client's key.

    What is due is sent every `POLL` (and the loop's own millisecond): above 1,000 a second in
    small bursts. The seconds that the latest of all was late by.
    """
    began, n, late = time.monotonic(), 0, 0.0
    while (now := time.monotonic() - began) < seconds:
        late = max(late, now - n / rate)
        while n < now * rate:
            feed.send(joined, key=n % keys if keys else None)
            n += joined
        await asyncio.sleep(POLL)
    return late
