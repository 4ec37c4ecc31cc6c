"""Run several processes on one port, and restart those that crash.

The supervisor binds the port, starts the workers, forwards their messages (`relay`), counts
connections and locks keys for them (`http.shared_counts`), logs their outages of Kafka
(`outage_log`), keeps the operators' blocklist, and restarts workers that crashed. It serves no
clients. It also holds the listening sockets: clients that connect while their worker is being
restarted wait a moment and are served. If that takes longer because the worker crashed again, its
socket is closed, and they go to the other workers.

Workers are processes of their own, not forks: librdkafka's threads, an event loop and its signal
handlers would not survive a fork. Starting one takes about a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import random
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config import Settings
from gateway.config.sections.reload import apply_reload
from gateway.core.backoff import BackoffPolicy
from gateway.errors import GatewayError
from gateway.telemetry import catalog
from gateway.telemetry.logs import announce
from gateway.telemetry.samples import MetricSamples
from gateway.web.admin import configuration, metrics
from gateway.web.admin.blocklist import BlocklistEntry, serve_blocklist
from gateway.web.admin.metrics import CounterHistory
from gateway.web.admin.reload import ReloadCounts, SettingsLoader, log_reload_errors
from gateway.web.http.assets import CoHostedAppFactory
from gateway.web.http.edge import bind_admin_socket
from gateway.web.http.shared_counts import serve_counts
from gateway.web.workers.outage_log import serve_outages
from gateway.web.workers.relay import Relay
from gateway.web.workers.sockets import (
    NO_SOCKETS,
    InheritedSockets,
    bind_additional,
    bind_shared,
    copy_socket,
    format_url,
    refuse_exposed_sidecar,
)

log = logging.getLogger(__name__)

STEADY_AFTER_S = 30.0  # uptime in seconds after which earlier crashes no longer count
EXIT_FAILURE = 1
LENGTH_BYTES = 4  # bytes that hold the length of a message to a worker


class WorkerSpec(NamedTuple):
    """The arguments of a worker; an `admin_fd` of -1 stands for none.

    `reload_number` is that of the last `SettingsMessage` that was sent to other workers.
    """

    settings: Settings
    debug: AbstractSet[str]
    listening_fd: int
    admin_fd: int
    bus_path: Path
    blocklist: list[BlocklistEntry]
    reload_number: int
    co_hosted_app_factory: CoHostedAppFactory | None


class SettingsMessage(NamedTuple):
    """A changed configuration for a worker that runs, which a dry run only previews."""

    settings: Settings
    number: int
    is_dry_run: bool


def encode_message(message: Any) -> bytes:
    """Encode a message as `worker.read_message` reads it: its length and its pickle."""
    data = pickle.dumps(message)
    return len(data).to_bytes(LENGTH_BYTES) + data


def supervise(
    settings: Settings,
    debug: AbstractSet[str],
    load_settings: SettingsLoader | None = None,
    co_hosted_app_factory: CoHostedAppFactory | None = None,
    inherited: InheritedSockets = NO_SOCKETS,
) -> int:
    """Run `listen.workers` processes until SIGTERM or SIGINT; return the exit status."""
    listen = settings.listen
    if inherited.clients:
        shared = [copy_socket(inherited.clients, n + 1) for n in range(listen.workers)]
    else:
        shared = bind_shared(listen.host, listen.port, listen.workers)
    refuse_exposed_sidecar(settings, shared[0])
    admin = bind_admin_socket(settings, inherited.admin)
    sockets = ListeningSockets(shared, admin, inherited.clients)
    announce(inherited.describe(format_url(shared[0], tls=listen.tls is not None)))
    announce(
        f"{listen.workers} workers; each reads Kafka on its own, "
        f"so what clients follow is read up to {listen.workers} times"
    )
    with private_folder() as folder:
        supervisor = Supervisor(
            settings, debug, sockets, folder / "bus", load_settings, co_hosted_app_factory
        )
        return asyncio.run(supervisor.run())


@dataclass(frozen=True, slots=True)
class ListeningSockets:
    """The sockets of a host: one per worker, and one of operators that all share.

    Its `Supervisor` closes them when the workers are to end. `inherited` has the originals of
    `by_worker`, if another process bound the port.
    """

    by_worker: Sequence[socket.socket]
    admin: socket.socket | None = None
    inherited: Sequence[socket.socket] = ()

    def reopen(self, worker: int, host: str, port: int) -> socket.socket:
        """Return a new socket on the shared port for a worker whose own was closed."""
        if self.inherited:
            return copy_socket(self.inherited, worker)
        return bind_additional(host, port)


@dataclass(slots=True)
class WorkerProcess:
    """A worker and its process.

    `listening_socket` is None while the other workers take its clients.
    """

    number: int
    listening_socket: socket.socket | None
    process: Process | None = None
    crashes: int = 0
    restarts: int = 0
    was_killed: bool = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send_signal(self, signum: int) -> None:
        if self.process is not None and self.process.returncode is None:
            # `Process.send_signal` polls first. If the process has just ended, that takes its exit
            # status away from asyncio, which then reports 255 (gh-87744, in Python 3.11).
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signum)


class Supervisor:
    """Start workers, restart them when they crash, and end them.

    Created by `supervise`, one per host; it owns the relay and the listening sockets.
    """

    WORKER_COMMAND = (sys.executable, "-m", f"{__package__}.worker")
    # Seconds before a worker that crashed twice is restarted, and one that keeps crashing, at most.
    RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.4, 5.0
    KILL_GRACE_S = 10.0  # seconds beyond `drainTimeout` until a worker that does not end is killed

    def __init__(
        self,
        settings: Settings,
        debug: AbstractSet[str],
        sockets: ListeningSockets,
        bus_path: Path,
        load_settings: SettingsLoader | None = None,
        co_hosted_app_factory: CoHostedAppFactory | None = None,
    ) -> None:
        self._settings = settings
        self._co_hosted_app_factory = co_hosted_app_factory
        self._sockets = sockets
        self._load_settings = load_settings
        self._debug = debug
        self._host, self._port = settings.listen.host, sockets.by_worker[0].getsockname()[1]
        self._bus_path = bus_path
        self._workers = [WorkerProcess(n, sock) for n, sock in enumerate(sockets.by_worker, 1)]
        self._relay = Relay(bus_path)
        self._reload_counts = ReloadCounts()
        self._reload_number = 0  # of the last `SettingsMessage`
        self._counter_history = CounterHistory()
        self._get_blocklist = serve_blocklist(self._relay)
        self._has_served = False  # a worker has connected to the bus
        self._exit_status = 0
        self._stop_event = asyncio.Event()

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        return self._workers

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop_workers, signum)
        if self._load_settings is not None:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, self._load_settings)
        self._relay.join_callbacks.append(self._on_joined)
        serve_counts(self._relay, self._settings.listen.limits)
        serve_outages(self._relay)
        self._relay.add_handler(configuration.RELOAD_TOPIC, self._handle_reload)
        self._relay.add_handler(metrics.SUPERVISOR_TOPIC, self._handle_metrics_query)
        self._relay.add_handler(configuration.FILE_TOPIC, self._handle_file_settings)
        await self._relay.start()
        tasks = [asyncio.create_task(self._run_worker(worker)) for worker in self._workers]
        try:
            await self._stop_event.wait()
            await asyncio.wait(
                tasks, timeout=self._settings.listen.drain_timeout + self.KILL_GRACE_S
            )
            self._kill_workers()
            await asyncio.gather(*tasks)
        finally:
            self._kill_workers()
            await self._relay.close()
        return self._exit_status

    def _on_joined(self, worker: int) -> None:
        self._has_served = True

    def _stop_workers(self, signum: int) -> None:
        """End the workers, gracefully at first; a second signal is passed on to them."""
        is_first = not self._stop_event.is_set()
        self._stop_event.set()
        if self._sockets.admin is not None:
            self._sockets.admin.close()
        for worker in self._workers:
            # Clients would connect to a socket that only the supervisor still holds, and wait.
            self._close_socket(worker)
            # SIGINT would print a traceback in a worker that is still starting.
            worker.send_signal(signal.SIGTERM if is_first else signum)

    def _on_hangup(self, load_settings: SettingsLoader) -> None:
        """Reload at SIGHUP; a configuration that is refused is logged once, here."""
        with log_reload_errors(self._reload_counts):
            self._apply_settings(load_settings())

    def _handle_reload(self, worker: int, data: Any) -> list[str] | int:
        """Reload or preview for an operator; return the message's number, or the problems."""
        try:
            if self._load_settings is None:
                return ["this gateway was not started from a file; start it with `gateway run`"]
            loaded = self._load_settings()
            if data:
                apply_reload(self._settings, loaded)  # raises what a reload would
                self._send_to_workers(loaded, is_dry_run=True)
            else:
                self._apply_settings(loaded)
        except (GatewayError, OSError) as exc:
            if not data:
                self._reload_counts.count_refused()
            return configuration.list_problems(exc)
        return self._reload_number

    def _handle_metrics_query(self, worker: int, data: Any) -> Any:
        """Return the supervisor's own counters, and the totals that a worker's scrape lacks."""
        samples = MetricSamples()
        self._reload_counts.collect_metrics(samples)
        for each in self._workers:
            samples.add(catalog.WORKER_RESTARTS, each.restarts, each.number)
        return samples.to_json(), () if data is None else self._counter_history.update(data)

    def _handle_file_settings(self, worker: int, data: Any) -> configuration.FileSettings:
        return configuration.read_file_settings(self._load_settings, self._settings)

    def _apply_settings(self, loaded: Settings) -> None:
        """Send a configuration to all workers, and use it for those that start later."""
        self._settings = apply_reload(self._settings, loaded).settings
        self._send_to_workers(loaded, is_dry_run=False)
        self._reload_counts.count_applied()

    def _send_to_workers(self, loaded: Settings, *, is_dry_run: bool) -> None:
        self._reload_number += 1
        message = encode_message(SettingsMessage(loaded, self._reload_number, is_dry_run))
        for worker in self._workers:
            process = worker.process
            if process is not None and process.returncode is None and process.stdin is not None:
                process.stdin.write(message)

    def _kill_workers(self) -> None:
        for worker in self._workers:
            if worker.is_running:
                log.error("worker %d does not end; killed", worker.number)
                worker.was_killed = True
                worker.send_signal(signal.SIGKILL)

    async def _run_worker(self, worker: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop_event.is_set():
            started_at = loop.time()
            try:
                status = await self._run_process(worker)
            except (GatewayError, OSError) as exc:
                log.error("worker %d cannot be started: %s", worker.number, exc)
                status = EXIT_FAILURE
            if self._stop_event.is_set():
                self._record_exit(worker, status)
                return
            # If no worker ever started, the error would end every one of them: give up.
            if not self._has_served:
                self._exit_status = status if status > 0 else EXIT_FAILURE
                self._stop_workers(signal.SIGTERM)
                return
            await self._back_off(worker, status, loop.time() - started_at)

    async def _run_process(self, worker: WorkerProcess) -> int:
        """Start a worker's process, and return its exit status.

        If a signal ended it, that is the negative number of the signal.
        """
        if worker.listening_socket is None:
            worker.listening_socket = self._sockets.reopen(worker.number, self._host, self._port)
        # A stop signal closes the sockets here. The process keeps what it was started with.
        listening_fd = worker.listening_socket.fileno()
        admin_fd = -1 if self._sockets.admin is None else self._sockets.admin.fileno()
        worker.process = await asyncio.create_subprocess_exec(
            *self.WORKER_COMMAND, str(worker.number),
            stdin=PIPE, pass_fds=[fd for fd in (listening_fd, admin_fd) if fd >= 0],
            # In the terminal's process group, ^C would reach the worker, too. Together with the
            # supervisor's SIGTERM that would be two signals, and it would end without draining.
            process_group=0,
        )  # fmt: skip
        assert worker.process.stdin is not None
        # As of now: what was reloaded or blocked while the process was started was not sent to it.
        spec = WorkerSpec(
            self._settings, self._debug, listening_fd, admin_fd, self._bus_path,
            self._get_blocklist(), self._reload_number, self._co_hosted_app_factory,
        )  # fmt: skip
        worker.process.stdin.write(encode_message(spec))
        if self._stop_event.is_set():  # a signal came while the process was started
            worker.send_signal(signal.SIGTERM)
        return await worker.process.wait()

    async def _back_off(self, worker: WorkerProcess, status: int, uptime_s: float) -> None:
        """Wait before a worker that crashed is restarted: not at all after its first crash."""
        worker.crashes = 1 if uptime_s > STEADY_AFTER_S else worker.crashes + 1
        policy = BackoffPolicy(self.RESTART_DELAY_S, self.MAX_RESTART_DELAY_S)
        retries = worker.crashes - 1
        delay = policy.compute_delay(retries, random.random) if retries else 0.0
        log.error(
            "worker %d ended with status %d after %.1f s; another starts in %.1f s",
            worker.number, status, uptime_s, delay,
        )  # fmt: skip
        if delay:
            self._close_socket(worker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stop_event.wait()
                return
        worker.restarts += 1

    def _close_socket(self, worker: WorkerProcess) -> None:
        """Close the listening socket of a worker, so that other workers take its clients."""
        if worker.listening_socket is not None:
            worker.listening_socket.close()
            worker.listening_socket = None

    def _record_exit(self, worker: WorkerProcess, status: int) -> None:
        """Remember a failure; SIGTERM may reach a process before it handles signals."""
        if status not in (0, -signal.SIGTERM) or worker.was_killed:
            self._exit_status = self._exit_status or EXIT_FAILURE


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Create a folder for the bus that other users cannot enter, and remove it in the end."""
    # The path of a Unix socket has about 100 characters at most, and TMPDIR may be longer.
    for parent in (None, "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=parent))
        if len(str(folder)) < 90:
            break
        folder.rmdir()
    else:
        raise GatewayError("the path of the temporary folder is too long; set TMPDIR to another")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
