"""One of several processes of a gateway: `python -m gateway.web.workers.worker NUMBER`.

Its supervisor (`supervisor`) hands it a listening socket, and its job over the standard input,
which stays open: its end says that the supervisor is gone, and with it whoever could end this one.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from functools import partial
from typing import IO, Any

from gateway.errors import GatewayError
from gateway.web.app.app import Application, create_app
from gateway.web.app.server import configure_logging, run

from .bus import Bus
from .supervisor import SIZE, Job


def main(number: int, job: Job) -> None:
    """Serve until told to end. Raises GatewayError as `create_app`."""
    configure_logging(job.settings.telemetry.logs, job.debug, number)
    listening = socket.socket(fileno=job.listening)
    admin = socket.socket(fileno=job.admin) if job.admin >= 0 else None
    bus = Bus(job.path, number, job.settings.listen.workers)
    app = create_app(job.settings, bus=bus, beside=job.beside)
    app.admin.orders.adopt(job.orders)
    app.beside(partial(follow_supervisor, app, sys.stdin))
    run(app, job.settings, listening, admin)


async def follow_supervisor(app: Application, pipe: IO[str]) -> None:
    """Take over the settings that come through a pipe, and drain when its other end is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(SIZE))
            settings = pickle.loads(await reader.readexactly(size))
            await app.reload.attempt(lambda settings=settings: settings)  # type: ignore[misc]
    except asyncio.IncompleteReadError:
        os.kill(os.getpid(), signal.SIGTERM)


def first(pipe: int) -> Any:
    """What is said first through a pipe, and not a byte of what is said next."""
    size = int.from_bytes(_exactly(pipe, SIZE))
    return pickle.loads(_exactly(pipe, size))


def _exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(pipe, size - len(data))
        if not piece:
            raise EOFError("the supervisor is gone")
        data += piece
    return data


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), first(sys.stdin.fileno()))
    except GatewayError as exc:
        sys.exit(f"gateway: {exc}")
