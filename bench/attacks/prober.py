"""Request /health/live at an interval until stdin ends: `prober.py PORT EVERY` (seconds).

It runs alone and without any library, so that nothing in its process delays it, and with priority
over other processes on its core if it may (SCHED_FIFO). Otherwise it would wait up to 8 ms for the
attacker there. It has one request in flight at a time, over one connection. Requests that were due
while it waited for a response count from when they were due: a gateway that does not respond for a
second has many late responses, not one.
It prints a line when it begins, and at the end a JSON list of [due, seconds], by the clock
`time.monotonic()`.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time

CONNECTION_TIMEOUT_S = 60.0  # s
PROBE_REQUEST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def main() -> None:
    """Probe until stdin ends."""
    port, every = int(sys.argv[1]), float(sys.argv[2])
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    found: list[tuple[float, float]] = []
    connection = _connect(port)
    print("probing", flush=True)
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic())
        if select.select([sys.stdin], [], [], wait)[0]:
            break
        try:
            connection.sendall(PROBE_REQUEST)
            _read_answer(connection)
        except OSError:
            connection.close()
            connection = _connect(port)
        answered = time.monotonic()
        while due <= answered:
            found.append((due, answered - due))
            due += every
    print(json.dumps(found))


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), CONNECTION_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read_answer(connection: socket.socket) -> None:
    data = b""
    while b"live" not in data:
        piece = connection.recv(4096)
        if not piece:
            raise ConnectionResetError("the gateway closed the connection")
        data += piece


if __name__ == "__main__":
    main()
