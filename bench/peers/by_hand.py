"""sse-starlette over aiokafka, as people write it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import Served, Shape, process, sse_request


@dataclass(frozen=True)
class ByHand:
    """each: a consumer for each client (10 ms of CPU a connect). shared: one, and queues."""

    kind: Literal["each", "shared"]
    wire: Wire = Wire.SSE
    greeting: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.wire}"

    @property
    def most(self) -> int:
        return 300 if self.kind == "each" else 10_000

    @property
    def skips(self) -> frozenset[str]:
        without = frozenset({"partitions", "loop", "deflate", "telemetry"})
        return without | {"keys", "clients", "catchup"} if self.kind == "each" else without

    def missing(self) -> str:
        return ""

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: Shape) -> AsyncIterator[Served]:
        topic = kafka.topic(shape.partitions)
        servers = shape.servers or kafka.servers
        program = (sys.executable, "-m", "bench.peers.by_hand_server", self.kind, servers, topic)
        async with process(*program) as (pid, (port,)):
            feed = KafkaFeed(kafka.servers, topic, shape.partitions, shape.joined)

            def request(n: int, token: bytes) -> bytes:
                return sse_request(f"/{n}" if shape.keys else "/all", token)

            try:
                yield Served(pid, port, feed, request)
            finally:
                feed.close()
