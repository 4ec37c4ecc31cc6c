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
from gateway.web.app.server import configure_logging, run_server

from .bus import Bus
from .supervisor import LENGTH_BYTES, WorkerSpec


def main(number: int, spec: WorkerSpec) -> None:
    """Serve until told to end. Raises GatewayError as `create_app`."""
    configure_logging(spec.settings.telemetry.logs, spec.debug, number)
    listening = socket.socket(fileno=spec.listening_fd)
    admin = socket.socket(fileno=spec.admin_fd) if spec.admin_fd >= 0 else None
    bus = Bus(spec.bus_path, number, spec.settings.listen.workers)
    app = create_app(spec.settings, bus=bus, beside=spec.co_hosted_app_factory)
    app.admin.blocklist.replace_entries(spec.blocklist)
    app.add_startup(partial(follow_supervisor, app, sys.stdin))
    run_server(app, spec.settings, listening, admin)


async def follow_supervisor(app: Application, pipe: IO[str]) -> None:
    """Take over the settings that come through a pipe, and drain when its other end is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
            settings = pickle.loads(await reader.readexactly(size))
            await app.reload.try_reload(lambda settings=settings: settings)  # type: ignore[misc]
    except asyncio.IncompleteReadError:
        os.kill(os.getpid(), signal.SIGTERM)


def read_message(pipe: int) -> Any:
    """What is said first through a pipe, and not a byte of what is said next."""
    size = int.from_bytes(_read_exactly(pipe, LENGTH_BYTES))
    return pickle.loads(_read_exactly(pipe, size))


def _read_exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(pipe, size - len(data))
        if not piece:
            raise EOFError("the supervisor is gone")
        data += piece
    return data


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), read_message(sys.stdin.fileno()))
    except GatewayError as exc:
        sys.exit(f"gateway: {exc}")
