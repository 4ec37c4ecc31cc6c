"""Run the servers that this one is compared with.

nchan, an nginx module in C (Debian's nginx-light and libnginx-mod-nchan), cannot read Kafka: a
forwarder posts each record to it, to one channel for all, or one per key.

Centrifugo 6.3 or newer reads Kafka; clients use its unidirectional transports, and the header of
each record names the channel. To resume, a client needs its protocol, so `catchup` is skipped.
It was written after its documentation and has not been run: no machine had the binary.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from support.ports import find_free_port

from ..feed import Wire
from ..kafka import Kafka
from .peer import (
    KafkaPeer,
    ServerShape,
    build_request,
    running_process,
    running_program,
    started_process,
)

NCHAN_PATH = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
NGINX_CONFIG = """
load_module {module};
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
worker_rlimit_nofile 19000;
events {{ worker_connections 18000; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  nchan_shared_memory_size 512M;
  keepalive_requests 100000000;
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location ~ /pub/(\\w+)$ {{
      nchan_publisher; nchan_channel_id $1;
      nchan_message_buffer_length {history}; nchan_message_timeout 5m;
    }}
    location ~ /sub/(\\w+)$ {{
      nchan_subscriber {wire}; nchan_channel_id $1; nchan_subscriber_first_message newest;
    }}
  }}
}}
"""
CHANNEL_HEADER = "centrifugo-channels"


class SharedConsumer(KafkaPeer):
    """sse-starlette over aiokafka as people write it: one consumer, and a queue for each client."""

    kind = "shared"

    @asynccontextmanager
    async def _run(
        self, kafka: Kafka, topic: str, shape: ServerShape
    ) -> AsyncIterator[tuple[int, int]]:
        servers = shape.servers or kafka.bootstrap_servers
        program = (sys.executable, "-m", "bench.peers.by_hand_server", self.kind, servers, topic)
        async with running_process(*program) as (pid, (port,)):
            yield pid, port

    def _build_request(self, channel: str, token: bytes) -> bytes:
        return build_request(self.wire, f"/{channel}", token)


class EachConsumer(SharedConsumer):
    """The same with a consumer for each client: 10 ms of CPU a connect."""

    kind = "each"
    max_clients = 300
    skipped_works = frozenset({"keys", "clients", "catchup"})


class Nchan(KafkaPeer):
    kind = "nchan"

    def skips(self, work: str) -> bool:
        """A client comes back by Last-Event-ID, which WebSocket has not."""
        return work == "catchup" and self.wire is Wire.WS

    def describe_missing(self) -> str:
        is_there = find_nginx() and NCHAN_PATH.exists()
        return "" if is_there else "nginx with nchan (Debian: nginx-light libnginx-mod-nchan)"

    @asynccontextmanager
    async def _run(
        self, kafka: Kafka, topic: str, shape: ServerShape
    ) -> AsyncIterator[tuple[int, int]]:
        port = find_free_port()
        with tempfile.TemporaryDirectory(prefix="nchan-") as name:
            folder = Path(name)
            wire = "eventsource" if self.wire is Wire.SSE else "websocket"
            history = max(10, shape.history_records)
            text = NGINX_CONFIG.format(
                module=NCHAN_PATH, folder=folder, port=port, wire=wire, history=history
            )
            _write_config(folder / "nginx.conf", text)
            command = (find_nginx() or "nginx", "-p", name, "-c", str(folder / "nginx.conf"))
            # Not on the server's core, and no part of what it uses.
            told = kafka.bootstrap_servers, topic, str(port)
            forward = (sys.executable, "-m", "bench.peers.forwarder", *told)
            async with running_program(port, *command) as pid, started_process(*forward):
                yield pid, port

    def _build_request(self, channel: str, token: bytes) -> bytes:
        return build_request(self.wire, f"/sub/{channel}", token)


def _write_config(path: Path, text: str) -> Path:
    path.parent.chmod(0o777)  # workers of nginx that root starts are nobody
    path.write_text(text)
    return path


def find_nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


class Centrifugo(KafkaPeer):
    kind = "centrifugo"
    greeting = b'"connect"'
    skipped_works = frozenset({"catchup"})
    feed_options = {"channel": CHANNEL_HEADER}  # noqa: RUF012

    def describe_missing(self) -> str:
        return "" if shutil.which("centrifugo") else "the binary centrifugo on the path"

    @asynccontextmanager
    async def _run(
        self, kafka: Kafka, topic: str, shape: ServerShape
    ) -> AsyncIterator[tuple[int, int]]:
        port = find_free_port()
        reading = {
            "brokers": kafka.bootstrap, "topics": [topic], "consumer_group": f"bench-{topic}",
            "publication_data_mode": {"enabled": True, "channels_header": CHANNEL_HEADER},
        }  # fmt: skip
        config = {
            "http_server": {"address": "127.0.0.1", "port": port},
            "client": {"insecure": True},
            "log": {"level": "error"},
            "uni_sse": {"enabled": True},
            "uni_websocket": {"enabled": True, "join_push_messages": True},
            "consumers": [{"name": "bench", "enabled": True, "type": "kafka", "kafka": reading}],
        }
        with tempfile.TemporaryDirectory(prefix="centrifugo-") as folder:
            file = _write_config(Path(folder) / "config.json", json.dumps(config))
            async with running_program(port, "centrifugo", "--config", str(file)) as pid:
                yield pid, port

    def _build_request(self, channel: str, token: bytes) -> bytes:
        asked = quote(json.dumps({"subs": {channel: {}}}))
        transport = "uni_sse" if self.wire is Wire.SSE else "uni_websocket"
        return build_request(self.wire, f"/connection/{transport}?cf_connect={asked}")
