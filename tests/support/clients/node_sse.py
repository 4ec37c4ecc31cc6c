"""Clients of npm: `eventsource` and `@microsoft/fetch-event-source`, in a Node of their own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from support.clients.client import ProcessClient, ReceivedEvent
from support.requirements import require_tools, skip_or_fail

SOURCE_DIRECTORY = Path(__file__).parent / "node"


def ensure_installed() -> Path:
    """A directory with the scripts and their packages, made once for each lock and scripts.

    It lies in the user's cache, outside the clone; npm verifies the lock's checksums. Skips the
    test (or fails it in CI) without Node and npm, or without their registry.
    """
    require_tools("node", "npm")
    files = ("package.json", "package-lock.json", "client.mjs", "module.mjs", "socket.mjs")
    mark = hashlib.sha256(
        b"".join((SOURCE_DIRECTORY / name).read_bytes() for name in files)
    ).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gateway"
    place = cache / f"sse-clients-{mark[:16]}"
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="sse-clients-", dir=cache))
    try:
        for name in files:
            shutil.copy(SOURCE_DIRECTORY / name, made)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=110)
        if done.returncode:
            skip_or_fail(f"npm ci failed in {SOURCE_DIRECTORY}: {done.stderr[-500:]}")
        made.replace(place)
    except OSError:
        if not place.exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place


class NodeClient(ProcessClient):
    library: ClassVar[str]
    reconnects_itself: ClassVar[bool] = True
    _buffer = b""

    async def build_command(self) -> Sequence[str]:
        place = await asyncio.to_thread(ensure_installed)
        headers = dict(self.headers)
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        return ["node", str(place / "client.mjs"), self.library, self.url, json.dumps(headers)]

    def feed_output(self, piece: bytes) -> None:
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "opened" in told:
                self.open_count += 1
            elif "error" in told:
                self.errors.append(told["error"])
                self.is_closed |= told["closed"]
            else:
                self.events.append(
                    ReceivedEvent(event=told["event"], id=told["id"], data=told["data"])
                )


class NpmEventSourceClient(NodeClient):
    name: ClassVar[str] = "npm eventsource"
    library: ClassVar[str] = "eventsource"


class FetchEventSourceClient(NodeClient):
    name: ClassVar[str] = "fetch-event-source"
    library: ClassVar[str] = "fetch-event-source"
