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
from gateway.config.checks.reload import apply_reload
from gateway.errors import GatewayError
from gateway.web.admin import reload_coordinator
from gateway.web.admin.blocklist import BlocklistEntry, serve_blocklist
from gateway.web.admin.listener import bind_admin_socket
from gateway.web.admin.reload_coordinator import list_problems
from gateway.web.app.co_hosted_app import CoHostedAppFactory
from gateway.web.app.reload import SettingsLoader, log_reload_errors
from gateway.web.exchange.key_locks import serve_key_locks
from gateway.web.routing.limits import serve_limits

from .relay import Relay
from .sockets import bind_additional, bind_shared, format_url, refuse_exposed_sidecar

log = logging.getLogger(__name__)

STEADY_AFTER_S = 30.0  # seconds after which a crash is not counted with those before
MAX_RESTART_DELAY_S = (
    5.0  # seconds until a worker that crashes again and again is started once more
)
KILL_GRACE_S = 10.0  # seconds beyond `drainTimeout` until a worker that does not end is killed
EXIT_FAILURE = 1
LENGTH_BYTES = 4  # bytes of the length of what a worker is told
WORKER_COMMAND = (sys.executable, "-m", f"{__package__}.worker")


class WorkerSpec(NamedTuple):
    """What a worker is told. listening, admin: file descriptors; -1 for none. path: of the bus.
    orders: of operators. beside: as of `create_app`."""

    settings: Settings
    debug: AbstractSet[str]
    listening_fd: int
    admin_fd: int
    bus_path: Path
    blocklist: list[BlocklistEntry]
    co_hosted_app_factory: CoHostedAppFactory | None


def encode_message(message: Any) -> bytes:
    """As a worker reads it."""
    data = pickle.dumps(message)
    return len(data).to_bytes(LENGTH_BYTES) + data


def supervise(
    settings: Settings,
    debug: AbstractSet[str],
    load_settings: SettingsLoader | None = None,
    co_hosted_app_factory: CoHostedAppFactory | None = None,
) -> int:
    """Run `listen.workers` processes until SIGTERM or SIGINT. The exit status: 0 when all of
    them ended as they should.

    load: the configuration as it is by now, for SIGHUP.

    Raises GatewayError when the address cannot be bound.
    """
    listen = settings.listen
    sockets = bind_shared(listen.host, listen.port, listen.workers)
    refuse_exposed_sidecar(settings, sockets[0])
    admin = bind_admin_socket(settings)
    print(f"listening on {format_url(sockets[0], tls=listen.tls is not None)}", flush=True)
    print(
        f"{listen.workers} workers; each reads Kafka on its own, "
        f"so what clients follow is read up to {listen.workers} times",
        flush=True,
    )
    with private_folder() as folder:
        supervisor = Supervisor(
            settings, debug, sockets, folder / "bus", load_settings, admin, co_hosted_app_factory
        )
        return asyncio.run(supervisor.run())


@dataclass(slots=True)
class WorkerProcess:
    """listening: held for it, None while others are to take its clients."""

    number: int
    listening_socket: socket.socket | None
    process: Process | None = None
    crashes: int = 0
    was_killed: bool = False


