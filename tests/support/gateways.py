"""The real gateway, in a thread of the test's process or as a process of its own.

config = build_config(kafka.bootstrap, ["orders"])
async with running_gateway(config) as gateway:
    async with RawClient(f"{gateway.base_url}/records/orders") as client:
        ...

The thread has all that clients see, from the socket on. `running_gateway_process` starts what an
operator starts, to be watched, signalled, killed and started again on its port: such a test is
marked `needs("process")`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from ruamel.yaml import YAML
from support.fork_server import ForkedCommand
from support.waiting import wait_until

from gateway.cli.sidecar import create_sidecar
from gateway.config import Settings, loads
from gateway.web.app.app import Application, create_app
from gateway.web.app.server import Server, create_server
from gateway.web.http.edge import bind_admin_socket
from gateway.web.workers.sockets import bind, format_url

GATEWAY = (sys.executable, "-m", "gateway")
RUN_COMMAND = (*GATEWAY, "run", "-c")
START_TIMEOUT_S = 120.0  # s; on a busy machine it took more than 30
STOP_TIMEOUT_S = 120.0  # s; longer than any drain a test configures

_LISTENING_PATTERN = re.compile(r"listening on (https?://\S+?):(\d+)")
_ADMIN_PATTERN = re.compile(r"admin on (https?://\S+)")

Config = Mapping[str, Any]
Result = TypeVar("Result")


def build_config(
    bootstrap: str | Iterable[str],
    topics: Iterable[str | Mapping[str, Any]] = (),
    routes: Iterable[Mapping[str, Any]] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """A configuration on a port of the OS.

    topics:   names, or settings of kafka.topics with a name.
    routes:   as in the file; by default /events/TOPIC (format value) and /records/TOPIC
              (envelope) for each topic.
    sections: further sections of the file (guards, catalogs, ...), merged into those made here:
              kafka={"bootstrap": ["orders"]}.
    """
    servers = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    settings = [{"name": each} if isinstance(each, str) else dict(each) for each in topics]
    kafka: dict[str, Any] = {"servers": servers, "topics": settings}
    if routes is None:
        names = [each["name"] for each in settings]
        routes = [build_route(name, form) for name in names for form in ("value", "envelope")]
    made: dict[str, Any] = {
        "name": "test",
        "listen": {"host": "127.0.0.1", "port": 0},
        "kafka": kafka,
        "routes": [dict(each) for each in routes],
    }
    for name, section in sections.items():
        old = made.get(name)
        made[name] = {**old, **section} if isinstance(old, dict) else section
    return made


def build_route(topic: str, format: str, **options: Any) -> dict[str, Any]:
    """The route /events/TOPIC (value), /records/TOPIC (envelope); options: of its `with`."""
    prefix = "records" if format == "envelope" else "events"
    target = {"topic": topic, "format": format, **options}
    return {"when": [{"path": f"/{prefix}/{topic}"}], "with": target}


@asynccontextmanager
async def running_gateway(config: Config | str, **options: Any) -> AsyncIterator[GatewayThread]:
    """A gateway with this configuration (a mapping, or YAML) in a thread, ended with the block.

    options: of `GatewayThread`.
    """
    gateway = GatewayThread(_parse_config(config), **options)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()


def _parse_config(config: Config | str) -> Config:
    return YAML(typ="safe").load(config) if isinstance(config, str) else config


@asynccontextmanager
async def running_gateway_process(
    config: Config | str,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = RUN_COMMAND,
    ready: bool = True,
    is_forked: bool = True,
    pass_fds: Sequence[int] = (),
) -> AsyncIterator[GatewayProcess]:
    """A gateway with this configuration (a mapping, or YAML), ended with the block.

    ready: wait for /health/ready; else only until it listens.
    arguments: after `run -c FILE`. environment: over the test's own.
    command: before the file. A command of `gateway` is a fork of a process that has it imported,
             unless is_forked is false or Python has environment variables of its own.
    pass_fds: file descriptors that a command of its own inherits.
    """
    parsed = _parse_config(config)
    with tempfile.TemporaryDirectory(prefix="gateway-") as directory:
        gateway = GatewayProcess(
            parsed,
            Path(directory),
            command,
            arguments,
            environment or {},
            is_forked=is_forked,
            pass_fds=pass_fds,
        )
        try:
            await gateway.start(ready=ready)
            try:
                yield gateway
            except Exception as error:
                error.add_note(f"{gateway.base_url} said at last:\n{gateway.read_log_tail()}")
                raise
        finally:
            await gateway.kill()


def create_http_client(
    gateway: GatewayThread | GatewayProcess, **options: Any
) -> httpx.AsyncClient:
    """An HTTP client of it, to be entered. options: further ones of httpx's."""
    return httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60.0, **options)


