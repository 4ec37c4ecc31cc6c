"""What a socket may have waiting while nobody says yet whether its client may come in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from typing import Any

import pytest
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.brokers import embedded_kafka
from support.gateways import build_config, running_gateway_process
from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_TEXT,
    RawWebSocket,
    build_frame,
    deflate_payload,
)
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.night

kafka = embedded_kafka({"orders": 1})

MIB = 1024 * 1024
SOCKETS = 4
QUIET_S = 1.0  # a client that sends nothing for so long is held back


class SlowApplication:
    """Answers once it is `open`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.open.wait()
        await JSONResponse({"identity": "ada"})(scope, receive, send)


def fill(wire: RawWebSocket, data: bytes, most: int) -> int:
    """Send it until nothing more is taken, or so many bytes; how many were."""
    wire.socket.settimeout(QUIET_S)
    sent, at = 0, 0
    with contextlib.suppress(TimeoutError):
        while sent < most:
            done = wire.socket.send(data[at : at + 65536])
            sent, at = sent + done, (at + done) % len(data)
    wire.socket.settimeout(60)
    return sent


def say(**members: Any) -> bytes:
    return build_frame(OPCODE_TEXT, json.dumps(members, ensure_ascii=False).encode())


@pytest.mark.parametrize("kind", ["subscribe", "produce"])
@pytest.mark.parametrize("compressed", [False, True])
async def test_messages_that_wait_for_a_slow_guard_take_little_memory(
    kafka: EmbeddedKafka, kind: str, compressed: bool
):
    """64 messages of 1 MiB waited for each socket, and 100 records, as long as a guard did not
    answer: 256 MiB of one client, for next to nothing where they came compressed."""
    application = SlowApplication()
    routes = [
        {
            "when": [{"path": "/events"}],
            "guarded": {"app": []},
            "with": {"topic": "orders", "produce": True},
        }
    ]
    async with running_app(application) as app:
        guards = {"app": {"type": "http", "url": app, "timeout": "60s"}}
        listen = {"websocket": {"compression": True}}
        config = build_config(kafka.bootstrap, ["orders"], routes, guards=guards, listen=listen)
        async with running_gateway_process(config) as gateway:
            port = int(gateway.base_url.rpartition(":")[2])
            before = gateway.memory_bytes
            # an astral character: each of the others takes four bytes then
            value = "\N{GRINNING FACE}" + "x" * (MIB - 500)
            text = {"type": "ping", "id": "p", "pad": value}
            if kind == "produce":
                text = {"type": "produce", "id": "p", "path": "/events", "value": value}
            payload = json.dumps(text, ensure_ascii=False).encode()
            large = (
                build_frame(OPCODE_TEXT, deflate_payload(payload), rsv=4)
                if compressed
                else build_frame(OPCODE_TEXT, payload)
            )
            headers = [b"Authorization: Bearer x", *([DEFLATE_HEADER] if compressed else [])]
            sockets = [
                await asyncio.to_thread(RawWebSocket.open_socket, port, "/ws", *headers)
                for _ in range(SOCKETS)
            ]
            try:
                for wire in sockets:
                    wire.send_bytes(say(type="subscribe", id="a", path="/events"))
                most = 64 * len(large)
                took = await asyncio.gather(
                    *(asyncio.to_thread(fill, wire, large, most) for wire in sockets)
                )
                if not compressed:
                    assert max(took) < 16 * MIB, "the rest waits at the client's side"
                await settle(gateway)
                grown = gateway.memory_bytes - before
                assert grown < SOCKETS * 24 * MIB, f"{grown / MIB:.0f} MiB"
                application.open.set()
            finally:
                for wire in sockets:
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
                    wire.socket.close()


async def settle(gateway: Any) -> None:
    """Until its memory no longer grows."""
    last, since = 0, time.monotonic()

    def settled() -> bool:
        nonlocal last, since
        now = gateway.memory_bytes
        if now > last + MIB:
            last, since = now, time.monotonic()
        return time.monotonic() - since > QUIET_S

    await wait_until(settled, "memory settles", 60)
