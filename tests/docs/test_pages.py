"""Pages whose commands are run as a reader would: in order, in one folder, against one Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.doc_blocks import RUN_KINDS, Block, list_pages, read_blocks
from support.doc_configs import dump_yaml, load_yaml

from gateway.kafka.embedded import EmbeddedKafka

TIMEOUT_S = 60.0
PAGES = [p for p in list_pages() if any(b.kind in RUN_KINDS for b in read_blocks(p))]
_LISTENING = re.compile(rb"listening on https?://\S+?:(\d+)")


class Reader:
    """Someone who follows a page: its files are in `directory`, its servers on other ports."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._servers = ""
        self._port = 0
        self._output = ""

    def start_broker(self, topics: list[str]) -> None:
        """The Kafka of the page. An embedded one stands for that of the command."""
        kafka = self._stack.enter_context(EmbeddedKafka())
        for topic in topics:
            kafka.create_topic(topic)
        self._servers = ",".join(kafka.bootstrap)

    def write_file(self, name: str, text: str) -> None:
        """A file with a title. Gateways listen on ports of the OS."""
        if name.endswith(".yaml"):
            config = load_yaml(self._replace_addresses(text))
            config.setdefault("listen", {})["port"] = 0
            text = dump_yaml(config)
        (self._directory / name).write_text(text)

    async def serve(self, script: str) -> None:
        """Start a server, and leave it to the end of the page."""
        process = await self._stack.enter_async_context(self._running(script))
        assert process.stdout is not None
        said = b""
        while not (found := _LISTENING.search(said)):
            line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
            assert line, f"the server ended: {said.decode()}"
            said += line
        self._port = int(found[1])
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
        return re.sub(r"(127\.0\.0\.1|localhost):8080", rf"127.0.0.1:{self._port or 8080}", text)

    @asynccontextmanager
    async def _running(self, script: str) -> AsyncIterator[Process]:
        gateway = f'gateway() {{ {shlex.quote(sys.executable)} -m gateway "$@"; }}\n'
        root = str(Path(__file__).parents[2])
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", gateway + self._replace_addresses(script),
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
        for block in read_blocks(page):
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
            reader.start_broker(attributes.get("topics", "").split(","))
        case "serve":
            await reader.serve(block.text)
        case "run":
            await reader.run(
                block.text, int(attributes.get("exit", "0")), attributes.get("until", "")
            )
        case "stream":
            await reader.stream(block.text, attributes["until"])
        case "output":
            reader.compare_output(block)
