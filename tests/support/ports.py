"""Ports for servers that cannot take one from the system."""

from __future__ import annotations

import random
import socket

# Below the ports that systems give to whoever asks for any: one that was found there could be
# given to another test, or to a connection, before the server has it.
FIRST_PORT, LAST_PORT = 10_000, 32_000


def find_free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    while True:
        port = random.randint(FIRST_PORT, LAST_PORT)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
