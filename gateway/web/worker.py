"""One of several processes of a gateway: `python -m gateway.web.worker NUMBER`.

Its supervisor (`workers`) hands it a listening socket, and its job over the standard input, which
stays open: its end says that the supervisor is gone, and with it whoever could end this one.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from functools import partial
from typing import IO

from ..errors import GatewayError
from .app import create_app
from .bus import Bus
from .server import configure_logging, run
from .workers import Job


def main(number: int, job: Job) -> None:
    """Serve until told to end. Raises GatewayError as `create_app`."""
    configure_logging(job.settings.telemetry.logs, job.debug, number)
    listening = socket.socket(fileno=job.listening)
    bus = Bus(job.path, number, job.settings.listen.workers)
    startup = [partial(end_with_supervisor, sys.stdin)]
    run(create_app(job.settings, startup=startup, bus=bus), job.settings, listening)


async def end_with_supervisor(pipe: IO[str]) -> None:
    """Drain when the other end of a pipe is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    await reader.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), pickle.load(sys.stdin.buffer))
    except GatewayError as exc:
        sys.exit(f"gateway: {exc}")
