"""The bare loops: what is left of a server that does nothing but write, in Python and in C."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ..feed import RawFeed, Wire
from ..kafka import Kafka
from .peer import Served, Shape, process, sse_request, ws_request

SOURCE = Path(__file__).with_name("raw.c")


@dataclass(frozen=True)
class Raw:
    """compiled: the loop on `send()`, instead of that on uvloop's `transport.write`."""

    wire: Wire
    compiled: bool = False
    greeting: bytes = b""
    most: int = 10_000

    @property
    def name(self) -> str:
        return f"{'c' if self.compiled else 'raw'}-{self.wire}"

    @property
    def skips(self) -> frozenset[str]:
        """The loop in C is there for what a delivery costs."""
        without = frozenset({"catchup", "partitions", "loop", "deflate", "telemetry"})
        return without | {"keys", "storm", "idle", "first", "clients"} if self.compiled else without

    def missing(self) -> str:
        return "a C compiler (cc)" if self.compiled and not shutil.which("cc") else ""

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: Shape) -> AsyncIterator[Served]:
        python = (sys.executable, "-m", "bench.peers.raw_server")
        command = (compiled(),) if self.compiled else python
        async with process(*command) as (pid, (port, control)):
            feed = RawFeed(control, self.wire, shape.partitions)
            try:
                yield Served(pid, port, feed, self._request)
            finally:
                feed.close()

    def _request(self, n: int, token: bytes) -> bytes:
        return sse_request(f"/{n}") if self.wire is Wire.SSE else ws_request(f"/{n}")


def compiled() -> str:
    """The program made of raw.c, kept for as long as that does not change."""
    source = SOURCE.read_bytes()
    name = f"gateway-bench-raw-{blake2b(source, digest_size=6).hexdigest()}"
    program = Path(tempfile.gettempdir()) / name
    if not program.exists():
        made = program.with_suffix(".new")
        subprocess.run(["cc", "-O2", "-Wall", "-o", str(made), str(SOURCE)], check=True)
        made.replace(program)
    return str(program)
