"""Compare ways to write one buffer to many sockets.

    python -m bench.writes

It tells what a compiled accelerator could save at most: a loop over `send()` in C, called with the
interpreter's lock released, beside `transport.write` of uvloop, as the gateway writes, and
`os.write`. Rounds go back to back, and with a rest between them, after which caches are cold. The
clients read between the rounds, outside what is measured. MSG_ZEROCOPY is left out: by the kernel's
documentation it pays from about 10 KB on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from .figure import median

SEND_TO_ALL_SOURCE = """
#include <sys/socket.h>
int send_to_all(const int *fds, int count, const char *data, long size) {
    for (int i = 0; i < count; i++)
        if (send(fds[i], data, size, MSG_DONTWAIT | MSG_NOSIGNAL) != size) return i;
    return count;
}
"""


@dataclass(frozen=True)
class Size:
    """chunk_bytes: of one write. rests_s: seconds between two rounds."""

    clients: int = 200
    chunk_bytes: int = 290
    rounds: int = 300
    rests_s: Sequence[float] = (0.0, 0.01)


@dataclass(frozen=True)
class WriteCost:
    """What one write takes of the CPU, in microseconds."""

    way: str
    rest_s: float
    cpu_us: float


async def measure(size: Size = Size()) -> list[WriteCost]:
    """Measure each way at each rest; rounds of all ways take turns, so that noise is shared."""
    with ExitStack() as stack:
        senders, receivers = stack.enter_context(_connected_sockets(size.clients))
        data, fds = b"x" * size.chunk_bytes, [each.fileno() for each in senders]
        loop = asyncio.get_running_loop()
        transports = [
            (await loop.create_connection(asyncio.Protocol, sock=each))[0] for each in senders
        ]
        stack.callback(lambda: [each.abort() for each in transports])
        ways: dict[str, Callable[[], None]] = {
            "transport.write of uvloop": lambda: [each.write(data) for each in transports] and None,
            "os.write": lambda: [os.write(fd, data) for fd in fds] and None,
        }
        if shutil.which("cc"):
            ways["send() in a loop in C"] = _compile_loop(stack, fds, data)
        costs = list[WriteCost]()
        for rest_s in size.rests_s:
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(size.rounds):
                for way, write in ways.items():
                    await asyncio.sleep(rest_s)
                    began = time.thread_time_ns()
                    write()
                    taken[way].append((time.thread_time_ns() - began) / 1000 / size.clients)
                    for receiver in receivers:
                        assert len(receiver.recv(size.chunk_bytes + 1)) == size.chunk_bytes
            costs += [WriteCost(way, rest_s, median(each)) for way, each in taken.items()]
        return costs


@contextmanager
def _connected_sockets(count: int) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """Give the two ends of so many TCP connections."""
    senders, receivers = list[socket.socket](), list[socket.socket]()
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
        for _ in range(count):
            receivers.append(
                stack.enter_context(socket.create_connection(server.getsockname(), timeout=10))
            )
            sender, _ = server.accept()
            senders.append(stack.enter_context(sender))
            sender.setblocking(False)
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield senders, receivers


def _compile_loop(stack: ExitStack, fds: Sequence[int], data: bytes) -> Callable[[], None]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    source, library = folder / "send.c", folder / "send.so"
    source.write_text(SEND_TO_ALL_SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    send_to_all = ctypes.CDLL(str(library)).send_to_all
    array = (ctypes.c_int * len(fds))(*fds)

    def write() -> None:
        assert send_to_all(array, len(fds), data, ctypes.c_long(len(data))) == len(fds)

    return write


def main() -> None:
    costs = uvloop.run(measure())
    print("way                        rest between rounds  CPU of a write")
    for cost in costs:
        print(f"{cost.way:26} {1000 * cost.rest_s:16.0f} ms {cost.cpu_us:12.2f} us")


if __name__ == "__main__":
    main()
