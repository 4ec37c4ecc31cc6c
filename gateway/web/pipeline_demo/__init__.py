"""Run `gateway pipeline demo`: a shop in Kafka, Spark jobs over it, and a page with their results.

It starts a local Kafka, a generator of clicks, orders and payments, the jobs of `shop.yaml` in a
process of their own, and a gateway. All of it is temporary and ends together.
`cli` calls `run_shop_demo`.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.kafka.local import LocalKafka
from gateway.pipeline.spark import spark_home
from gateway.web import demo
from gateway.web.app.app import Startup
from gateway.web.demo import build_page_url, find_free_port, open_page, open_sender

from .generate import ShopGenerator, ShopTraffic, generate_users

SHOP_DIRECTORY = Path(__file__).parent
CONFIG = (SHOP_DIRECTORY / "shop.yaml").read_text("utf-8")
PAGES = {
    "/": SHOP_DIRECTORY / "page" / "index.html",
    "/shop.css": SHOP_DIRECTORY / "page" / "shop.css",
    "/shop.js": SHOP_DIRECTORY / "page" / "shop.js",
    "/demo.css": demo.PAGES["/demo.css"],
    "/draw.js": demo.PAGES["/draw.js"],
}


def run_shop_demo(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    browser: bool = True,
    traffic: ShopTraffic | None = None,
) -> int:
    """Run the demo until SIGTERM or ^C, and return the exit status.

    Raises:
        PipelineError: There is no Java 17 or no Spark.
        LocalBrokerError: Kafka cannot be started.
    """
    from gateway.config import loads
    from gateway.web.app.server import serve

    spark_home.find_java()
    port = port or find_free_port(host)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-shop-")))
        kafka = stack.enter_context(LocalKafka(properties={"auto.create.topics.enable": "false"}))
        create_topics(kafka.bootstrap)
        file = directory / "shop.yaml"
        file.write_text(build_config(kafka.bootstrap[0], directory, host, port), "utf-8")
        settings = loads(file.read_text("utf-8"), name=str(file))
        assert settings.pipelines is not None
        jobs = [job.name for job in settings.pipelines.jobs]
        url = build_page_url(host, port)
        states = ComponentStates(kafka.bootstrap)
        states.report_state("Kafka", "running", kafka.bootstrap[0])
        startup: list[Startup] = [
            states.run,
            partial(send_events, kafka.bootstrap, traffic or ShopTraffic(), states),
            partial(run_jobs, file, jobs, states),
        ]
        if browser:
            startup.append(partial(open_page, url))
        print(format_invitation(url), flush=True)
        return serve(settings, pages=PAGES, startup=startup)


def build_config(servers: str, directory: Path, host: str, port: int) -> str:
    values = {"KAFKA": servers, "CHECKPOINTS": str(directory / "checkpoints")}
    text = CONFIG.replace("{host: 127.0.0.1, port: 8080}", f"{{host: '{host}', port: {port}}}")
    for name, value in values.items():
        # Backslashes of Windows paths would be escapes in the replacement.
        text = re.sub(rf"\$\{{env\.{name}:[^}}]*\}}", value.replace("\\", r"\\"), text)
    return text


def format_invitation(url: str) -> str:
    return f"""
  {url}/  the page; it shows what Spark's jobs wait for (^C ends it all)

  In another terminal:
    curl -N {url}/events/visits                       # sessions as they grow and end
    curl -N '{url}/events/settled?from=earliest'      # paid and unpaid orders
    curl -N {url}/events/known                        # clicks with what is known of the user
    curl -N {url}/events/progress                     # what Spark does
"""


ComponentState = Literal["starting", "running", "failed"]


class ComponentStates:
    """Report the states of the demo's components in a topic that the page streams.

    Each change of a state is published once, also one from before `run`, with its time: the page
    shows how long a component has been starting.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._reported: dict[str, tuple[ComponentState, str]] = {}
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def report_state(self, component: str, state: ComponentState, text: str) -> None:
        if self._reported.get(component) != (state, text):
            self._reported[component] = (state, text)
            at = round(time.time() * 1000)
            value = {"part": component, "state": state, "text": text, "at": at}
            self._queue.put_nowait(json.dumps(value).encode())

    async def run(self) -> None:
        async with open_sender(self._servers) as sender:
            while True:
                await (await sender.send("parts", None, await self._queue.get()))


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


async def run_jobs(config: Path, jobs: Sequence[str], states: ComponentStates) -> None:
    """Run the Spark jobs in a process of their own until cancelled: `gateway pipeline run all`.

    If they end before, the page shows their last line.
    """
    starts = JobStarts(jobs, states)
    command = (sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(config))
    # In a session of its own, ^C in the terminal does not reach it: `_stop_process` ends the jobs.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        assert process.stdout is not None
        last_line = ""
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            last_line = line or last_line
            print(f"  spark  {line}", file=sys.stderr, flush=True)
            starts.read_line(line)
        code = await process.wait()
        states.report_state("Spark", "failed", f"ended with status {code}: {last_line}")
        print(
            f"gateway: the jobs ended with status {code}: {last_line}", file=sys.stderr, flush=True
        )
        await asyncio.Event().wait()
    finally:
        await _stop_process(process)


class JobStarts:
    """Report what Spark and each job wait for, by the lines that `gateway pipeline run` logs."""

    _LINE = re.compile(
        r"query of job (?P<begun>\S+) begins"
        r"|rows in .*\[job=(?P<done>[^\s\]]+)"
        r"|(?<!of )job (?P<again>\S+) begins again in (?P<delay>.*)"
        r"|(?<!of )job (?P<failed>\S+) failed: (?P<reason>.*)"
    )

    def __init__(
        self,
        jobs: Sequence[str],
        states: ComponentStates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count the seconds."""
        self._states = states
        self._clock = clock
        self._started_at = clock()
        self._running: set[str] = set()  # Spark, and the jobs that have finished a batch
        states.report_state("Spark", "starting", "Java and a session")
        for job in jobs:
            states.report_state(job, "starting", "waits for Spark")

    def read_line(self, line: str) -> None:
        found = self._LINE.search(line)
        if found is None:
            return
        if job := found["begun"]:
            self._report_running("Spark", "began")
            self._states.report_state(job, "starting", "its first batch")
        elif job := found["done"]:
            self._report_running(job, "first batch")
        elif job := found["again"]:
            self._running.discard(job)
            self._states.report_state(job, "starting", f"begins again in {found['delay']}")
        else:
            self._states.report_state(found["failed"], "failed", found["reason"])

    def _report_running(self, component: str, event: str) -> None:
        if component not in self._running:
            self._running.add(component)
            seconds = self._clock() - self._started_at
            self._states.report_state(component, "running", f"{event} after {seconds:.0f} s")


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
