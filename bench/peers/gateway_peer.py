"""Run this gateway as a real process, with the routes that a work needs."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from support.gateways import build_config, running_gateway_process
from support.zstd import build_dictionary_headers

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from ..machine import pin_command
from .peer import ROOT, Peer, RunningServer, ServerShape, build_sse_request, build_ws_request

GREETING = b"event: begin\n"
GATEWAY_COMMAND = (sys.executable, "-m", "gateway")
GZIP_HEADERS = ("Accept-Encoding: gzip",)
DEFLATE_HEADERS = (
    "Sec-WebSocket-Extensions: permessage-deflate; "
    "server_no_context_takeover; client_no_context_takeover",
)


def build_environment(checkout: Path) -> dict[str, str]:
    """Return what makes a Python process import the gateway of this checkout.

    It has to be told not to look into the folder that it was started in, which comes first.
    """
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class GatewayPeer(Peer):
    """checkout: the folder whose gateway it is."""

    kind = "gateway"
    checkout: Path = ROOT

    @property
    def greeting(self) -> bytes:  # type: ignore[override]
        """The first block, to the name of its event; no record can come before its end."""
        return GREETING if self.wire is Wire.SSE else b'{"type":"begin",'

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        topic = kafka.create_unique_topic(shape.partitions)
        config = _build_configuration(shape.servers or kafka.bootstrap_servers, topic, shape)
        command = pin_command(*(shape.command or GATEWAY_COMMAND), "run", "-c")
        async with running_gateway_process(
            config, command=command, environment=build_environment(self.checkout)
        ) as gateway:
            servers, count = kafka.bootstrap_servers, shape.batch_records
            feed = KafkaFeed(servers, topic, shape.partitions, count, has_orders=shape.has_orders)
            headers: list[str] = []
            served = RunningServer(
                gateway.pid, gateway.port, feed, partial(self._build_request, shape, headers)
            )

            async def restart() -> None:
                await gateway.restart()
                served.pid = gateway.pid

            async def load_dictionary() -> None:
                url = f"{gateway.base_url}/all?dictionary"
                async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                    response = (await http.get(url)).raise_for_status()
                served.dictionary = response.content
                (id,) = re.findall('id="([^"]*)"', response.headers["use-as-dictionary"])
                fields = build_dictionary_headers(response.content, id).items()
                headers[:] = [f"{name}: {field}" for name, field in fields]

            served.restart, served.stop = restart, gateway.stop
            served.load_dictionary = load_dictionary
            try:
                yield served
            finally:
                feed.close()

    def _build_request(
        self, shape: ServerShape, headers: Sequence[str], n: int, token: bytes
    ) -> bytes:
        path = f"/own/{n}" if shape.has_own_keys else "/all"
        if self.wire is Wire.SSE:
            accepted = GZIP_HEADERS if shape.coding == "compressed" else headers
            return build_sse_request(path, token, *accepted)
        path += f"?lastEventId={quote(token)}" if token else ""
        return build_ws_request(path, *(DEFLATE_HEADERS if shape.coding else ()))


def _build_configuration(servers: str, topic: str, shape: ServerShape) -> dict[str, Any]:
    target: dict[str, object] = {"topic": topic, "format": "value"}
    if shape.has_own_keys:
        target["filters"] = [{"key": "${params.key}"}]
    routes = [{"when": [{"path": "/own/{key}" if shape.has_own_keys else "/all"}], "with": target}]
    listen: dict[str, Any] = {"websocket": {"compression": True}} if shape.coding else {}
    if shape.workers > 1:
        listen["workers"] = shape.workers
    if shape.connections:
        listen["limits"] = {"connections": shape.connections}
    return build_config(servers, [topic], routes, listen=listen)
