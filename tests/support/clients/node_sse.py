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
    """Return a directory with the scripts of the Node clients and their packages."""
    names = ("package.json", "package-lock.json", "client.mjs", "module.mjs", "socket.mjs")
    return install_packages("sse-clients", [SOURCE_DIRECTORY / name for name in names])


def install_packages(name: str, files: Sequence[Path]) -> Path:
    """Return a directory with these files and the npm packages that their lock names.

    It lies in the user's cache, outside the clone, and is made once for each content of the files;
    npm verifies the lock's checksums. Skips the test (or fails it in CI) without Node and npm, or
    without their registry.

    Args:
        name: What the directory's name begins with.
        files: package.json, package-lock.json, and what else belongs beside them.
    """
    require_tools("node", "npm")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gateway"
    directory = cache / f"{name}-{digest[:16]}"
    if directory.exists():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
    try:
        for file in files:
            shutil.copy(file, unfinished)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True, timeout=110)
        if done.returncode:
            skip_or_fail(f"npm ci failed for {files[0]}: {done.stderr[-500:]}")
        unfinished.replace(directory)
    except OSError:
        if not directory.exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


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
