"""HTTP clients that decompress by themselves, in the languages that people write them in.

Each is a program that prints the body of an answer as its decoder hands it on; those of Go and
Rust are built once for each version of their sources, in the user's cache, outside the clone.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from support.clients.client import ProcessClient
from support.heads import Heads
from support.needs import absent, need

SOURCE = Path(__file__).parent / "decoders"
BUILD_TIMEOUT_S = 900.0  # of reqwest: 80 s of CPU time, and others work, too
TOOLS = {
    "go": ("go", "build", "-o", "bin/", "./..."),
    "rust": ("cargo", "build", "--quiet", "--locked"),
}


def built(language: str) -> Path:
    """The folder with the programs of a language, built if that was not done yet.

    Skips the test (or fails it in CI) without the tools, or without their registry.
    """
    need(language)
    files = sorted(each for each in (SOURCE / language).rglob("*") if each.is_file())
    mark = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gateway"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"decoders-{language}-{mark[:16]}"
    with (cache / f"decoders-{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests wait for the first
        if not place.exists():
            _build(language, place)
    return place


def _build(language: str, place: Path) -> None:
    made = Path(tempfile.mkdtemp(prefix="decoders-", dir=place.parent))
    try:
        shutil.copytree(SOURCE / language, made, dirs_exist_ok=True)
        done = subprocess.run(
            TOOLS[language], cwd=made, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
        if done.returncode:
            absent(f"{' '.join(TOOLS[language])} failed: {done.stderr[-500:]}")
        made.replace(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)


class DecodingClient(ProcessClient):
    """printed: all that its decoder handed on. accept: the media type that it asks for."""

    reconnects: ClassVar[bool] = False
    accept = "text/event-stream"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.network: Heads = Heads()
        self.printed = bytearray()

    def heard(self, piece: bytes) -> None:
        self.printed += piece

    def state(self) -> str:
        """For messages of failure."""
        return f"{self.name} printed {bytes(self.printed[-300:])!r}, errors {self.errors[-5:]}"


class GoClient(DecodingClient):
    name: ClassVar[str] = "Go net/http"

    async def command(self) -> Sequence[str]:
        return [str(await asyncio.to_thread(built, "go") / "bin" / "stream"), self.url, self.accept]


class GoSocketClient(DecodingClient):
    """It prints messages of a WebSocket."""

    name: ClassVar[str] = "Go gorilla/websocket"

    async def command(self) -> Sequence[str]:
        url = self.url.replace("http:", "ws:", 1)
        return [str(await asyncio.to_thread(built, "go") / "bin" / "socket"), url]


class RustClient(DecodingClient):
    name: ClassVar[str] = "Rust reqwest"

    async def command(self) -> Sequence[str]:
        program = await asyncio.to_thread(built, "rust") / "target" / "debug" / "decoder"
        return [str(program), self.url, self.accept]


class JavaClient(DecodingClient):
    name: ClassVar[str] = "Java HttpClient"

    async def command(self) -> Sequence[str]:
        return ["java", str(SOURCE / "Decoder.java"), self.url, self.accept]


class NodeFetchClient(DecodingClient):
    name: ClassVar[str] = "Node fetch"

    async def command(self) -> Sequence[str]:
        return ["node", str(SOURCE / "decoder.mjs"), self.url, self.accept]


class CurlCompressedClient(DecodingClient):
    name: ClassVar[str] = "curl --compressed"

    async def command(self) -> Sequence[str]:
        quiet = ("-q", "-N", "-sS", "--fail", "--noproxy", "*")
        return ["curl", *quiet, "--compressed", "-H", f"Accept: {self.accept}", self.url]


class PythonClient(DecodingClient):
    library: ClassVar[str]

    async def command(self) -> Sequence[str]:
        return [sys.executable, str(SOURCE / "decoder.py"), self.library, self.url, self.accept]


class HttpxClient(PythonClient):
    name: ClassVar[str] = "Python httpx"
    library: ClassVar[str] = "httpx"


class AiohttpClient(PythonClient):
    name: ClassVar[str] = "Python aiohttp"
    library: ClassVar[str] = "aiohttp"


class RequestsClient(PythonClient):
    name: ClassVar[str] = "Python requests"
    library: ClassVar[str] = "requests"


patient = pytest.mark.timeout(BUILD_TIMEOUT_S)
EVERY_DECODER = [
    pytest.param(GoClient, id="go", marks=[pytest.mark.needs("go"), patient]),
    pytest.param(RustClient, id="rust", marks=[pytest.mark.needs("rust"), patient]),
    pytest.param(JavaClient, id="java", marks=pytest.mark.needs("java17")),
    pytest.param(NodeFetchClient, id="node", marks=pytest.mark.needs("node")),
    pytest.param(CurlCompressedClient, id="curl", marks=pytest.mark.needs("curl")),
    pytest.param(HttpxClient, id="httpx"),
    pytest.param(AiohttpClient, id="aiohttp"),
    pytest.param(RequestsClient, id="requests"),
]
