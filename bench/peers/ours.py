"""This gateway, the real process, with the routes that a work needs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from support.gateways import config_for, running_gateway

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from ..machine import pinned
from .peer import Served, Shape, sse_request, ws_request

COMMAND = (sys.executable, "-m", "gateway")


@dataclass(frozen=True)
class Ours:
    wire: Wire
    most: int = 10_000
    skips: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"gateway-{self.wire}"

    @property
    def greeting(self) -> bytes:
        """The first block, to the name of its event; no record can come before its end."""
        return b"event: begin\n" if self.wire is Wire.SSE else b'{"type":"begin",'

    def missing(self) -> str:
        return ""

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: Shape) -> AsyncIterator[Served]:
        topic = kafka.topic(shape.partitions)
        path = "/own/{key}" if shape.keys else "/all"
        target: dict[str, object] = {"topic": topic, "format": "value"}
        if shape.keys:
            target["filters"] = [{"key": "${params.key}"}]
        routes = [{"when": [{"path": path}], "with": target}]
        config = config_for(shape.servers or kafka.servers, [topic], routes)
        command = pinned(*(shape.command or COMMAND), "run", "-c")
        async with running_gateway(config, command=command) as gateway:
            feed = KafkaFeed(kafka.servers, topic, shape.partitions, shape.joined)

            def request(n: int, token: bytes) -> bytes:
                at = path.format(key=n)
                if self.wire is Wire.SSE:
                    return sse_request(at, token)
                return ws_request(at + (f"?lastEventId={quote(token)}" if token else ""))

            served = Served(gateway.pid, gateway.port, feed, request)

            async def restart() -> None:
                await gateway.restart()
                served.pid = gateway.pid

            served.restart, served.stop = restart, gateway.stop
            try:
                yield served
            finally:
                feed.close()
