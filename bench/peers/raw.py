"""Run the bare loops: servers that only write, in Python and in C."""

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
from .peer import (
    GATEWAY_WORKS,
    RunningServer,
    ServerShape,
    build_sse_request,
    build_ws_request,
    running_process,
)

SOURCE_PATH = Path(__file__).with_name("raw.c")


@dataclass(frozen=True)
class RawLoop:
    """compiled: the loop on `send()`, instead of that on uvloop's `transport.write`."""

    wire: Wire
    is_compiled: bool = False
    greeting: bytes = b""
    max_clients: int = 10_000

    @property
    def name(self) -> str:
        return f"{'c' if self.is_compiled else 'raw'}-{self.wire}"

    @property
    def skipped_works(self) -> frozenset[str]:
        """The loop in C is there for what a delivery costs."""
        without = GATEWAY_WORKS | {"catchup"}
        return (
            without | {"keys", "storm", "idle", "first", "clients"} if self.is_compiled else without
        )

    def describe_missing(self) -> str:
        return "a C compiler (cc)" if self.is_compiled and not shutil.which("cc") else ""

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        python = (sys.executable, "-m", "bench.peers.raw_server")
        command = (compile_program(),) if self.is_compiled else python
        async with running_process(*command) as (pid, (port, control)):
            feed = RawFeed(control, self.wire, shape.partitions)
            try:
                yield RunningServer(pid, port, feed, self._build_request)
            finally:
                feed.close()

    def _build_request(self, n: int, token: bytes) -> bytes:
        return build_sse_request(f"/{n}") if self.wire is Wire.SSE else build_ws_request(f"/{n}")


def compile_program() -> str:
    """The program made of raw.c, kept for as long as that does not change."""
    source = SOURCE_PATH.read_bytes()
    name = f"gateway-bench-raw-{blake2b(source, digest_size=6).hexdigest()}"
    program = Path(tempfile.gettempdir()) / name
    if not program.exists():
        made = program.with_suffix(".new")
        subprocess.run(["cc", "-O2", "-Wall", "-o", str(made), str(SOURCE_PATH)], check=True)
        made.replace(program)
    return str(program)
