"""Connections count from accept to close, whatever they do meanwhile."""

from __future__ import annotations

import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from support.raw_http import RawConnection, RunningServer, build_request, running_server
from support.waiting import block_until, wait_until
from support.worker_buses import worker_buses

from gateway.config import Limits as Settings
from gateway.errors import Busy
from gateway.web.http.limits import LimitReached, Limits, OpenConnection, PortLimits
from gateway.web.http.outlet import TAKEOVER, HttpOutlet, take_over
from gateway.web.http.shared_counts import serve_counts
from gateway.web.http.transport import GatewayProtocol
from gateway.web.websocket.endpoint import DeafListener
from gateway.web.websocket.protocol import WebSocketProtocol
from gateway.web.workers.bus import Bus

UPGRADE = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
START = {"type": "http.response.start", "status": 200, "headers": []}


class Stream:
    """A stream that its client ends, and that ends with it."""

    outlet: HttpOutlet | None = None

    def on_drained(self) -> None: ...
    def close(self) -> None: ...
    def hand_over(self) -> None: ...
    def probe(self) -> None: ...


class Port:
    """A port with limits, and an application that counts what is at `/counted` and streams."""

    def __init__(self, is_proxy: Callable[[str], bool], **settings: int) -> None:
        self.limits = Limits(Settings.model_validate(settings), Bus())
        self.protocol = type(
            "Protocol",
            (GatewayProtocol,),
            {"PORT_LIMITS": PortLimits(self.limits, is_proxy=is_proxy)},
        )
        self.streams: list[Stream] = []
        self.cycles: list[weakref.ref[Any]] = []
        self.served: RunningServer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            scope["extensions"][TAKEOVER](DeafListener())
            return
        assert self.served is not None
        self.cycles += [
            weakref.ref(protocol.running_cycle)
            for protocol in self.served.connections
            if isinstance(protocol, GatewayProtocol) and protocol.running_cycle is not None
        ]
        for name, value in scope["headers"]:
            if name == b"x-address":
                scope["client"] = (value.decode(), 0)
        status = 200
        if scope["path"] != "/page":
            try:
                slot = await self.limits.acquire_slot(scope)
            except Busy as exc:
                status = exc.status
            else:
                if scope["path"] == "/stream":
                    await send(START)
                    stream = Stream()
                    stream.outlet = take_over(scope, stream)
                    self.streams.append(stream)
                    slot()
                    return
                slot()
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body"})

    def ask(self, stack: ExitStack, path: str = "/counted", *headers: bytes) -> RawConnection:
        """A connection that has sent this, and has its answer."""
        wire = self.connect(stack)
        wire.send_bytes(build_request(path, *headers))
        return wire

    def connect(self, stack: ExitStack) -> RawConnection:
        assert self.served is not None
        return stack.enter_context(RawConnection(self.served.port))

    def wait_for_count(self, count: int) -> None:
        block_until(
            lambda: self.limits.connection_count == count, f"{count} connections", interval_s=0.01
        )


@pytest.fixture(params=["asyncio", "uvloop"])
def run_port(request: pytest.FixtureRequest) -> Any:
    import asyncio

    loop = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}[request.param]

    @contextmanager
    def run(
        is_proxy: Callable[[str], bool] = lambda peer: False, **settings: int
    ) -> Iterator[tuple[Port, ExitStack]]:
        port = Port(is_proxy, **settings)
        with (
            running_server(port, port.protocol, loop, ws=WebSocketProtocol) as served,
            ExitStack() as stack,
        ):
            port.served = served
            yield port, stack

    return run


@pytest.mark.parametrize(
    ("settings", "status"), [({"connections": 2}, 503), ({"perAddress": 2}, 429)]
)
def test_an_idle_connection_counts_and_one_too_many_is_answered_once(run_port, settings, status):
    """Only what ran counted: one address could keep every descriptor by asking for a page."""
    with run_port(**settings) as (port, stack):
        kept = [port.ask(stack, "/page") for _ in range(2)]
        assert [wire.read_response().status for wire in kept] == [200, 200]
        assert port.ask(stack).read_last_response().status == status
        assert port.ask(stack, "/page").read_last_response().status == 200
        (limit,) = settings
        assert port.limits.refused_counts == {limit: 1}  # a page is not refused
        kept[0].send_bytes(build_request("/counted"))  # counted with its connection, not twice
        assert kept[0].read_response().status == 200
        kept[1].socket.close()
        port.wait_for_count(1)
        wire = port.ask(stack)
        assert wire.read_response().status == 200
        wire.send_bytes(build_request("/counted"))
        assert wire.read_response().status == 200


