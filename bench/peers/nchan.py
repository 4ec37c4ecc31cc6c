"""Run nchan, an nginx module in C: Debian's nginx-light and libnginx-mod-nchan.

It cannot read Kafka: a forwarder posts each record to it, to one channel for all, or one per key.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from support.ports import find_free_port

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import (
    GATEWAY_WORKS,
    RunningServer,
    ServerShape,
    build_sse_request,
    build_ws_request,
    end_process,
    running_program,
    start_process,
)

MODULE_PATH = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
CONFIGURATION = """
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


@dataclass(frozen=True)
class Nchan:
    wire: Wire
    greeting: bytes = b""
    max_clients: int = 10_000

    @property
    def name(self) -> str:
        return f"nchan-{self.wire}"

    @property
    def skipped_works(self) -> frozenset[str]:
        """A client comes back by Last-Event-ID, which WebSocket has not."""
        return GATEWAY_WORKS if self.wire is Wire.SSE else GATEWAY_WORKS | {"catchup"}

    def describe_missing(self) -> str:
        if find_nginx() and MODULE_PATH.exists():
            return ""
        return "nginx with nchan (Debian: nginx-light libnginx-mod-nchan)"

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        topic, port = kafka.create_topic(shape.partitions), find_free_port()
        with tempfile.TemporaryDirectory(prefix="nchan-") as folder:
            file = self._write_configuration(Path(folder), port, max(10, shape.history_records))
            command = (find_nginx() or "nginx", "-p", folder, "-c", str(file))
            async with (
                running_program(port, *command) as pid,
                running_forwarder(kafka.bootstrap_servers, topic, port),
            ):
                feed = KafkaFeed(
                    kafka.bootstrap_servers, topic, shape.partitions, shape.batch_records
                )
                try:
                    yield RunningServer(pid, port, feed, partial(self._build_request, shape))
                finally:
                    feed.close()

    def _write_configuration(self, folder: Path, port: int, history: int) -> Path:
        folder.chmod(0o777)  # workers that root starts are nobody
        wire = "eventsource" if self.wire is Wire.SSE else "websocket"
        file = folder / "nginx.conf"
        file.write_text(
            CONFIGURATION.format(
                module=MODULE_PATH, folder=folder, port=port, wire=wire, history=history
            )
        )
        return file

    def _build_request(self, shape: ServerShape, n: int, token: bytes) -> bytes:
        path = f"/sub/{n}" if shape.has_own_keys else "/sub/all"
        return build_sse_request(path, token) if self.wire is Wire.SSE else build_ws_request(path)


def find_nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@asynccontextmanager
async def running_forwarder(servers: str, topic: str, port: int) -> AsyncIterator[None]:
    """Not on the server's core, and no part of what it uses."""
    running = start_process(sys.executable, "-m", "bench.forwarder", servers, topic, str(port))
    try:
        yield
    finally:
        await end_process(running)