class Supervisor:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        debug: AbstractSet[str],
        sockets: list[socket.socket],
        bus_path: Path,
        load_settings: SettingsLoader | None = None,
        admin_socket: socket.socket | None = None,
        co_hosted_app_factory: CoHostedAppFactory | None = None,
    ) -> None:
        self._settings = settings
        self._co_hosted_app_factory = co_hosted_app_factory
        self._admin_socket = admin_socket
        self._load_settings = load_settings
        self._debug = debug
        self._host, self._port = settings.listen.host, sockets[0].getsockname()[1]
        self._bus_path = bus_path
        self._workers = [WorkerProcess(n, each) for n, each in enumerate(sockets, 1)]
        self._relay = Relay(bus_path)
        self._get_blocklist = serve_blocklist(self._relay)
        self._has_served = False
        self._exit_status = 0
        self._stop_event = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_workers, number)
        if self._load_settings is not None:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, self._load_settings)
        self._relay.join_callbacks.append(self._on_joined)
        serve_limits(self._relay, self._settings.listen.limits)
        serve_key_locks(self._relay)
        self._relay.add_handler(reload_coordinator.BUS_TOPIC, self._handle_reload)
        await self._relay.start()
        keeping = [asyncio.create_task(self._run_worker(each)) for each in self._workers]
        try:
            await self._stop_event.wait()
            await asyncio.wait(keeping, timeout=self._settings.listen.drain_timeout + KILL_GRACE_S)
            self._kill_workers()
            await asyncio.gather(*keeping)
        finally:
            self._kill_workers()
            await self._relay.close()
        return self._exit_status

    def _on_joined(self, worker: int) -> None:
        self._has_served = True

    def _stop_workers(self, signum: int) -> None:
        """Nobody is taken on any more: a socket that only we still hold would take them. Told a
        second time, the workers hear that, too."""
        first = not self._stop_event.is_set()
        self._stop_event.set()
        if self._admin_socket is not None:
            self._admin_socket.close()
        for worker in self._workers:
            self._close_socket(worker)
            if worker.process is not None and worker.process.returncode is None:
                # SIGINT would be a traceback of one that is only starting
                worker.process.send_signal(signal.SIGTERM if first else signum)

    def _on_hangup(self, load_settings: SettingsLoader) -> None:
        """What cannot be is said once, and no worker hears of it."""
        with log_reload_errors():
            self._apply_settings(load_settings())

    def _handle_reload(self, worker: int, data: Any) -> list[str]:
        """By an operator: what is wrong with it."""
        try:
            if self._load_settings is None:
                return ["this gateway was not started from a file; start it with `gateway run`"]
            self._apply_settings(self._load_settings())
        except (GatewayError, OSError) as exc:
            return list_problems(exc)
        return []

    def _apply_settings(self, loaded: Settings) -> None:
        self._settings = apply_reload(self._settings, loaded).settings
        for worker in self._workers:
            process = worker.process
            if process is not None and process.returncode is None and process.stdin is not None:
                process.stdin.write(encode_message(loaded))

    def _kill_workers(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                log.error("worker %d does not end; killed", worker.number)
                worker.was_killed = True
                worker.process.kill()

    async def _run_worker(self, worker: WorkerProcess) -> None:
        """Have it running until the end."""
        loop = asyncio.get_running_loop()
        while not self._stop_event.is_set():
            began = loop.time()
            try:
                status = await self._run_process(worker)
            except (GatewayError, OSError) as exc:
                log.error("worker %d cannot be started: %s", worker.number, exc)
                status = EXIT_FAILURE
            if self._stop_event.is_set():
                self._record_exit(worker, status)
                return
            if not self._has_served:  # what ended this one would end them all
                self._exit_status = status if status > 0 else EXIT_FAILURE
                self._stop_workers(signal.SIGTERM)
                return
            await self._back_off(worker, status, loop.time() - began)

    async def _run_process(self, worker: WorkerProcess) -> int:
        """Start it, and wait for its end. Its exit status; the number of a signal is negative."""
        if worker.listening_socket is None:
            worker.listening_socket = bind_additional(self._host, self._port)
        admin = -1 if self._admin_socket is None else self._admin_socket.fileno()
        job = WorkerSpec(
            self._settings, self._debug, worker.listening_socket.fileno(), admin, self._bus_path,
            self._get_blocklist(), self._co_hosted_app_factory,
        )  # fmt: skip
        worker.process = await asyncio.create_subprocess_exec(
            *WORKER_COMMAND, str(worker.number),
            stdin=PIPE, pass_fds=[fd for fd in (job.listening_fd, job.admin_fd) if fd >= 0],
            process_group=0,  # or ^C would reach it from the terminal, too, and mean: at once
        )  # fmt: skip
        assert worker.process.stdin is not None
        worker.process.stdin.write(encode_message(job))
        if self._stop_event.is_set():  # while it was being started
            worker.process.terminate()
        return await worker.process.wait()

    async def _back_off(self, worker: WorkerProcess, status: int, uptime_s: float) -> None:
        worker.crashes = 1 if uptime_s > STEADY_AFTER_S else worker.crashes + 1
        most = 0.0 if worker.crashes == 1 else min(MAX_RESTART_DELAY_S, 0.1 * 2**worker.crashes)
        wait = random.uniform(most / 2, most)
        log.error(
            "worker %d ended with status %d after %.1f s; another starts in %.1f s",
            worker.number, status, uptime_s, wait,
        )  # fmt: skip
        if wait:
            self._close_socket(worker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._stop_event.wait()

    def _close_socket(self, worker: WorkerProcess) -> None:
        if worker.listening_socket is not None:
            worker.listening_socket.close()
            worker.listening_socket = None

    def _record_exit(self, worker: WorkerProcess, status: int) -> None:
        """0, or the SIGTERM that met it before it listened to signals."""
        if status not in (0, -signal.SIGTERM) or worker.was_killed:
            self._exit_status = self._exit_status or EXIT_FAILURE


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