async def wait_until_ready(
    base_url: str, timeout_s: float = START_TIMEOUT_S, check: Callable[[], None] = lambda: None
) -> None:
    """Until /health/ready says 200; TimeoutError with its reason. check: called before each try."""
    deadline = time.monotonic() + timeout_s
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, verify=False) as http:
        while True:
            check()
            try:
                answer = await http.get("/health/ready", timeout=5)
                if answer.status_code == 200:
                    return
                last = f"{answer.status_code} {answer.text}"
            except httpx.HTTPError as error:
                last = repr(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready: /health/ready says {last}")
            await asyncio.sleep(0.02)


def find_failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Errors that a gateway in a thread, its server or its event loop logged in this test."""
    return [
        caplog.handler.format(record)
        for record in caplog.records
        if record.name.partition(".")[0] in ("gateway", "uvicorn", "asyncio")
        and (record.exc_info or record.levelno >= logging.ERROR)
        and "timeout graceful shutdown exceeded" not in record.message  # `GatewayThread.stop`
    ]


class GatewayThread:
    """The gateway with an event loop of its own, in a thread of this process.

    ready: wait for /health/ready; else only until it listens.
    environment: over the test's own.
    """

    def __init__(
        self, config: Config, *, ready: bool = True, environment: Mapping[str, str] | None = None
    ) -> None:
        self.config = config
        self.base_url = ""
        self.admin_url = ""
        self.app: Application
        self._ready = ready
        self._environment = {**os.environ, **(environment or {})}
        self._server: Server | None = None

    @property
    def port(self) -> int:
        return urlsplit(self.base_url).port or 0

    @property
    def connection_count(self) -> int:
        """Connections that came in and are open."""
        assert self._server is not None
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """ConfigError or GatewayError if it cannot be started, AssertionError if it ends."""
        settings = self._load_settings()
        assert settings.listen.workers == 1, "workers are processes"
        self.app = app = create_app(settings, co_hosted_app_factory=create_sidecar)
        app.admin.reload_coordinator.load = self._load_settings
        listening = bind(settings.listen.host, settings.listen.port)
        admin = bind_admin_socket(settings, None)
        self._server = server = create_server(app, settings, listening, admin)
        self._thread = threading.Thread(
            target=self._serve, args=(server, listening), name="gateway", daemon=True
        )
        self._thread.start()
        has_tls = settings.listen.tls is not None
        self.base_url = format_url(listening, tls=has_tls)
        self.admin_url = "" if admin is None else format_url(admin, tls=has_tls)
        await wait_until(
            lambda: server.started or not self._thread.is_alive(), "listening", START_TIMEOUT_S
        )
        if not server.started:
            await self.stop()
            raise AssertionError("the gateway ended at its start")
        if self._ready:
            await wait_until_ready(self.base_url)

    def _serve(self, server: Server, listening: socket.socket) -> None:
        self._failure: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                self._loop = runner.get_loop()
                runner.run(server.serve([listening]))
        except BaseException as failure:
            self._failure = failure

    def write_config(self, config: Config) -> None:
        """The configuration of the next start or reload; the port stays."""
        self.config = config

    async def reload(self, config: Config) -> dict[str, Any]:
        """Apply another configuration, and return what became of routes and streams.

        ReloadRefused if it cannot be served: nothing has changed, not even `config`.
        """
        before = self.config
        self.write_config(config)
        try:
            return await self.run(self.app.admin.reload_coordinator())
        except BaseException:
            self.config = before
            raise

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the event loop of the gateway, where its objects may be used."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def drain(self) -> None:
        """End as after SIGTERM: streams have the drain timeout to come to their end."""
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.handle_exit, signal.SIGTERM, None)
        await self._wait_until_ended()

    async def stop(self) -> None:
        """Cut what is left of the streams. `start` begins anew, on the same port."""
        if self._server is None:
            return
        self._server.config.timeout_graceful_shutdown = 0
        self._server.should_exit = True
        await self._wait_until_ended()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _wait_until_ended(self) -> None:
        await wait_until(lambda: not self._thread.is_alive(), "the end", STOP_TIMEOUT_S)
        if self._failure is not None:
            raise self._failure

    def _load_settings(self) -> Settings:
        listen = {"host": "127.0.0.1", **self.config.get("listen", {})}
        if self.port:
            listen["port"] = self.port
        text = json.dumps({**self.config, "listen": listen})
        return loads(text, name="test", environ=self._environment)


class GatewayProcess:
    """One process at a time, always on the port that the first one got."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        command: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        is_forked: bool,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.host = ""
        self.port = 0
        self.config_path = directory / "gateway.yaml"
        self.log_path = directory / "gateway.log"
        self._command = [*command, str(self.config_path), *arguments]
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        is_gateway = tuple(command[: len(GATEWAY)]) == GATEWAY
        has_python_variables = any(name.startswith("PYTHON") for name in environment)
        self._pass_fds = pass_fds
        self._is_forked = is_forked and is_gateway and not has_python_variables
        self._process: subprocess.Popen[bytes] | ForkedCommand | None = None
        self.write_config(config)

    @property
    def base_url(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def admin_url(self) -> str:
        said = _ADMIN_PATTERN.findall(self.log)
        return said[-1] if said else ""

    @property
    def config(self) -> Config:
        """The configuration that was written last, without the port."""
        return self._config

    @property
    def pid(self) -> int:
        return self._get_process().pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def memory_bytes(self) -> int:
        """Resident set size, in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def cpu_seconds(self) -> float:
        """User and system time used so far by this process."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def open_file_count(self) -> int:
        """File descriptors, sockets included."""
        return int(psutil.Process(self.pid).num_fds())

    @property
    def connection_count(self) -> int:
        """Connections that came in and are open."""
        port = urlsplit(self.base_url).port
        open_ones = psutil.Process(self.pid).net_connections("tcp")
        return sum(
            each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED for each in open_ones
        )

    @property
    def log(self) -> str:
        """All that it wrote, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def read_log_tail(self, line_count: int = 40) -> str:
        return "\n".join(self.log.splitlines()[-line_count:])

    def write_config(self, config: Config) -> None:
        """The configuration of the next start or reload; the port stays."""
        listen = {"host": "127.0.0.1", **config.get("listen", {})}
        if self.port:
            listen["port"] = self.port
        # JSON is YAML, and 20 times as quickly written.
        self.config_path.write_text(json.dumps({**config, "listen": listen}, indent=1))
        self._config = config

    async def start(self, *, ready: bool = True) -> None:
        """AssertionError with the end of the log if it ends or is too late."""
        assert not self.is_alive, "this gateway is running already"
        sys.audit("gateway.tests.process")
        before = len(self.log)
        with self.log_path.open("ab") as log:
            self._process = self._spawn(log)
        await self._wait_until(lambda: _LISTENING_PATTERN.search(self.log, before), "listening")
        said = _LISTENING_PATTERN.search(self.log, before)
        assert said is not None
        self.host, self.port = said[1], int(said[2])
        self.write_config(self._config)
        if ready:
            await self.wait_until_ready()

    async def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until /health/ready says 200; its reason stands in the error if it does not."""
        try:
            await wait_until_ready(self.base_url, timeout_s, self._require_alive)
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.read_log_tail()}") from None

    async def kill(self) -> None:
        """SIGKILL, as the kernel does to one out of memory."""
        await self._terminate(signal.SIGKILL)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM: drains. Its exit status; killed and an AssertionError if it takes longer."""
        return await self._terminate(signal.SIGTERM, timeout_s)

    async def restart(self, *, ready: bool = True) -> None:
        """Start again on the same port; killed first if it still runs."""
        await self.kill()
        await self.start(ready=ready)

    def send_signal(self, signal_number: int) -> None:
        """SIGHUP to reload, SIGSTOP and SIGCONT to freeze."""
        self._get_process().send_signal(signal_number)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedCommand:
        if self._is_forked:
            arguments = self._command[len(GATEWAY) :]
            return ForkedCommand(arguments, self._environment, self.log_path)
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            pass_fds=self._pass_fds,
        )

    async def _terminate(self, signal_number: int, timeout_s: float = STOP_TIMEOUT_S) -> int:
        if self._process is None:
            return 0
        process = self._process
        if self.is_alive:
            process.send_signal(signal_number)
        try:
            await wait_until(
                lambda: process.poll() is not None, f"the end of {process.pid}", timeout_s
            )
        except TimeoutError as late:
            process.kill()
            process.wait()
            raise AssertionError(f"{late}\n{self.read_log_tail()}") from None
        assert process.returncode is not None
        return process.returncode

    async def _wait_until(self, condition: Any, description: str) -> None:
        def is_met() -> object:
            found = condition()
            if not found:
                self._require_alive()
            return found

        try:
            await wait_until(is_met, description, START_TIMEOUT_S)
        except TimeoutError as late:
            raise AssertionError(f"the gateway: {late}\n{self.read_log_tail()}") from None

    def _require_alive(self) -> None:
        if not self.is_alive:
            status = self._process and self._process.returncode
            raise AssertionError(f"the gateway ended with status {status}:\n{self.read_log_tail()}")

    def _get_process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None and self.is_alive, (
            f"no gateway runs:\n{self.read_log_tail()}"
        )
        return self._process
