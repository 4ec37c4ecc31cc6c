"""What is held for clients counts when it is held, is bounded, and goes with their connections."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import embedded_kafka
from support.certificates import CertificateAuthority
from support.gateways import GatewayThread, build_config, running_gateway
from support.raw_http import ConnectionReset, RawConnection, build_request
from support.raw_websocket import OPCODE_TEXT, RawWebSocket, build_frame, build_handshake
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.http.tls import SLICE_BYTES

kafka = embedded_kafka({"orders": 1})

MIB = 1 << 20
CONNECTIONS = 8
VALUE = json.dumps("v" * 900_000).encode()
EVENTS = build_request("/orders", b"Accept: text/event-stream")
PAGES = build_request("/orders?from=earliest&wait=60", b"Accept: application/x-ndjson")
# In memory, each character of it takes four bytes.
FRAGMENT = build_frame(OPCODE_TEXT, ("\N{GRINNING FACE}" + "x" * 500_000).encode(), fin=False)
UNFINISHED_BODY = build_request(
    "/orders", b"Content-Type: text/plain", b"Content-Length: 60000", method="POST"
) + bytes(50_000)

UNFINISHED_RECORDS = build_request(
    "/producers/orders", b"Content-Length: 600000", method="POST"
) + bytes(500_000)


def build_gateway_config(kafka: EmbeddedKafka, memory: str, **listen: Any) -> dict[str, Any]:
    routes = [
        {"when": [{"path": "/orders"}], "with": {"topic": "orders"}},
        {
            "when": [{"path": "/orders", "method": "POST"}],
            "with": {"capability": "produce", "topic": "orders"},
        },
    ]
    return build_config(
        kafka.bootstrap,
        ["orders"],
        routes,
        memory=memory,
        listen=listen,
        sidecar={"producer": {}},
    )


def write_values(kafka: EmbeddedKafka, count: int) -> None:
    producer = Producer({"bootstrap.servers": ",".join(kafka.bootstrap)})
    for _ in range(count):
        producer.produce("orders", VALUE)
    producer.flush()


class Clients:
    """Connections that read nothing, and are reset in the end."""

    def __init__(self, gateway: GatewayThread, authority: CertificateAuthority | None) -> None:
        self._gateway, self._authority = gateway, authority
        self._stack = ExitStack()
        self.connections: list[RawConnection] = []

    def open(self, request: bytes, count: int = CONNECTIONS) -> None:
        for _ in range(count):
            connection = self._stack.enter_context(
                RawConnection(self._gateway.port, receive_buffer=4096)
            )
            if self._authority is not None:
                context = self._authority.create_client_context()
                connection.socket = context.wrap_socket(
                    connection.socket, server_hostname="localhost"
                )
            self.connections.append(connection)
            connection.send_bytes(request)

    def reset(self) -> None:
        for connection in self.connections:
            option = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            connection.socket.setsockopt(*option)
        self._stack.close()


async def wait_for_bytes(memory: ClientMemory, part: HeldPart, size: int) -> None:
    await wait_until(lambda: memory.by_part[part] >= size, lambda: f"{memory.by_part}")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    ("request_bytes", "part", "size"),
    [
        pytest.param(EVENTS, HeldPart.UNSENT, len(VALUE), id="stream"),
        pytest.param(
            EVENTS.replace(b"HTTP/1.1", b"HTTP/1.0"),
            HeldPart.UNSENT,
            CONNECTIONS * len(VALUE),
            id="stream by ASGI",
        ),
        pytest.param(PAGES * 12, HeldPart.UNSENT, CONNECTIONS * 500_000, id="pages"),
        pytest.param(
            build_handshake() + FRAGMENT,
            HeldPart.RECEIVED,
            CONNECTIONS * 2_000_000,
            id="unfinished message",
        ),
        pytest.param(
            UNFINISHED_BODY, HeldPart.RECEIVED, CONNECTIONS * 50_000, id="unfinished body"
        ),
        pytest.param(
            UNFINISHED_RECORDS,
            HeldPart.RECEIVED,
            CONNECTIONS * 500_000,
            id="unfinished records for the sidecar",
        ),
    ],
)
async def test_what_is_held_for_connections_counts_and_goes_with_them(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    request_bytes: bytes,
    part: HeldPart,
    size: int,
    tls: bool,
):
    """Unfinished messages and bodies, and responses that nobody reads, were in no account."""
    authority, listen = None, {}
    if tls:
        authority = CertificateAuthority(tmp_path)
        pem = str(authority.issue_certificate("web"))
        listen = {"tls": {"certificate": pem, "key": pem}}
    async with running_gateway(build_gateway_config(kafka, "1GiB", **listen)) as gateway:
        memory, clients = gateway.app.gateway.hubs.client_memory, Clients(gateway, authority)
        if request_bytes.startswith(PAGES):
            await asyncio.to_thread(write_values, kafka, 1)
        await asyncio.to_thread(clients.open, request_bytes)
        if b"event-stream" in request_bytes:
            await wait_until(lambda: len(gateway.app.gateway.hubs.get_hub("").clients) == 8)
            await asyncio.to_thread(write_values, kafka, 12)
        await wait_for_bytes(memory, part, size)
        if request_bytes == EVENTS and tls:
            # What is shared counts once, and little of it is encrypted before it can be sent.
            assert memory.total < 13 * len(VALUE) + CONNECTIONS * 2 * SLICE_BYTES
        assert not memory.releases
        await asyncio.to_thread(clients.reset)
        await wait_until(lambda: not memory.total, lambda: f"{memory.by_part}")
        assert memory.by_part == dict.fromkeys(HeldPart, 0)


async def test_a_stream_by_asgi_for_which_there_is_no_memory_does_not_end_as_if_complete(
    kafka: EmbeddedKafka,
):
    async with running_gateway(build_gateway_config(kafka, "1MiB")) as gateway:
        memory = gateway.app.gateway.hubs.client_memory

        def read_stream() -> None:
            with RawConnection(gateway.port) as wire:
                wire.send_bytes(EVENTS.replace(b"HTTP/1.1", b"HTTP/1.0"))
                wire.read_until(b"event: begin")
                write_values(kafka, 1)
                while True:
                    wire.read_until(b"\n")

        with RawConnection(gateway.port) as other:  # alone, a record of any size gets through
            await asyncio.to_thread(other.send_bytes, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
            await wait_until(lambda: memory.total > 0)
            with pytest.raises(ConnectionReset):
                await asyncio.to_thread(read_stream)


async def test_sockets_with_unfinished_messages_are_closed_when_they_are_too_many(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    """100 sockets that each sent an unfinished message held 400 MiB, whatever `memory` said."""
    async with running_gateway(build_gateway_config(kafka, "16MiB")) as gateway:
        memory = gateway.app.gateway.hubs.client_memory
        with ExitStack() as stack:
            sockets: list[RawWebSocket] = []
            for _ in range(CONNECTIONS):
                sockets.append(
                    stack.enter_context(
                        await asyncio.to_thread(RawWebSocket.open_socket, gateway.port)
                    )
                )
                await asyncio.to_thread(sockets[-1].send_bytes, FRAGMENT)
            await wait_until(lambda: memory.releases[HeldPart.RECEIVED] >= 4)
            assert await asyncio.to_thread(sockets[0].read_close_code) == 1013
            assert memory.total <= 8 * MIB
        lines = [each for each in caplog.records if "held for clients" in each.getMessage()]
        assert len(lines) == 1
