"""What TLS holds for a connection, and what its client gets before the connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from support.certificates import CertificateAuthority
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.web.http.tls import READ_BYTES, RECORD_BYTES, SLICE_BYTES, TlsTransport


class TcpTransport(asyncio.Transport):
    """Takes so many bytes, and pauses its protocol with the next."""

    def __init__(self, protocol: TlsTransport) -> None:
        super().__init__()
        self.protocol = protocol
        self.capacity = 1 << 30
        self.written = bytearray()
        self.is_paused = self.is_closed = self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data
        if len(self.written) > self.capacity and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def drain(self, capacity: int) -> None:
        self.capacity += capacity
        self.is_paused = False
        self.protocol.resume_writing()

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return max(0, len(self.written) - self.capacity)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Owner(asyncio.Protocol):
    full = False
    eof_count = lost_count = 0

    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.eof_count += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_count += 1

    def pause_writing(self) -> None:
        assert not self.full
        self.full = True

    def resume_writing(self) -> None:
        assert self.full
        self.full = False


class KeyUpdates:
    """Requests of a client for new keys (RFC 8446 4.6.3), which Python's ssl cannot send."""

    def __init__(self, key_log: Path) -> None:
        lines = (line.split() for line in key_log.read_text().splitlines())
        (secret,) = (line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
        self._secret = bytes.fromhex(secret)
        self._hash = hashes.SHA384() if len(self._secret) == 48 else hashes.SHA256()

    def _expand(self, label: bytes, size: int) -> bytes:
        info = size.to_bytes(2, "big") + bytes([len(label) + 6]) + b"tls13 " + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)

    def encrypt_next(self) -> bytes:
        """Return the next request, with `update_requested`; it has the first number of its key."""
        key, nonce = self._expand(b"key", 32), self._expand(b"iv", 12)
        self._secret = self._expand(b"traffic upd", len(self._secret))
        message = b"\x18\0\0\1\1\x16"
        header = b"\x17\3\3" + (len(message) + 16).to_bytes(2, "big")
        return header + AESGCM(key).encrypt(nonce, message, header)


