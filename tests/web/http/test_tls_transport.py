"""What waits for a TLS connection; that all of it comes is in test_outlet.py."""

from __future__ import annotations

import asyncio
from typing import Any

from support.waiting import wait_until

from gateway.web.http.tls_transport import MAX_COPIED_BYTES, SLICE_BYTES, TlsTransport


class LoopTransport(asyncio.Transport):
    """Takes so many bytes, and pauses its protocol with the next."""

    def __init__(self, protocol: TlsTransport, capacity: int) -> None:
        super().__init__()
        self.protocol = protocol
        self.capacity = capacity
        self.written = b""
        self.sizes: list[int] = []
        self.is_paused = self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written += bytes(data)
        self.sizes.append(len(data))
        if len(self.written) > self.capacity and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def drain(self, capacity: int) -> None:
        self.capacity += capacity
        self.is_paused = False
        self.protocol.resume_writing()

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        raise AssertionError("asyncio's TLS notices no EOF then")

    def get_write_buffer_size(self) -> int:
        return 1 if self.is_paused else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Owner(asyncio.Protocol):
    full = False

    def pause_writing(self) -> None:
        assert not self.full
        self.full = True

    def resume_writing(self) -> None:
        assert self.full
        self.full = False


def connect(capacity: int) -> tuple[Owner, TlsTransport, LoopTransport]:
    owner = Owner()
    transport = TlsTransport(owner)
    below = LoopTransport(transport, capacity)
    transport.connection_made(below)
    transport.set_write_buffer_limits(high=0)
    return owner, transport, below


async def test_what_a_client_does_not_read_is_not_encrypted():
    """All was encrypted as it was written, and waited in a buffer that nobody counted: 3 MiB for
    each of 150 clients, of a record that they shared."""
    owner, transport, below = connect(64 * 1024)
    data = bytes(range(256)) * 4096
    transport.write(data)
    assert owner.full and max(below.sizes) <= SLICE_BYTES
    assert len(below.written) <= MAX_COPIED_BYTES == transport.copied_bytes
    waiting = transport.get_write_buffer_size() - transport.copied_bytes
    assert waiting == len(data) - len(below.written)
    transport.write(b"behind it")
    below.drain(100_000)
    await wait_until(lambda: below.is_paused)
    assert owner.full
    below.drain(len(data))
    await wait_until(lambda: not owner.full)
    assert below.written == data + b"behind it"
    assert transport.get_write_buffer_size() == 0


async def test_what_waits_is_sent_before_the_connection_is_closed():
    _, transport, below = connect(10)
    data = b"x" * 100_000
    transport.write(data)
    transport.close()
    transport.write(b"too late")
    assert transport.is_closing() and not below.is_closed
    transport.data_received(b"which nobody waits for")
    below.drain(len(data))
    await wait_until(lambda: below.is_closed)
    assert below.written == data


async def test_nothing_waits_for_a_lost_connection():
    _, transport, below = connect(10)
    transport.write(b"x" * 100_000)
    below.is_closed = True
    transport.connection_lost(None)
    below.is_paused = False
    transport.resume_writing()
    assert transport.get_write_buffer_size() == 0
