"""This gateway, the real process, with the routes that a work needs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.gateways import config_for, running_gateway

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from ..machine import pinned
from .peer import ROOT, Served, Shape, sse_request, ws_request

COMMAND = (sys.executable, "-m", "gateway")
GZIP = ("Accept-Encoding: gzip",)
DEFLATE = (
    "Sec-WebSocket-Extensions: permessage-deflate; "
    "server_no_context_takeover; client_no_context_takeover",
)


def environment(checkout: Path) -> dict[str, str]:
    """Return what makes a Python process import the gateway of this checkout.

    It has to be told not to look into the folder that it was started in, which comes first.
    """
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Ours:
    """checkout: the folder whose gateway it is."""

    wire: Wire
    most: int = 10_000
    skips: frozenset[str] = frozenset()
    checkout: Path = ROOT

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
        config = _configuration(shape.servers or kafka.servers, topic, shape)
        command = pinned(*(shape.command or COMMAND), "run", "-c")
        async with running_gateway(
            config, command=command, environment=environment(self.checkout)
        ) as gateway:
            feed = KafkaFeed(
                kafka.servers, topic, shape.partitions, shape.joined,
                prose=shape.prose, traced=shape.traced,
            )  # fmt: skip
            served = Served(gateway.pid, gateway.port, feed, partial(self._request, shape))

            async def restart() -> None:
                await gateway.restart()
                served.pid = gateway.pid

            served.restart, served.stop = restart, gateway.stop
            try:
                yield served
            finally:
                feed.close()

    def _request(self, shape: Shape, n: int, token: bytes) -> bytes:
        path = f"/own/{n}" if shape.keys else "/all"
        if self.wire is Wire.SSE:
            return sse_request(path, token, *(GZIP if shape.compressed else ()))
        path += f"?lastEventId={quote(token)}" if token else ""
        return ws_request(path, *(DEFLATE if shape.compressed else ()))


def _configuration(servers: str, topic: str, shape: Shape) -> dict[str, Any]:
    target: dict[str, object] = {"topic": topic, "format": "value"}
    if shape.keys:
        target["filters"] = [{"key": "${params.key}"}]
    routes = [{"when": [{"path": "/own/{key}" if shape.keys else "/all"}], "with": target}]
    listen = {"listen": {"websocket": {"compression": True}}} if shape.compressed else {}
    telemetry = {"telemetry": shape.telemetry} if shape.telemetry else {}
    return config_for(servers, [topic], routes, **listen, **telemetry)
