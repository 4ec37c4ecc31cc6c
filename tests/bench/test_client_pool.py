"""What many cheap clients answer, and how long they wait."""

from __future__ import annotations

import asyncio

import pytest

from bench.client_pool import ClientPool, CountingClient
from bench.peers.peer import build_ws_request
from gateway.wire import websocket
from gateway.wire.message_reader import PONG, MessageReader

GREETING = b'{"type":"begin",'
HEAD = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
BEGIN = websocket.encode_text(GREETING + b'"topics":[]}')
RECORD = websocket.encode_text(b'{"type":"records","records":[{"m":"~","at":1}]}')
PAYLOAD = b"\x89ab\x04"


class Transport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def pongs(self) -> list[bytes]:
        """Payloads, as the gateway reads them."""
        reader, found = MessageReader(), []
        reader.feed(self.written.partition(b"\r\n\r\n")[2])
        while (heard := reader.read(0.0)) is not None:
            found.append(heard[1])
            assert heard[0] == PONG
        return found


async def client_of(crowd: ClientPool) -> tuple[CountingClient, Transport]:
    client, transport = (
        CountingClient(crowd, build_ws_request("/all"), GREETING, False),
        Transport(),
    )
    client.connection_made(transport)  # type: ignore[arg-type]
    return client, transport


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_pings_are_answered_with_their_payload_wherever_they_are(size: int):
    """Pongs were empty, and those beside other data were not sent: the gateway closed clients that
    were idle for 40 s, and a run waited for what they could not get any more. size: of a read."""
    ping, crowd = websocket.encode_ping(PAYLOAD), ClientPool()
    client, transport = await client_of(crowd)
    data = HEAD + ping + BEGIN + ping + RECORD + ping + RECORD + RECORD + ping
    for at in range(0, len(data), size):
        client.data_received(data[at : at + size])
    assert set(transport.pongs()) == {PAYLOAD} and len(transport.pongs()) == 4
    assert client.opening_bytes is None


async def test_nothing_is_waited_for_once_a_connection_ended():
    crowd = ClientPool()
    client, _ = await client_of(crowd)
    client.data_received(HEAD + BEGIN)
    asyncio.get_running_loop().call_later(0.05, client.connection_lost, None)
    assert not await crowd.wait_for_records(1)
    assert crowd.closed_count == 1
