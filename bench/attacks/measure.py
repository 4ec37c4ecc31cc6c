"""One attack on one checkout of the gateway, and what the others had of it meanwhile.

A gateway of one worker is started by `bench.watched`, which times every callback of its loop. Two
topics get records all the while. An honest client reads one of them from the beginning on; for
some seconds nothing else happens (idle), then the attacker comes, and behind it a newcomer, who
reads the other topic. When the attacker is gone, both are cut and come back with the id that they
got last, and have to be whole.
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
from typing import Any

import psutil
from support.gateways import Gateway, running_gateway
from support.until import until

from ..exact import Exact, connect
from ..feed import KafkaFeed, Wire, steadily
from ..figure import quantile
from ..kafka import Kafka
from ..machine import cpu, pinned
from ..peers.ours import environment
from ..peers.peer import ROOT, sse_request
from .attack import Attack, Target, configuration
from .backend import running_backend

WATCHED = str(Path(__file__).parent.parent / "watched.py")
PROBER = str(Path(__file__).parent / "prober.py")
MAX_RESIDENT = 4 << 30  # bytes; a gateway that is larger is killed
LOOK_SECONDS = 0.05  # between two looks at its memory


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

    idle: float = 3.0
    settle: float = 2.0
    within: float = 20.0
    seconds: float | None = None
    probe: float = 0.002
    rate: float = 20.0
    tiny: bool = False


@dataclass
class Measured:
    """What one attack did to one gateway.

    idle, attacked: seconds that /health/live took, every probe.
    cpu:        CPU seconds of the gateway while the attacker was there; `wall` how long that was.
    cpu_idle:   its share of a core before.
    cpu_after:  its share of a core when the attacker was gone.
    callback:   the longest callback meanwhile, in CPU seconds; None where the gateway did not
                live to tell. `callback_name`: which.
    memory:     resident bytes: idle, at most, after.
    lost, twice: records of both honest clients.
    begin:      bytes of the newcomer's first block; `id_length` of the longest id of both.
    back:       how the two were answered when they came back: "200", or why not.
    counts:     what the attacker counted.
    notes:      what else went wrong.
    """

    idle: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    wall: float = 0.0
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

    def summary(self) -> dict[str, Any]:
        """Return it with the probes as quantiles, in ms."""
        told = asdict(self)
        for name in ("idle", "attacked"):
            told[name] = {
                "p50": 1000 * quantile(told[name], 0.5),
                "p99": 1000 * quantile(told[name], 0.99),
                "max": 1000 * max(told[name]),
                "n": len(told[name]),
            }
        return told


class Honest(Exact):
    """A client that reads every byte over SSE, and comes back from where it stood."""

    def __init__(self, port: int, path: str, feed: KafkaFeed) -> None:
        super().__init__(Wire.SSE)
        self.feed = feed
        self.first = 0
        self.begin = 0
        self._port, self._path = port, path

    async def come(self, within: float) -> None:
        """Open the stream. Raises OSError and TimeoutError where it is refused."""
        self.broken = ""
        await connect([self], self._port, lambda _, token: sse_request(self._path, token), within)

    async def arrive(self, within: float) -> None:
        """Open the stream for the first time, live, and wait for its first block."""
        await self.come(within)
        await until(lambda: self.token, "the first block", within, 0.002)
        self.first, self.begin = self.feed.sent, self.bytes

    async def be_whole(self, within: float) -> None:
        """Wait until every record since the first block has come; those before it may have."""
        end = self.feed.sent
        with suppress(TimeoutError):
            await until(lambda: not self.lost(self.first, end), "all records", within)

    async def come_back(self, within: float) -> str:
        """Be cut and come back; how that was answered."""
        self.cut()
        try:
            await self.come(within)
        except (OSError, TimeoutError) as error:
            return str(error)[:60] or type(error).__name__
        return "200"


async def measure(kafka: Kafka, attack: tuple[str, Attack], checkout: Path, size: Size) -> Measured:
    """Attack a gateway of this checkout, once.

    Raises:
        AssertionError: The gateway or the attacker could not be started.
    """
    _, how = attack
    found = Measured()
    topics = kafka.topic(), kafka.topic(), kafka.topic()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        report = Path(folder) / "callbacks.json"
        command = pinned(sys.executable, WATCHED, str(report), "run", "-c")
        async with running_backend() as backend:
            config = configuration(how, kafka.servers, topics, backend)
            async with running_gateway(
                config, command=command, environment=environment(checkout)
            ) as gateway:
                span = await _attack(kafka, gateway, attack, topics, size, found)
                await _stop(gateway, found)
        _read_callbacks(report, span, found)
    return found


async def _attack(
    kafka: Kafka,
    gateway: Gateway,
    attack: tuple[str, Attack],
    topics: tuple[str, str, str],
    size: Size,
    found: Measured,
) -> tuple[float, float]:
    """Do it; from when to when the attacker was there."""
    name, how = attack
    feeds = [KafkaFeed(kafka.servers, topic, 1) for topic in topics[:2]]
    steady, newcomer = (
        Honest(gateway.port, path, feed)
        for path, feed in zip(("/steady", "/fresh"), feeds, strict=True)
    )
    flowing = [asyncio.create_task(steadily(feed, size.rate, 3600.0)) for feed in feeds]
    memory = Memory(gateway.pid)
    seconds = size.seconds if size.seconds is not None else how.seconds
    target = Target(
        gateway.port, kafka.servers, *topics, how.tiny if size.tiny else how.full, seconds
    )
    try:
        async with (
            asyncio.timeout(600),
            memory.watch(),
            attacker(name, target) as hostile,
            probe_health(gateway.port, size) as probes,
        ):
            await steady.arrive(size.within)
            await asyncio.sleep(0.5)
            calm, used = time.monotonic(), cpu(gateway.pid)
            await asyncio.sleep(size.idle)
            began = time.monotonic()
            found.cpu_idle = (cpu(gateway.pid) - used) / (began - calm)
            idle_memory, used = memory.now(), cpu(gateway.pid)
            memory.most = idle_memory
            async with attacking(hostile, found):
                try:
                    await newcomer.arrive(size.within)
                except (OSError, TimeoutError) as error:
                    found.notes.append(f"the newcomer was not let in: {str(error)[:200]}")
            ended = time.monotonic()
            found.wall, found.cpu = ended - began, cpu(gateway.pid) - used
            used = cpu(gateway.pid)
            await asyncio.sleep(size.settle)
            found.cpu_after = (cpu(gateway.pid) - used) / (time.monotonic() - ended)
            found.memory = idle_memory, memory.most, memory.now()
            await _settle_up((steady, newcomer), flowing, size, found)
        found.idle = [took for due, took in probes if calm <= due < began]
        found.attacked = [took for due, took in probes if began <= due < ended]
        return began, ended
    finally:
        for task in flowing:
            task.cancel()
        for feed, honest in zip(feeds, (steady, newcomer), strict=True):
            feed.close()
            honest.cut()


async def _settle_up(
    clients: Sequence[Honest],
    flowing: Sequence[asyncio.Task[float]],
    size: Size,
    found: Measured,
) -> None:
    """Let every honest client come back once, and count what it was sent."""
    for honest in clients:
        if honest.first or honest.begin:
            found.id_length = max(found.id_length, len(honest.token))
            found.back.append(await honest.come_back(size.within))
    await asyncio.sleep(0.2)
    for task in flowing:
        task.cancel()
    for honest in clients:
        await honest.feed.flush()
        if honest.begin:
            await honest.be_whole(size.within)
            found.lost += honest.lost(honest.first, honest.feed.sent)
            found.twice += honest.twice
            found.id_length = max(found.id_length, len(honest.token))
    found.begin = clients[1].begin


async def _stop(gateway: Gateway, found: Measured) -> None:
    try:
        await gateway.stop()
    except AssertionError as error:
        found.notes.append(str(error).partition("\n")[0])


def _read_callbacks(report: Path, span: tuple[float, float], found: Measured) -> None:
    if not report.exists():
        found.notes.append("the gateway ended without its list of callbacks")
        return
    told = json.loads(report.read_text())
    during = [each for each in told["long"] if span[0] <= each["at"] < span[1]]
    longest = max(during, key=lambda each: each["cpu"], default=None)
    found.callback = longest["cpu"] if longest else told["least"]
    found.callback_name = longest["what"] if longest else ""


class Memory:
    """The resident memory of a process, looked at all the while. most: since that was last set."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process = psutil.Process(pid)

    def now(self) -> int:
        """Return what is resident now, in bytes."""
        return int(self._process.memory_info().rss)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Look until the block ends, and kill what grows beyond MAX_RESIDENT."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while True:
                self.most = max(self.most, self.now())
                if self.most > MAX_RESIDENT:
                    self._process.kill()
                await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def probe_health(port: int, size: Size) -> AsyncIterator[list[tuple[float, float]]]:
    """Probe until the block ends; the list is filled then."""
    probes: list[tuple[float, float]] = []
    running = await asyncio.create_subprocess_exec(
        sys.executable, PROBER, str(port), str(size.probe),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield probes
        said, _ = await asyncio.wait_for(running.communicate(b""), 60)
        probes += [(due, took) for due, took in json.loads(said)]
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


@asynccontextmanager
async def attacker(name: str, target: Target) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an attacker that waits for its word; ended with the block.

    Raises:
        AssertionError: It could not be started.
    """
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.attacks.attacker", name, json.dumps(asdict(target)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        assert await _line(running) == b"ready\n", f"the attacker {name} could not be started"
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


@asynccontextmanager
async def attacking(running: asyncio.subprocess.Process, found: Measured) -> AsyncIterator[None]:
    """Let it attack; the block runs once that is under way, and behind it its end is waited for."""
    assert running.stdin is not None
    running.stdin.write(b"go\n")
    if (first := await _line(running)) != b"begun\n":
        found.notes.append(f"the attack did not begin: {first!r}")
    yield
    last = await _line(running)
    if await running.wait():
        found.notes.append(f"the attacker failed with {running.returncode}")
    else:
        counts: Mapping[str, float] = json.loads(last or first)
        found.counts.update(counts)


async def _line(running: asyncio.subprocess.Process) -> bytes:
    assert running.stdout is not None
    return await running.stdout.readline()
