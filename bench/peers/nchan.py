"""nchan, an nginx module in C: Debian's nginx-light and libnginx-mod-nchan.

It has no Kafka input: a forwarder posts each record to it, one channel for all, or one a key.
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

from ..feed import KafkaFeed, Wire
from ..kafka import Kafka
from .peer import Served, Shape, end, free_port, program, spawn, sse_request, ws_request

MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
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
    most: int = 10_000

    @property
    def name(self) -> str:
        return f"nchan-{self.wire}"

    @property
    def skips(self) -> frozenset[str]:
        """A client comes back by Last-Event-ID, which WebSocket has not."""
        without = frozenset({"partitions", "loop", "deflate", "telemetry"})
        return without if self.wire is Wire.SSE else without | {"catchup"}

    def missing(self) -> str:
        if nginx() and MODULE.exists():
            return ""
        return "nginx with nchan (Debian: nginx-light libnginx-mod-nchan)"

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: Shape) -> AsyncIterator[Served]:
        topic, port = kafka.topic(shape.partitions), free_port()
        with tempfile.TemporaryDirectory(prefix="nchan-") as folder:
            file = self._configure(Path(folder), port, max(10, shape.history))
            command = (nginx() or "nginx", "-p", folder, "-c", str(file))
            async with program(port, *command) as pid, forwarder(kafka.servers, topic, port):
                feed = KafkaFeed(kafka.servers, topic, shape.partitions, shape.joined)
                try:
                    yield Served(pid, port, feed, partial(self._request, shape))
                finally:
                    feed.close()

    def _configure(self, folder: Path, port: int, history: int) -> Path:
        folder.chmod(0o777)  # workers that root starts are nobody
        wire = "eventsource" if self.wire is Wire.SSE else "websocket"
        file = folder / "nginx.conf"
        file.write_text(
            CONFIGURATION.format(
                module=MODULE, folder=folder, port=port, wire=wire, history=history
            )
        )
        return file

    def _request(self, shape: Shape, n: int, token: bytes) -> bytes:
        path = f"/sub/{n}" if shape.keys else "/sub/all"
        return sse_request(path, token) if self.wire is Wire.SSE else ws_request(path)


def nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@asynccontextmanager
async def forwarder(servers: str, topic: str, port: int) -> AsyncIterator[None]:
    """Not on the server's core, and no part of what it uses."""
    running = spawn(sys.executable, "-m", "bench.forwarder", servers, topic, str(port))
    try:
        yield
    finally:
        await end(running)
