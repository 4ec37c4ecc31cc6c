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
from support.head_recorder import HeadRecorder
from support.requirements import require_tools, skip_or_fail

SOURCE_DIRECTORY = Path(__file__).parent / "decoders"
BUILD_TIMEOUT_S = 900.0  # of reqwest: 80 s of CPU time, and others work, too
BUILD_COMMANDS = {
    "go": ("go", "build", "-o", "bin/", "./..."),
    "rust": ("cargo", "build", "--quiet", "--locked"),
}


def ensure_built(language: str) -> Path:
    """The folder with the programs of a language, built if that was not done yet.

    Skips the test (or fails it in CI) without the tools, or without their registry.
    """
    require_tools(language)
    files = sorted(each for each in (SOURCE_DIRECTORY / language).rglob("*") if each.is_file())
    mark = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gateway"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"decoders-{language}-{mark[:16]}"
    with (cache / f"decoders-{language}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests wait for the first
        if not place.exists():
            _build_programs(language, place)
    return place


def _build_programs(language: str, target: Path) -> None:
    made = Path(tempfile.mkdtemp(prefix="decoders-", dir=target.parent))
    try:
        shutil.copytree(SOURCE_DIRECTORY / language, made, dirs_exist_ok=True)
        done = subprocess.run(
            BUILD_COMMANDS[language],
            cwd=made,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        if done.returncode:
            skip_or_fail(f"{' '.join(BUILD_COMMANDS[language])} failed: {done.stderr[-500:]}")
        made.replace(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


class DecodingClient(ProcessClient):
    """printed: all that its decoder handed on. accept: the media type that it asks for."""

    reconnects_itself: ClassVar[bool] = False
    media_type = "text/event-stream"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.proxy: HeadRecorder = HeadRecorder()
        self.output = bytearray()

    def feed_output(self, piece: bytes) -> None:
        self.output += piece

    def describe_state(self) -> str:
        """For messages of failure."""
        return f"{self.name} printed {bytes(self.output[-300:])!r}, errors {self.errors[-5:]}"


class GoClient(DecodingClient):
    name: ClassVar[str] = "Go net/http"

    async def build_command(self) -> Sequence[str]:
        return [
            str(await asyncio.to_thread(ensure_built, "go") / "bin" / "stream"),
            self.url,
            self.media_type,
        ]


class GoSocketClient(DecodingClient):
    """It prints messages of a WebSocket."""

    name: ClassVar[str] = "Go gorilla/websocket"

    async def build_command(self) -> Sequence[str]:
        url = self.url.replace("http:", "ws:", 1)
        return [str(await asyncio.to_thread(ensure_built, "go") / "bin" / "socket"), url]


class RustClient(DecodingClient):
    name: ClassVar[str] = "Rust reqwest"

    async def build_command(self) -> Sequence[str]:
        program = await asyncio.to_thread(ensure_built, "rust") / "target" / "debug" / "decoder"
        return [str(program), self.url, self.media_type]


class JavaClient(DecodingClient):
    name: ClassVar[str] = "Java HttpClient"

    async def build_command(self) -> Sequence[str]:
        return ["java", str(SOURCE_DIRECTORY / "Decoder.java"), self.url, self.media_type]


class NodeFetchClient(DecodingClient):
    name: ClassVar[str] = "Node fetch"

    async def build_command(self) -> Sequence[str]:
        return ["node", str(SOURCE_DIRECTORY / "decoder.mjs"), self.url, self.media_type]


class CurlCompressedClient(DecodingClient):
    name: ClassVar[str] = "curl --compressed"

    async def build_command(self) -> Sequence[str]:
        quiet = ("-q", "-N", "-sS", "--fail", "--noproxy", "*")
        return ["curl", *quiet, "--compressed", "-H", f"Accept: {self.media_type}", self.url]


class PythonClient(DecodingClient):
    library: ClassVar[str]

    async def build_command(self) -> Sequence[str]:
        return [
            sys.executable,
            str(SOURCE_DIRECTORY / "decoder.py"),
            self.library,
            self.url,
            self.media_type,
        ]


class AiohttpClient(PythonClient):
    name: ClassVar[str] = "Python aiohttp"
    library: ClassVar[str] = "aiohttp"


class RequestsClient(PythonClient):
    name: ClassVar[str] = "Python requests"
    library: ClassVar[str] = "requests"


BUILD_TIMEOUT_MARK = pytest.mark.timeout(BUILD_TIMEOUT_S)
NIGHT = pytest.mark.night


def building(language: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.needs(language), BUILD_TIMEOUT_MARK]


# By day those whose programs are small, and Go's, which once got nothing. httpx, which needs no
# program, has a test in `test_compression`.
ALL_DECODERS = [
    pytest.param(GoClient, id="go", marks=building("go")),
    pytest.param(
        RustClient, id="rust", marks=[pytest.mark.needs("rust"), BUILD_TIMEOUT_MARK, NIGHT]
    ),
    pytest.param(JavaClient, id="java", marks=[pytest.mark.needs("java17"), NIGHT]),
    pytest.param(NodeFetchClient, id="node", marks=pytest.mark.needs("node")),
    pytest.param(CurlCompressedClient, id="curl", marks=pytest.mark.needs("curl")),
    pytest.param(AiohttpClient, id="aiohttp", marks=[pytest.mark.needs("aiohttp"), NIGHT]),
    pytest.param(RequestsClient, id="requests", marks=[pytest.mark.needs("requests"), NIGHT]),
]