class Connection:
    """Both ends of a connection whose handshake is complete."""

    def __init__(self, tmp_path: Path) -> None:
        authority = CertificateAuthority(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue_certificate("server"))
        self.memory, self.owner = ClientMemory(), Owner()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.transport = TlsTransport(self.owner, context, self.buffer, self.memory)
        self.tcp = TcpTransport(self.transport)
        self.transport.connection_made(self.tcp)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.key_log = tmp_path / "keys"
        client_context = authority.create_client_context()
        client_context.keylog_filename = str(self.key_log)
        self.client = client_context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost"
        )
        self._taken = 0
        while True:
            try:
                self.client.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.deliver(self._outgoing.read())
                self._take()
        self.deliver(self._outgoing.read())
        self._take()

    def deliver(self, data: bytes) -> None:
        """Let the server receive bytes of TCP."""
        for start in range(0, len(data), READ_BYTES):
            piece = data[start : start + READ_BYTES]
            buffer: Any = self.transport.get_buffer(-1)
            buffer[: len(piece)] = piece
            self.transport.buffer_updated(len(piece))

    def encrypt(self, data: bytes) -> bytes:
        self.client.write(data)
        return self._outgoing.read()

    def _take(self) -> None:
        self._incoming.write(bytes(self.tcp.written[self._taken :]))
        self._taken = len(self.tcp.written)

    @property
    def sent_bytes(self) -> int:
        return len(self.tcp.written) - self._taken

    def read(self) -> tuple[bytes, bool]:
        """Return all that was sent, and whether TLS says that it is all."""
        self._take()
        data = b""
        while True:
            try:
                piece = self.client.read(1 << 20)
            except ssl.SSLWantReadError:
                return data, False
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                return data, True
            data += piece

    def end(self) -> bytes:
        """Return what a client sends that closes its side."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.unwrap()
        return self._outgoing.read()


@pytest.fixture
async def connection(tmp_path: Path) -> Connection:
    return Connection(tmp_path)


async def test_what_a_client_does_not_read_is_not_encrypted(connection: Connection):
    """All was encrypted as it was written, and waited in a buffer that nobody counted: 3 MiB for
    each of 150 clients, of a record that they shared."""
    transport, tcp, owner = connection.transport, connection.tcp, connection.owner
    tcp.capacity = len(tcp.written) + 64 * 1024
    data = bytes(range(256)) * 4096
    transport.write(data)
    assert owner.full and connection.sent_bytes < 64 * 1024 + 2 * SLICE_BYTES
    assert 0 < transport.copied_bytes < 2 * SLICE_BYTES
    waiting = transport.get_write_buffer_size() - transport.copied_bytes
    assert waiting > len(data) - connection.sent_bytes
    transport.write(b"behind it")
    tcp.drain(100_000)
    await wait_until(lambda: tcp.is_paused)
    assert owner.full
    tcp.drain(2 * len(data))
    await wait_until(lambda: not owner.full)
    assert connection.read() == (data + b"behind it", False)
    assert transport.get_write_buffer_size() == 0


async def test_a_client_that_reads_no_answer_of_tls_is_disconnected(connection: Connection):
    """Answers to requests for new keys waited without bound, as many bytes as the requests had."""
    requests, tcp = KeyUpdates(connection.key_log), connection.tcp
    for _ in range(2):  # OpenSSL answers a request when it reads on
        connection.deliver(requests.encrypt_next())
    assert connection.sent_bytes > 0 and not tcp.is_aborted
    tcp.capacity = len(tcp.written)
    for _ in range(10_000):
        if tcp.is_aborted:
            break
        connection.deliver(requests.encrypt_next())
    assert tcp.is_aborted
    assert SLICE_BYTES < connection.sent_bytes < 8 * SLICE_BYTES


async def test_part_of_a_record_counts_until_it_is_complete(connection: Connection):
    """OpenSSL keeps a buffer for it, which was in no account, as was all that TLS had received."""
    record = connection.encrypt(b"x" * RECORD_BYTES)
    connection.deliver(record[:1])
    assert connection.memory.by_part[HeldPart.RECEIVED] == RECORD_BYTES
    connection.deliver(record[1:-1])
    assert connection.memory.total == RECORD_BYTES and not connection.owner.received
    connection.deliver(record[-1:])
    assert connection.memory.total == 0 and len(connection.owner.received) == RECORD_BYTES
    connection.deliver(connection.encrypt(b"y")[:-1])
    connection.transport.release_memory()
    assert connection.tcp.is_aborted
    connection.transport.connection_lost(None)
    assert connection.memory.total == 0 and connection.owner.lost_count == 1


async def test_nothing_is_received_while_reading_is_paused(connection: Connection):
    connection.transport.pause_reading()
    connection.deliver(connection.encrypt(b"later"))
    assert not connection.owner.received and not connection.transport.is_reading()
    connection.transport.resume_reading()
    await wait_until(lambda: connection.owner.received == b"later")


@pytest.mark.parametrize("way", ["FIN", "close_notify", "both"])
async def test_what_waits_is_sent_although_the_client_has_closed_its_side(
    connection: Connection, way: str
):
    """What was not encrypted yet was lost when the client closed its side of a connection that
    was to be closed: a response was cut short."""
    transport, tcp = connection.transport, connection.tcp
    tcp.capacity = len(tcp.written)
    data = b"x" * 100_000
    transport.write(data)
    transport.close()
    transport.write(b"too late")
    connection.deliver(connection.encrypt(b"which nobody waits for"))
    if way != "FIN":
        connection.deliver(connection.end())
    if way != "close_notify":
        assert transport.eof_received()
    assert transport.is_closing() and not tcp.is_closed
    tcp.drain(2 * len(data))
    await wait_until(lambda: tcp.is_closed)
    assert connection.read() == (data, True)
    assert not tcp.is_aborted and not connection.owner.received


async def test_a_closed_connection_stays_until_the_client_closes_its_side(connection: Connection):
    transport, tcp = connection.transport, connection.tcp
    transport.write(b"the end")
    transport.close()
    assert connection.read() == (b"the end", True) and not tcp.is_closed
    connection.deliver(connection.end())
    assert tcp.is_closed and not connection.owner.eof_count
    transport.connection_lost(None)
    assert connection.owner.lost_count == 1


@pytest.mark.parametrize("way", ["FIN", "close_notify"])
async def test_a_client_that_closes_its_side_is_answered_by_the_same(
    connection: Connection, way: str
):
    if way == "FIN":
        assert not connection.transport.eof_received()
    else:
        connection.deliver(connection.end())
    assert connection.owner.eof_count == 1 and connection.tcp.is_closed
    assert connection.read() == (b"", True)


async def test_what_is_no_record_ends_the_connection(connection: Connection):
    connection.deliver(b"GET / HTTP/1.1\r\n\r\n")
    assert connection.tcp.is_aborted and not connection.owner.received
    connection.transport.connection_lost(None)
    assert connection.owner.lost_count == 1


async def test_nothing_waits_for_a_lost_connection(connection: Connection, caplog):
    """asyncio's TLS logged each write to a client that was gone from the fifth on."""
    transport, tcp = connection.transport, connection.tcp
    tcp.capacity = len(tcp.written)
    transport.write(b"x" * 100_000)
    tcp.is_closed = True
    transport.connection_lost(None)
    tcp.is_paused = False
    transport.resume_writing()
    with caplog.at_level(logging.DEBUG):
        for _ in range(10):
            transport.write(b"to nobody")
    assert not caplog.records
    tcp.capacity = len(tcp.written)
    assert transport.get_write_buffer_size() == 0
