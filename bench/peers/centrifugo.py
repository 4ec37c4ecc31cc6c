"""Centrifugo 6.3 or newer, if its binary is on the path; it reads Kafka by itself.

Its unidirectional transports, which need no library at the client, and of each record the header
that names the channel. A client that comes back needs its own protocol, so `catchup` is skipped.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import Served, Shape, free_port, program, sse_request, ws_request

HEADER = "centrifugo-channels"


@dataclass(frozen=True)
class Centrifugo:
    wire: Wire
    greeting: bytes = b'"connect"'
    most: int = 10_000
    skips: frozenset[str] = frozenset({"partitions", "loop", "catchup", "deflate", "telemetry"})

    @property
    def name(self) -> str:
        return f"centrifugo-{self.wire}"

    def missing(self) -> str:
        return "" if shutil.which("centrifugo") else "the binary centrifugo on the path"

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: Shape) -> AsyncIterator[Served]:
        topic, port = kafka.topic(shape.partitions), free_port()
        with tempfile.TemporaryDirectory(prefix="centrifugo-") as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(configuration(kafka, topic, port)))
            async with program(port, "centrifugo", "--config", str(file)) as pid:
                feed = KafkaFeed(
                    kafka.servers, topic, shape.partitions, shape.joined, channel=HEADER
                )
                try:
                    yield Served(pid, port, feed, partial(self._request, shape))
                finally:
                    feed.close()

    def _request(self, shape: Shape, n: int, token: bytes) -> bytes:
        asked = quote(json.dumps({"subs": {str(n) if shape.keys else "all": {}}}))
        if self.wire is Wire.SSE:
            return sse_request(f"/connection/uni_sse?cf_connect={asked}")
        return ws_request(f"/connection/uni_websocket?cf_connect={asked}")


def configuration(kafka: Kafka, topic: str, port: int) -> dict[str, Any]:
    reading = {
        "brokers": kafka.bootstrap,
        "topics": [topic],
        "consumer_group": f"bench-{topic}",
        "publication_data_mode": {"enabled": True, "channels_header": HEADER},
    }
    return {
        "http_server": {"address": "127.0.0.1", "port": port},
        "client": {"insecure": True},
        "log": {"level": "error"},
        "uni_sse": {"enabled": True},
        "uni_websocket": {"enabled": True, "join_push_messages": True},
        "consumers": [{"name": "bench", "enabled": True, "type": "kafka", "kafka": reading}],
    }
