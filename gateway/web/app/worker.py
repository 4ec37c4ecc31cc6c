"""Run one of several processes of a gateway: `python -m gateway.web.app.worker NUMBER`.

Its supervisor (`supervisor`) passes it a listening socket, and its `WorkerSpec` over the standard
input. The pipe stays open: new settings come through it, and its end means that the supervisor is
gone and that nobody else could end this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from functools import partial
from typing import IO, Any

from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.telemetry.logs import format_output
from gateway.web.workers.bus import Bus

from .app import Application, create_app
from .server import configure_logging, run_server
from .supervisor import LENGTH_BYTES, SettingsMessage, WorkerSpec


def main(number: int, spec: WorkerSpec) -> None:
    """Serve until the process gets a signal, or its supervisor ends."""
    configure_logging(spec.settings.telemetry.logs, spec.debug, number)
    listening = socket.socket(fileno=spec.listening_fd)
    admin = socket.socket(fileno=spec.admin_fd) if spec.admin_fd >= 0 else None
    bus = Bus(spec.bus_path, number, spec.settings.listen.workers)
    app = create_app(spec.settings, bus=bus, co_hosted_app_factory=spec.co_hosted_app_factory)
    app.admin.blocklist.replace_entries(spec.blocklist)
    app.reload.applied_number = spec.reload_number
    app.add_startup(partial(follow_supervisor, app, sys.stdin))
    run_server(app, spec.settings, listening, admin)


async def follow_supervisor(app: Application, pipe: IO[str]) -> None:
    """Apply the settings that come through a pipe, and drain when its other end is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
            message: SettingsMessage = pickle.loads(await reader.readexactly(size))
            if message.is_dry_run:
                outcome = await app.reload.try_preview(message.settings)
            else:
                outcome = await app.reload.try_reload(partial(_get_settings, message))
            if outcome is not None:
                app.reload.applied_number = message.number
    except asyncio.IncompleteReadError:
        # As if the supervisor had ended this process: the server drains.
        os.kill(os.getpid(), signal.SIGTERM)


def _get_settings(message: SettingsMessage) -> Settings:
    return message.settings


def read_message(pipe: int) -> Any:
    """Read the first message of a pipe, and not a byte of the next one.

    The descriptor is read without a buffer, because `follow_supervisor` reads the following
    messages.
    """
    size = int.from_bytes(_read_exactly(pipe, LENGTH_BYTES))
    return pickle.loads(_read_exactly(pipe, size))


def _read_exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(pipe, size - len(data))
        if not chunk:
            raise EOFError("the supervisor is gone")
        data += chunk
    return data


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), read_message(sys.stdin.fileno()))
    except GatewayError as exc:
        sys.exit(format_output(f"gateway: {exc}", logging.ERROR))
