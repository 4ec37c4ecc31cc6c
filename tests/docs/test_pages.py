"""Pages whose commands are run as a reader would: in order, in one folder, against one Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.doc_blocks import RUN_KINDS, Block, list_pages, read_blocks
from support.doc_configs import dump_yaml, load_yaml

from gateway.kafka.embedded import EmbeddedKafka
from gateway.kafka.local import LocalKafka

TIMEOUT_S = 60.0
PAGES = [p for p in list_pages() if any(b.kind in RUN_KINDS for b in read_blocks(p))]
_LISTENING = re.compile(rb"listening on https?://\S+?:(\d+)")


class Reader:
    """Someone who follows a page: its files are in `directory`, its servers on other ports."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._servers = ""
        self._ports: dict[str, int] = {}  # that stand for those of the page
        self._programs: dict[str, Process] = {}  # that the page starts, by their ports on the page
        self._output = ""

    async def start_broker(self, topics: list[str], *, is_real: bool) -> None:
        """The Kafka of the page. An embedded one stands for that of the command if it can."""
        if is_real:
            kafka = await self._stack.enter_async_context(LocalKafka())
            self._servers = ",".join(kafka.bootstrap)
            return
        embedded = self._stack.enter_context(EmbeddedKafka())
        for topic in topics:
            embedded.create_topic(topic)
        self._servers = ",".join(embedded.bootstrap)

    def reserve_port(self, page_port: str) -> None:
        """Let a free port stand for one of the page."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._ports[page_port] = free.getsockname()[1]

    def write_file(self, name: str, text: str) -> None:
        """A file with a title. Gateways listen on ports of the OS."""
        text = self._replace_addresses(text)
        config = load_yaml(text) if name.endswith(".yaml") else {}
        if "kafka" in config:  # no file of another program
            config.setdefault("listen", {})["port"] = 0
            text = dump_yaml(config)
        (self._directory / name).write_text(text)

    async def start(self, script: str, page_port: str, replacement: str) -> None:
        """Start a program of the page in place of the one before, and leave it to the end.

        replacement: What the page says to change in its file before, as `OLD=>NEW`.
        """
        if page_port in self._programs:
            before = self._programs[page_port]
            os.killpg(before.pid, signal.SIGTERM)
            await before.wait()
        if replacement:
            file = self._directory / shlex.split(script)[1]
            old, _, new = replacement.partition("=>")
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
        process = await self._stack.enter_async_context(self._running(script))
        self._programs[page_port] = process
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                assert process.returncode is None
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self._ports[page_port])
                    writer.close()
                    break
                await asyncio.sleep(0.05)

    async def serve(self, script: str, page_port: str) -> None:
        """Start a gateway, and leave it to the end of the page."""
        process = await self._stack.enter_async_context(self._running(script))
        assert process.stdout is not None
        said = b""
        while not (found := _LISTENING.search(said)):
            line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
            assert line, f"the server ended: {said.decode()}"
            said += line
        self._ports[page_port] = int(found[1])
        self._stack.push_async_callback(_cancel, asyncio.create_task(_drain(process)))

    async def run(self, script: str, exit_code: int, until: str) -> None:
        """Run a script to its end, again and again until it prints a text."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                async with self._running(script) as process:
                    output, _ = await process.communicate()
                self._output = output.decode()
                assert process.returncode == exit_code, self._output
                if until in self._output:
                    return

    async def stream(self, script: str, until: str) -> None:
        """Run a script until it has printed a text, and the line after it is complete."""
        self._output = ""
        async with self._running(script) as process, asyncio.timeout(TIMEOUT_S):
            assert process.stdout is not None
            while until not in self._output or not self._output.endswith("\n\n"):
                line = await process.stdout.readline()
                assert line, f"it ended: {self._output}"
                self._output += line.decode()

    def compare_output(self, block: Block) -> None:
        """Raise an AssertionError unless the last output is what the block shows."""
        if block.language == "json":
            assert matches(json.loads(self._output), json.loads(block.text)), self._output
            return
        parts = [re.escape(part) for part in block.text.strip().split("...")]
        assert re.search(".*?".join(parts), self._output), self._output

    def _replace_addresses(self, text: str) -> str:
        text = text.replace("localhost:9092", self._servers or "localhost:9092")
        for page_port, port in self._ports.items():
            text = re.sub(rf"(127\.0\.0\.1|localhost):{page_port}", rf"127.0.0.1:{port}", text)
            text = text.replace(f'"127.0.0.1", {page_port}', f'"127.0.0.1", {port}')
        return text

    @asynccontextmanager
    async def _running(self, script: str) -> AsyncIterator[Process]:
        python = shlex.quote(sys.executable)
        functions = (
            f'gateway() {{ {python} -m gateway "$@"; }}\n'
            f'python() {{ exec {python} "$@"; }}\n'
            # A terminal would not show it among the output either.
            'curl() { command curl --no-progress-meter "$@"; }\n'
        )
        root = str(Path(__file__).parents[2])
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", functions + self._replace_addresses(script),
            cwd=self._directory,
            env={
                **os.environ, "GATEWAY_KAFKA_SERVERS": self._servers, "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": root,
            },
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


async def _drain(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.readline():
        pass


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def matches(found: object, shown: object) -> bool:
    """Whether an answer is what is shown, where "..." is anything."""
    if isinstance(shown, str) and shown == "...":
        return True
    if isinstance(shown, dict) and isinstance(found, dict):
        return shown.keys() == found.keys() and all(matches(found[n], shown[n]) for n in shown)
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(matches, found, shown))
    return found == shown


@pytest.mark.needs("curl")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path):
    async with AsyncExitStack() as stack:
        reader = Reader(tmp_path, stack)
        blocks = read_blocks(page)
        for page_port in {each.attributes["port"] for each in blocks if each.kind == "start"}:
            reader.reserve_port(page_port)
        for block in blocks:
            try:
                await follow(reader, block)
            except Exception as error:
                error.add_note(f"at {block.place}")
                raise


async def follow(reader: Reader, block: Block) -> None:
    if block.title:
        reader.write_file(block.title, block.text)
    attributes = block.attributes
    match block.kind:
        case "broker":
            is_real = attributes.get("kafka") == "real"
            topics = attributes.get("topics", "").split(",")
            await reader.start_broker(topics, is_real=is_real)
        case "serve":
            await reader.serve(block.text, attributes.get("port", "8080"))
        case "start":
            await reader.start(block.text, attributes["port"], attributes.get("replace", ""))
        case "run":
            await reader.run(
                block.text, int(attributes.get("exit", "0")), attributes.get("until", "")
            )
        case "stream":
            await reader.stream(block.text, attributes["until"])
        case "output":
            reader.compare_output(block)
