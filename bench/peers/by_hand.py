"""Run sse-starlette over aiokafka, as people write it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import GATEWAY_WORKS, RunningServer, ServerShape, build_sse_request, running_process


@dataclass(frozen=True)
class HandWrittenPeer:
    """each: a consumer for each client (10 ms of CPU a connect). shared: one, and queues."""

    kind: Literal["each", "shared"]
    wire: Wire = Wire.SSE
    greeting: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.wire}"

    @property
    def max_clients(self) -> int:
        return 300 if self.kind == "each" else 10_000

    @property
    def skipped_works(self) -> frozenset[str]:
        more = {"keys", "clients", "catchup"} if self.kind == "each" else set[str]()
        return GATEWAY_WORKS | more

    def describe_missing(self) -> str:
        return ""

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        topic = kafka.create_topic(shape.partitions)
        servers = shape.servers or kafka.bootstrap_servers
        program = (sys.executable, "-m", "bench.peers.by_hand_server", self.kind, servers, topic)
        async with running_process(*program) as (pid, (port,)):
            feed = KafkaFeed(kafka.bootstrap_servers, topic, shape.partitions, shape.batch_records)

            def build_request(n: int, token: bytes) -> bytes:
                return build_sse_request(f"/{n}" if shape.has_own_keys else "/all", token)

            try:
                yield RunningServer(pid, port, feed, build_request)
            finally:
                feed.close()
