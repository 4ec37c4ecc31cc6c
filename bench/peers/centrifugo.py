"""Run Centrifugo 6.3 or newer, if its binary is on the path; it reads Kafka without a forwarder.

Clients use its unidirectional transports, which need no library, and the header of each record
names the channel. To resume, a client needs Centrifugo's protocol, so `catchup` is skipped.
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

from support.ports import find_free_port

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import (
    GATEWAY_WORKS,
    RunningServer,
    ServerShape,
    build_sse_request,
    build_ws_request,
    running_program,
)

CHANNEL_HEADER = "centrifugo-channels"


@dataclass(frozen=True)
class Centrifugo:
    wire: Wire
    greeting: bytes = b'"connect"'
    max_clients: int = 10_000
    skipped_works: frozenset[str] = GATEWAY_WORKS | {"catchup"}

    @property
    def name(self) -> str:
        return f"centrifugo-{self.wire}"

    def describe_missing(self) -> str:
        return "" if shutil.which("centrifugo") else "the binary centrifugo on the path"

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        topic, port = kafka.create_topic(shape.partitions), find_free_port()
        with tempfile.TemporaryDirectory(prefix="centrifugo-") as folder:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(build_configuration(kafka, topic, port)))
            async with running_program(port, "centrifugo", "--config", str(file)) as pid:
                feed = KafkaFeed(
                    kafka.bootstrap_servers,
                    topic,
                    shape.partitions,
                    shape.batch_records,
                    channel=CHANNEL_HEADER,
                )
                try:
                    yield RunningServer(pid, port, feed, partial(self._build_request, shape))
                finally:
                    feed.close()

    def _build_request(self, shape: ServerShape, n: int, token: bytes) -> bytes:
        asked = quote(json.dumps({"subs": {str(n) if shape.has_own_keys else "all": {}}}))
        if self.wire is Wire.SSE:
            return build_sse_request(f"/connection/uni_sse?cf_connect={asked}")
        return build_ws_request(f"/connection/uni_websocket?cf_connect={asked}")


def build_configuration(kafka: Kafka, topic: str, port: int) -> dict[str, Any]:
    reading = {
        "brokers": kafka.bootstrap,
        "topics": [topic],
        "consumer_group": f"bench-{topic}",
        "publication_data_mode": {"enabled": True, "channels_header": CHANNEL_HEADER},
    }
    return {
        "http_server": {"address": "127.0.0.1", "port": port},
        "client": {"insecure": True},
        "log": {"level": "error"},
        "uni_sse": {"enabled": True},
        "uni_websocket": {"enabled": True, "join_push_messages": True},
        "consumers": [{"name": "bench", "enabled": True, "type": "kafka", "kafka": reading}],
    }
