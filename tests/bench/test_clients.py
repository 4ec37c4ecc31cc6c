"""What the clients of works count, check and answer."""

from __future__ import annotations

import asyncio

import pytest

from bench.client_pool import Client, ClientPool
from bench.feed import Wire
from bench.ledger import Ledger
from bench.peers.peer import build_sse_request, build_ws_request
from bench.records import build_value
from gateway.wire import websocket
from gateway.wire.message_reader import PONG, MessageReader
from gateway.wire.websocket import encode_text

GREETING = b'{"type":"begin",'
HTTP = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
BEGIN = encode_text(GREETING + b'"topics":[]}')
RECORD = encode_text(b'{"type":"records","records":[{"m":"~","at":1}]}')
PAYLOAD = b"\x89ab\x04"


class Transport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def read_pongs(self) -> list[bytes]:
        """Payloads, as the gateway reads them."""
        reader, found = MessageReader(), []
        reader.feed(self.written.partition(b"\r\n\r\n")[2])
        while (heard := reader.read(0.0)) is not None:
            found.append(heard[1])
            assert heard[0] == PONG
        return found


def connect(
    pool: ClientPool, wire: Wire, greeting: bytes = b"", ledger: Ledger | None = None
) -> tuple[Client, Transport]:
    build = build_sse_request if wire is Wire.SSE else build_ws_request
    client, transport = pool.create_client(build("/all"), greeting, ledger=ledger), Transport()
    client.connection_made(transport)  # type: ignore[arg-type]
    return client, transport


def receive(wire: Wire, stream: bytes, piece: int) -> Ledger:
    """What a client has of it that reads so many bytes at a time."""
    ledger = Ledger()
    ledger.expect_records(0, 2)
    client, _ = connect(ClientPool(), wire, ledger=ledger)
    for at in range(0, len(stream), piece):
        client.data_received(stream[at : at + piece])
    return ledger


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_mark_that_is_cut_in_two_is_counted_once():
    stream = b"data: %b\nid: A\n\n" % build_value(1) + b"data: %b\nid: B\n\n" % build_value(2)
    for at in range(1, len(stream)):
        pool = ClientPool()
        client, _ = connect(pool, Wire.SSE)
        client.data_received(HTTP)
        client.data_received(stream[:at])
        client.data_received(stream[at:])
        assert pool.record_count == 2, at


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_pings_are_answered_with_their_payload_wherever_they_are(size: int):
    """Pongs were empty, and those beside other data were not sent: the gateway closed clients that
    were idle for 40 s, and a run waited for what they could not get any more. size: of a read."""
    ping, pool = websocket.encode_ping(PAYLOAD), ClientPool()
    client, transport = connect(pool, Wire.WS, GREETING)
    data = UPGRADED + ping + BEGIN + ping + RECORD + ping + RECORD + RECORD + ping
    for at in range(0, len(data), size):
        client.data_received(data[at : at + size])
    assert transport.read_pongs() == [PAYLOAD] * 4
    assert client.opened_at


async def test_nothing_is_waited_for_once_a_connection_ended():
    pool = ClientPool()
    client, _ = connect(pool, Wire.WS, GREETING)
    client.data_received(UPGRADED + BEGIN)
    asyncio.get_running_loop().call_later(0.05, client.connection_lost, None)
    assert not await pool.wait_for_records(1)
    assert pool.closed_count == 1


@pytest.mark.parametrize("piece", [1, 7, 100, 10_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_events_are_read_whole_however_they_are_cut(piece: int, end: bytes):
    events = [b"data: %b\nid: t%d\n\n" % (build_value(n), n) for n in (0, 1, 1)]
    events.insert(1, b":\n\n")
    stream = b"".join(events).replace(b"\n", end)
    found = receive(Wire.SSE, HTTP + chunk(stream[:99]) + chunk(stream[99:]), piece)
    assert (found.record_count, found.duplicate_count, found.damaged_count) == (3, 1, 0)
    assert (found.token, found.count_lost(0, 3)) == (b"t1", 1)


@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_messages_are_read_whole_however_they_are_cut(piece: int):
    values = build_value(0), build_value(2)
    told = b'{"type":"records","records":[%b,%b],"position":"tok-2"}' % values
    stream = UPGRADED + encode_text(told) + encode_text(b'{"type":"position"}')
    found = receive(Wire.WS, stream, piece)
    assert (found.record_count, found.token, found.count_lost(0, 3)) == (2, b"tok-2", 1)


async def test_a_value_that_is_not_whole_is_damaged():
    broken = b"data: %b\nid: t\n\n" % build_value(0).replace(b'"pad":"x', b'"pad":"!')
    assert receive(Wire.SSE, HTTP + chunk(broken), 50).damaged_count == 1


async def test_what_comes_after_a_client_was_cut_is_not_counted():
    ledger, stream = Ledger(), chunk(b"data: %b\n\n" % build_value(0))
    client, _ = connect(ClientPool(), Wire.SSE, ledger=ledger)
    client.data_received(HTTP + stream)
    ledger.client = None
    client.data_received(stream)
    assert (ledger.record_count, ledger.duplicate_count) == (1, 0)


def test_a_client_is_live_with_a_record_made_after_what_it_missed():
    ledger = Ledger()
    ledger.expect_records(0, 2)
    ledger.record_numbers([b"0", b"1"])
    assert not ledger.completed_at
    ledger.record_numbers([b"2"])
    assert ledger.completed_at
