"""Run one attack on one checkout of the gateway, and measure what the other clients notice.

A gateway of one worker is started by `bench.timed_gateway`, which times every callback of its
loop. Two topics get records all the time. An honest client reads one of them from the beginning.
For some seconds nothing else happens (idle). Then the attacker begins, and after it a second
honest client, which reads the other topic. When the attacker has ended, both clients are cut,
reconnect with the last id that they got, and must have lost nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from support.gateways import GatewayProcess, running_gateway_process
from support.waiting import wait_until

from ..client_pool import connect_ledgers
from ..feed import KafkaFeed, send_steadily
from ..goals import CALLBACK
from ..kafka import Kafka
from ..ledger import Ledger
from ..machine import get_cpu_seconds, pin_command
from ..peers.gateway_peer import build_environment
from ..peers.peer import ROOT, build_sse_request
from ..results import Cell, quantile
from .attack import MEMORY_BYTES, Attack, Target, build_configuration
from .backend import running_backend

WATCHED_PATH = str(Path(__file__).parent.parent / "timed_gateway.py")
PROBER_PATH = str(Path(__file__).parent / "prober.py")
MAX_RESIDENT_BYTES = 4 << 30  # bytes; a gateway that is larger is killed
MEMORY_POLL_S = 0.05  # between two looks at its memory
DEAD_S = 600.0  # stands for the longest callback of a gateway that did not live to tell
PROBE_FIGURES = ("p50", "p99", "max")
MEMORY_FIGURES = ("memory idle", "memory at most", "memory after")


@dataclass(frozen=True)
class Size:
    """How long is measured, in seconds.

    idle:   before the attack.
    settle: after it, before memory is looked at.
    within: in which honest clients must be whole, and come back.
    seconds: of an attack at most; None for its own.
    probe:  between two probes.
    rate:   records a second of each topic.
    tiny:   attacks have their tiny size.
    """

    idle_s: float = 3.0
    settle_s: float = 2.0
    client_timeout_s: float = 20.0
    max_attack_s: float | None = None
    probe_interval_s: float = 0.002
    rate: float = 20.0
    is_tiny: bool = False


@dataclass
class AttackResult:
    """What one attack did to one gateway.

    idle, attacked: seconds that /health/live took, every probe.
    cpu:        CPU seconds of the gateway while the attacker was there.
    cpu_idle:   its share of a core before; cpu_after: when the attacker was gone.
    callback:   the longest callback meanwhile, in CPU seconds; None where the gateway did not
                live to tell. `callback_name`: which.
    memory:     resident bytes: idle, at most, after.
    lost, twice: records of both honest clients.
    begin:      bytes of the newcomer's first block; 0 where it was not let in. `id_length` of the
                longest id of both.
    back:       how the two were answered when they came back: "200", or why not.
    counts:     what the attacker counted.
    notes:      what else went wrong.
    """

    idle: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    cpu: float = 0.0
    cpu_idle: float = 0.0
    cpu_after: float = 0.0
    callback: float | None = None
    callback_name: str = ""
    memory: tuple[int, int, int] = (0, 0, 0)
    lost: int = 0
    twice: int = 0
    begin: int = 0
    id_length: int = 0
    back: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def count_beyond(self, limits: Mapping[str, float]) -> float:
        """How much more the attacker was given than its limits say."""
        return sum(max(0.0, self.counts.get(name, 0) - most) for name, most in limits.items())

    def count_refused(self) -> int:
        """How many of the honest clients were not let in, at first or when they came back."""
        return 2 - self.back.count("200")


def add_results(cell: Cell, name: str, attack: Attack, runs: Sequence[AttackResult]) -> None:
    """Add the medians of several runs; of what must not happen, the worst."""
    quantiles = [[[1000 * quantile(probes, q) for q in (0.5, 0.99, 1.0)]
                  for probes in (run.idle, run.attacked)] for run in runs]  # fmt: skip
    bound = MEMORY_BYTES / 2**20
    memory = [[size / 2**20 for size in run.memory] for run in runs]
    rows: Sequence[tuple[str, str, Sequence[float]]] = (
        ("p99 to idle", "", [hit[1] / idle[1] for idle, hit in quantiles]),
        ("idle p99", "ms", [idle[1] for idle, _ in quantiles]),
        *((what, "ms", [hit[n] for _, hit in quantiles]) for n, what in enumerate(PROBE_FIGURES)),
        (CALLBACK, "ms", [1000 * (DEAD_S if r.callback is None else r.callback) for r in runs]),
        ("CPU", "s", [run.cpu for run in runs]),
        ("of a core before", "%", [100 * run.cpu_idle for run in runs]),
        ("of a core after", "%", [100 * run.cpu_after for run in runs]),
        *((what, "MiB", [each[n] for each in memory]) for n, what in enumerate(MEMORY_FIGURES)),
        ("MiB beyond", "", [max(0.0, most - idle - bound) for idle, most, _ in memory]),
        *(
            (what, unit, [max(map(count, runs))])
            for what, unit, count in (
                ("lost", "", lambda run: run.lost),
                ("twice", "", lambda run: run.twice),
                ("first block", "bytes", lambda run: run.begin),
                ("longest id", "", lambda run: run.id_length),
                ("not let in", "", lambda run: run.count_refused()),
                ("beyond its limits", "", lambda run: run.count_beyond(attack.max_counts)),
            )
        ),
    )
    for what, unit, values in rows:
        cell.add_row(name, what, unit, *values)
    longest = max(runs, key=lambda run: run.callback or 0).callback_name
    counted = ", ".join(f"{what} {count:,.0f}" for what, count in runs[-1].counts.items())
    cell.add_note(f"{name}, {attack.description}: {counted}; longest: {longest or 'none'}")
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        cell.add_note(f"{name}: {note}")


class HonestClient(Ledger):
    """A client that reads every byte over SSE, and comes back from where it stood."""

    def __init__(self, port: int, path: str, feed: KafkaFeed) -> None:
        super().__init__()
        self.feed = feed
        self.first_number = 0
        self.begin_bytes = 0
        self._port, self._path = port, path

    async def open_stream(self, timeout_s: float) -> None:
        """Open the stream. Raises OSError and TimeoutError where it is refused."""
        self.close_reason = ""
        await connect_ledgers(
            [self], self._port, lambda _, token: build_sse_request(self._path, token), timeout_s
        )

    async def open_live(self, timeout_s: float) -> None:
        """Open the stream for the first time, live, and wait for its first block."""
        await self.open_stream(timeout_s)
        await wait_until(lambda: self.token, "the first block", timeout_s, 0.002)
        self.first_number, self.begin_bytes = self.feed.sent_count, self.byte_count

    async def wait_until_whole(self, timeout_s: float) -> None:
        """Wait until every record since the first block has come; those before it may have."""
        end = self.feed.sent_count
        with suppress(TimeoutError):
            await wait_until(
                lambda: not self.count_lost(self.first_number, end), "all records", timeout_s
            )

    async def reconnect(self, timeout_s: float) -> str:
        """Be cut and come back; how that was answered."""
        self.disconnect()
        try:
            await self.open_stream(timeout_s)
        except (OSError, TimeoutError) as error:
            return str(error)[:60] or type(error).__name__
        return "200"


async def measure_attack(
    kafka: Kafka, attack: tuple[str, Attack], checkout: Path, size: Size
) -> AttackResult:
    """Attack a gateway of this checkout, once.

    Raises:
        AssertionError: The gateway or the attacker could not be started.
    """
    _, how = attack
    found = AttackResult()
    topics = (kafka.create_unique_topic(), kafka.create_unique_topic(), kafka.create_unique_topic())
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        report = Path(folder) / "callbacks.json"
        command = pin_command(sys.executable, WATCHED_PATH, str(report), "run", "-c")
        async with running_backend() as backend:
            config = build_configuration(how, kafka.bootstrap_servers, topics, backend)
            async with running_gateway_process(
                config, command=command, environment=build_environment(checkout)
            ) as gateway:
                span = await _run_attack(kafka, gateway, attack, topics, size, found)
                await _stop_gateway(gateway, found)
        _read_callbacks(report, span, found)
    return found


async def _run_attack(
    kafka: Kafka,
    gateway: GatewayProcess,
    attack: tuple[str, Attack],
    topics: tuple[str, str, str],
    size: Size,
    result: AttackResult,
) -> tuple[float, float]:
    """Do it; from when to when the attacker was there."""
    name, how = attack
    feeds = [KafkaFeed(kafka.bootstrap_servers, topic, 1) for topic in topics[:2]]
    steady, newcomer = (
        HonestClient(gateway.port, path, feed)
        for path, feed in zip(("/steady", "/fresh"), feeds, strict=True)
    )
    flowing = [asyncio.create_task(send_steadily(feed, size.rate, 3600.0)) for feed in feeds]
    memory = MemoryMonitor(gateway.pid)
    seconds = size.max_attack_s if size.max_attack_s is not None else how.seconds
    target = Target(
        gateway.port,
        kafka.bootstrap_servers,
        *topics,
        how.tiny_size if size.is_tiny else how.full_size,
        seconds,
    )
    try:
        async with (
            asyncio.timeout(600),
            memory.watch(),
            running_attacker(name, target) as hostile,
            probe_health(gateway.port, size) as probes,
        ):
            await steady.open_live(size.client_timeout_s)
            await asyncio.sleep(0.5)
            calm, used = time.monotonic(), get_cpu_seconds(gateway.pid)
            await asyncio.sleep(size.idle_s)
            began = time.monotonic()
            result.cpu_idle = (get_cpu_seconds(gateway.pid) - used) / (began - calm)
            idle_memory, used = memory.get_resident_bytes(), get_cpu_seconds(gateway.pid)
            memory.peak_bytes = idle_memory
            async with let_attack(hostile, result):
                try:
                    await newcomer.open_live(size.client_timeout_s)
                except (OSError, TimeoutError) as error:
                    result.notes.append(f"the newcomer was not let in: {str(error)[:200]}")
            ended = time.monotonic()
            result.cpu = get_cpu_seconds(gateway.pid) - used
            used = get_cpu_seconds(gateway.pid)
            await asyncio.sleep(size.settle_s)
            result.cpu_after = (get_cpu_seconds(gateway.pid) - used) / (time.monotonic() - ended)
            result.memory = idle_memory, memory.peak_bytes, memory.get_resident_bytes()
            await _check_clients((steady, newcomer), flowing, size, result)
        result.idle = [took for due, took in probes if calm <= due < began]
        result.attacked = [took for due, took in probes if began <= due < ended]
        return began, ended
    finally:
        for task in flowing:
            task.cancel()
        for feed, honest in zip(feeds, (steady, newcomer), strict=True):
            feed.close()
            honest.disconnect()


async def _check_clients(
    clients: Sequence[HonestClient],
    feed_tasks: Sequence[asyncio.Task[float]],
    size: Size,
    result: AttackResult,
) -> None:
    """Let every honest client come back once, and count what it was sent."""
    for honest in clients:
        if honest.first_number or honest.begin_bytes:
            result.id_length = max(result.id_length, len(honest.token))
            answer = await honest.reconnect(size.client_timeout_s)
            result.back.append(answer)
            if answer != "200":
                result.notes.append(f"an honest client came back in vain: {answer}")
    await asyncio.sleep(0.2)
    for task in feed_tasks:
        task.cancel()
    for honest in clients:
        await honest.feed.flush()
        if honest.begin_bytes:
            await honest.wait_until_whole(size.client_timeout_s)
            result.lost += honest.count_lost(honest.first_number, honest.feed.sent_count)
            result.twice += honest.duplicate_count
            result.id_length = max(result.id_length, len(honest.token))
    result.begin = clients[1].begin_bytes


async def _stop_gateway(gateway: GatewayProcess, result: AttackResult) -> None:
    try:
        await gateway.stop()
    except AssertionError as error:
        result.notes.append(str(error).partition("\n")[0])


def _read_callbacks(report: Path, span: tuple[float, float], result: AttackResult) -> None:
    if not report.exists():
        result.notes.append("the gateway ended without its list of callbacks")
        return
    told = json.loads(report.read_text())
    during = [each for each in told["long"] if span[0] <= each["at"] < span[1]]
    longest = max(during, key=lambda each: each["cpu"], default=None)
    result.callback = longest["cpu"] if longest else told["least"]
    result.callback_name = longest["what"] if longest else ""


class MemoryMonitor:
    """The resident memory of a process, looked at all the while. most: since that was last set."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._process = psutil.Process(pid)

    def get_resident_bytes(self) -> int:
        """Return what is resident now, in bytes."""
        return int(self._process.memory_info().rss)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Look until the block ends, and kill what grows beyond MAX_RESIDENT."""
        task = asyncio.create_task(self._poll_memory())
        try:
            yield
        finally:
            task.cancel()

    async def _poll_memory(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while True:
                self.peak_bytes = max(self.peak_bytes, self.get_resident_bytes())
                if self.peak_bytes > MAX_RESIDENT_BYTES:
                    self._process.kill()
                await asyncio.sleep(MEMORY_POLL_S)


@asynccontextmanager
async def _running_python(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start Python; killed with the block."""
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


