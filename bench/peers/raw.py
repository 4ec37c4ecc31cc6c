"""Run the bare loops: servers that only write, in Python and in C."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path

from ..feed import RawFeed
from ..kafka import Kafka
from .peer import Peer, RunningServer, ServerShape, build_request, running_process

SOURCE_PATH = Path(__file__).with_name("raw.c")


class RawLoop(Peer):
    """The loop on uvloop's `transport.write`."""

    kind = "raw"
    skipped_works = frozenset({"catchup"})

    @asynccontextmanager
    async def serve(self, kafka: Kafka, shape: ServerShape) -> AsyncIterator[RunningServer]:
        async with running_process(*self._get_command()) as (pid, (port, control)):
            feed = RawFeed(control, self.wire, shape.partitions)
            try:
                yield RunningServer(pid, port, feed, lambda n, _: build_request(self.wire, f"/{n}"))
            finally:
                feed.close()

    def _get_command(self) -> tuple[str, ...]:
        return sys.executable, "-m", "bench.peers.raw_server"


class CompiledLoop(RawLoop):
    """The loop on `send()`, in C. It is there for what a delivery costs."""

    kind = "c"
    skipped_works = frozenset({"catchup", "keys", "storm", "idle", "clients"})

    def describe_missing(self) -> str:
        return "" if shutil.which("cc") else "a C compiler (cc)"

    def _get_command(self) -> tuple[str, ...]:
        """The program made of raw.c, kept for as long as that does not change."""
        source = SOURCE_PATH.read_bytes()
        name = f"gateway-bench-raw-{blake2b(source, digest_size=6).hexdigest()}"
        program = Path(tempfile.gettempdir()) / name
        if not program.exists():
            made = program.with_suffix(".new")
            subprocess.run(["cc", "-O2", "-Wall", "-o", str(made), str(SOURCE_PATH)], check=True)
            made.replace(program)
        return (str(program),)