def test_those_that_ask_nothing_are_closed_beyond_as_many_that_may_ask(run_port):
    with run_port(perAddress=3) as (port, stack):
        kept = [port.ask(stack, "/page") for _ in range(3)]
        for wire in kept:
            wire.read_response()
        told = [port.connect(stack) for _ in range(3)]
        wire = port.connect(stack)
        with suppress(ConnectionError):
            wire.socket.sendall(build_request("/page"))
            assert wire.socket.recv(1) == b""
        assert port.limits.refused_counts == {"perAddress": 1}
        told[0].send_bytes(build_request("/page"))
        assert told[0].read_last_response().status == 200


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_whatever_a_connection_becomes_it_counts_once_and_until_its_end(run_port, is_reset):
    with run_port(connections=50) as (port, stack):
        wires = [
            port.connect(stack),
            port.ask(stack, "/page"),
            port.ask(stack, "/stream"),
            port.ask(stack, "/socket", *UPGRADE),
            port.ask(stack, "/socket", *UPGRADE[:2]),  # which is refused
        ]
        for wire in wires[1:]:
            wire.read_head()
        over = port.ask(stack, "/stream")
        over.read_head()
        block_until(lambda: len(port.streams) == 2, "both stream", interval_s=0.01)
        first, last = port.streams
        assert last.outlet is not None and port.served is not None
        port.served.loop.call_soon_threadsafe(last.outlet.finish, b"0\r\n\r\n")
        assert over.read_chunk() == b""
        port.wait_for_count(6)
        over.send_bytes(build_request("/counted"))
        assert over.read_response().status == 200
        port.wait_for_count(6)
        for wire in (*wires, over):
            if is_reset:
                reset = struct.pack("ii", 1, 0)
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            wire.socket.close()
        # A stream whose client has left is found out by writing.
        assert first.outlet is not None
        port.served.loop.call_soon_threadsafe(first.outlet.transport.abort)
        port.wait_for_count(0)


def test_clients_of_a_proxy_count_by_their_own_addresses(run_port):
    with run_port(lambda peer: True, connections=5, perAddress=1) as (port, stack):
        for n in range(5):
            wire = port.ask(stack, "/counted", b"X-Address: 192.0.2.%d" % n)
            assert wire.read_response().status == 200
        assert port.ask(stack).read_last_response().status == 503


def test_an_idle_connection_keeps_nothing_of_its_last_request(run_port):
    """uvicorn keeps scope, headers and cycle until the next request: 64 KiB of each connection."""
    with run_port() as (port, stack):
        wire = port.connect(stack)
        for path in ("/page", "/counted"):
            wire.send_bytes(build_request(path, b"X-Filler: " + 60_000 * b"x"))
            assert wire.read_response().status == 200
            assert port.served is not None
            block_until(lambda: len(port.cycles) and not port.cycles[-1](), "it goes", 15, 0.01)


async def test_workers_count_together_and_a_connection_that_is_lost_while_asked_does_not():
    settings = Settings.model_validate({"connections": 2})
    stays: list[bool] = []

    def open_connection(limits: Limits) -> OpenConnection:
        opened = PortLimits(limits).open_connection("192.0.2.1", stays.append)
        assert opened is not None
        return opened

    async with worker_buses(2) as made:
        ledger = serve_counts(made.relay, settings)
        one, other = [Limits(settings, bus) for bus in made.buses]
        await made.start()
        first, second = open_connection(one), open_connection(other)
        await first.get_keys()
        await second.get_keys()
        third, fourth = open_connection(one), open_connection(one)
        for each in (third, fourth):
            with pytest.raises(LimitReached):
                await each.get_keys()
        assert stays == [True, False]  # one of each worker may ask
        second()
        lost = open_connection(other)
        lost()
        third()
        await wait_until(lambda: ledger.total == 1, lambda: f"{ledger.total}")
        fifth = open_connection(one)
        await fifth.get_keys()
        first()
        fifth()
        await wait_until(lambda: ledger.total == 0, lambda: f"{ledger.total}")
        last = [open_connection(one), open_connection(other)]
        for each in last:
            await each.get_keys()
        assert ledger.total == 2