@asynccontextmanager
async def probe_health(port: int, size: Size) -> AsyncIterator[list[tuple[float, float]]]:
    """Probe until the block ends; the list is filled then."""
    probes: list[tuple[float, float]] = []
    async with _running_python(PROBER_PATH, str(port), str(size.probe_interval_s)) as running:
        await asyncio.wait_for(_read_line(running), 60)  # it begins now
        yield probes
        said, _ = await asyncio.wait_for(running.communicate(b""), 60)
        probes += [(due, took) for due, took in json.loads(said)]


@asynccontextmanager
async def running_attacker(name: str, target: Target) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an attacker that waits for its word. Raises AssertionError if it cannot be."""
    arguments = "-m", "bench.attacks.attacker", name, json.dumps(asdict(target))
    async with _running_python(*arguments) as running:
        assert await _read_line(running) == b"ready\n", f"the attacker {name} could not be started"
        yield running


@asynccontextmanager
async def let_attack(
    process: asyncio.subprocess.Process, result: AttackResult
) -> AsyncIterator[None]:
    """Let it attack; the block runs once that is under way, and behind it its end is waited for."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    if (first := await _read_line(process)) != b"begun\n":
        result.notes.append(f"the attack did not begin: {first!r}")
    yield
    last = await _read_line(process)
    if await process.wait():
        result.notes.append(f"the attacker failed with {process.returncode}")
    else:
        counts: Mapping[str, float] = json.loads(last or first)
        result.counts.update(counts)


async def _read_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()
