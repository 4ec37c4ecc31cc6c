"""Several processes on one port, and the one that looks after them.

The supervisor binds the port, starts the workers, relays what they say (`relay`), counts for them
(`limits`), gives them turns (`turns`), and starts anew what crashed. It serves nobody. It holds
the listening sockets, too: clients that connect while their worker is being started again wait a
moment and are served. Where that takes longer, because it crashed once more, its socket is
closed, and they go to the others.

Workers are processes of their own, not forks: librdkafka's threads, an event loop and its signals
would not survive one. Starting one takes about a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import random
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config import Settings
from gateway.config.checks.reload import reloaded
from gateway.errors import GatewayError
from gateway.web.admin import reloading
from gateway.web.admin.listener import open_port
from gateway.web.admin.orders import Order, keep
from gateway.web.admin.reloading import problems_of
from gateway.web.app.beside import Beside
from gateway.web.app.reload import Load, refused
from gateway.web.exchange.turns import take_turns
from gateway.web.routing.limits import count_for

from .listening import address, bind_beside, bind_shared, refuse_exposed
from .relay import Relay

log = logging.getLogger(__name__)

CALM = 30.0  # seconds after which a crash is not counted with those before
LONGEST = 5.0  # seconds until a worker that crashes again and again is started once more
GRACE = 10.0  # seconds beyond `drainTimeout` until a worker that does not end is killed
FAILURE = 1
SIZE = 4  # bytes of the length of what a worker is told
COMMAND = (sys.executable, "-m", f"{__package__}.worker")


class Job(NamedTuple):
    """What a worker is told. listening, admin: file descriptors; -1 for none. path: of the bus.
    orders: of operators. beside: as of `create_app`."""

    settings: Settings
    debug: AbstractSet[str]
    listening: int
    admin: int
    path: Path
    orders: list[Order]
    beside: Beside | None


def said(told: Any) -> bytes:
    """As a worker reads it."""
    data = pickle.dumps(told)
    return len(data).to_bytes(SIZE) + data


def supervise(
    settings: Settings,
    debug: AbstractSet[str],
    load: Load | None = None,
    beside: Beside | None = None,
) -> int:
    """Run `listen.workers` processes until SIGTERM or SIGINT. The exit status: 0 when all of
    them ended as they should.

    load: the configuration as it is by now, for SIGHUP.

    Raises GatewayError when the address cannot be bound.
    """
    listen = settings.listen
    sockets = bind_shared(listen.host, listen.port, listen.workers)
    refuse_exposed(settings, sockets[0])
    admin = open_port(settings)
    print(f"listening on {address(sockets[0], tls=listen.tls is not None)}", flush=True)
    print(
        f"{listen.workers} workers; each reads Kafka on its own, "
        f"so what clients follow is read up to {listen.workers} times",
        flush=True,
    )
    with private_folder() as folder:
        supervisor = Supervisor(settings, debug, sockets, folder / "bus", load, admin, beside)
        return asyncio.run(supervisor.run())


@dataclass(slots=True)
class Worker:
    """listening: held for it, None while others are to take its clients."""

    number: int
    listening: socket.socket | None
    process: Process | None = None
    crashes: int = 0
    killed: bool = False


class Supervisor:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        debug: AbstractSet[str],
        sockets: list[socket.socket],
        path: Path,
        load: Load | None = None,
        admin: socket.socket | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._settings = settings
        self._beside = beside
        self._admin = admin
        self._load = load
        self._debug = debug
        self._host, self._port = settings.listen.host, sockets[0].getsockname()[1]
        self._path = path
        self._workers = [Worker(n, each) for n, each in enumerate(sockets, 1)]
        self._relay = Relay(path)
        self._orders = keep(self._relay)
        self._serves = False
        self._status = 0
        self._ending = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        if self._load is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload, self._load)
        self._relay.joined.append(self._joined)
        count_for(self._relay, self._settings.listen.limits)
        take_turns(self._relay)
        self._relay.on(reloading.TOPIC, self._asked_to_reload)
        await self._relay.start()
        keeping = [asyncio.create_task(self._keep(each)) for each in self._workers]
        try:
            await self._ending.wait()
            await asyncio.wait(keeping, timeout=self._settings.listen.drain_timeout + GRACE)
            self._kill()
            await asyncio.gather(*keeping)
        finally:
            self._kill()
            await self._relay.close()
        return self._status

    def _joined(self, worker: int) -> None:
        self._serves = True

    def _end(self, number: int) -> None:
        """Nobody is taken on any more: a socket that only we still hold would take them. Told a
        second time, the workers hear that, too."""
        first = not self._ending.is_set()
        self._ending.set()
        if self._admin is not None:
            self._admin.close()
        for worker in self._workers:
            self._let_go(worker)
            if worker.process is not None and worker.process.returncode is None:
                # SIGINT would be a traceback of one that is only starting
                worker.process.send_signal(signal.SIGTERM if first else number)

    def _reload(self, load: Load) -> None:
        """What cannot be is said once, and no worker hears of it."""
        with refused():
            self._take_over(load())

    def _asked_to_reload(self, worker: int, data: Any) -> list[str]:
        """By an operator: what is wrong with it."""
        try:
            if self._load is None:
                return ["this gateway was not started from a file; start it with `gateway run`"]
            self._take_over(self._load())
        except (GatewayError, OSError) as exc:
            return problems_of(exc)
        return []

    def _take_over(self, written: Settings) -> None:
        self._settings = reloaded(self._settings, written).settings
        for worker in self._workers:
            process = worker.process
            if process is not None and process.returncode is None and process.stdin is not None:
                process.stdin.write(said(written))

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                log.error("worker %d does not end; killed", worker.number)
                worker.killed = True
                worker.process.kill()

    async def _keep(self, worker: Worker) -> None:
        """Have it running until the end."""
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            began = loop.time()
            try:
                status = await self._start(worker)
            except (GatewayError, OSError) as exc:
                log.error("worker %d cannot be started: %s", worker.number, exc)
                status = FAILURE
            if self._ending.is_set():
                self._ended(worker, status)
                return
            if not self._serves:  # what ended this one would end them all
                self._status = status if status > 0 else FAILURE
                self._end(signal.SIGTERM)
                return
            await self._back_off(worker, status, loop.time() - began)

    async def _start(self, worker: Worker) -> int:
        """Start it, and wait for its end. Its exit status; the number of a signal is negative."""
        if worker.listening is None:
            worker.listening = bind_beside(self._host, self._port)
        admin = -1 if self._admin is None else self._admin.fileno()
        job = Job(
            self._settings, self._debug, worker.listening.fileno(), admin, self._path,
            self._orders(), self._beside,
        )  # fmt: skip
        worker.process = await asyncio.create_subprocess_exec(
            *COMMAND, str(worker.number),
            stdin=PIPE, pass_fds=[fd for fd in (job.listening, job.admin) if fd >= 0],
            process_group=0,  # or ^C would reach it from the terminal, too, and mean: at once
        )  # fmt: skip
        assert worker.process.stdin is not None
        worker.process.stdin.write(said(job))
        if self._ending.is_set():  # while it was being started
            worker.process.terminate()
        return await worker.process.wait()

    async def _back_off(self, worker: Worker, status: int, lived: float) -> None:
        worker.crashes = 1 if lived > CALM else worker.crashes + 1
        most = 0.0 if worker.crashes == 1 else min(LONGEST, 0.1 * 2**worker.crashes)
        wait = random.uniform(most / 2, most)
        log.error(
            "worker %d ended with status %d after %.1f s; another starts in %.1f s",
            worker.number, status, lived, wait,
        )  # fmt: skip
        if wait:
            self._let_go(worker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._ending.wait()

    def _let_go(self, worker: Worker) -> None:
        if worker.listening is not None:
            worker.listening.close()
            worker.listening = None

    def _ended(self, worker: Worker, status: int) -> None:
        """0, or the SIGTERM that met it before it listened to signals."""
        if status not in (0, -signal.SIGTERM) or worker.killed:
            self._status = self._status or FAILURE


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """For the bus; nobody else's user may look in. The path of a socket has 100 characters."""
    for parent in (None, "/tmp"):
        made = Path(tempfile.mkdtemp(prefix="gateway-", dir=parent))
        if len(str(made)) < 90:
            break
        made.rmdir()
    else:
        raise GatewayError("the path of the temporary folder is too long; set TMPDIR to another")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
