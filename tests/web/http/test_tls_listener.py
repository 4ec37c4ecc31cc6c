"""TLS handshakes are bounded in number, per address and in time, on every event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from support.buses import host
from support.certificates import Authority
from support.half_tls import client_hello, half_clients, held
from support.until import until

from gateway.config import Limits as LimitSettings
from gateway.config import ListenTls, Settings
from gateway.telemetry.figures import Figures
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import EdgeServer, edge, listen_tls
from gateway.web.http.tls_listener import TlsListener
from gateway.web.http.transport import GatewayProtocol
from gateway.web.routing.ledger import MAX_HANDSHAKES, Full, Ledger
from gateway.web.routing.limits import LimitReached, Limits, count_for
from gateway.web.workers.bus import Bus

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
WITHIN = 30.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

Test = Callable[[], Awaitable[None]]


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Run a test on a loop of each kind."""

    def on_loop(test: Test) -> None:
        async def within() -> None:
            async with asyncio.timeout(WITHIN):
                await test()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(within())

    return on_loop


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of certificates that the client has shown."""
    shown = scope["extensions"].get("tls", {}).get("client_cert_chain", ())
    body = f"{scope['scheme']} {len(shown)}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Port:
    """A port with TLS in this loop."""

    def __init__(
        self, listening: socket.socket, listener: TlsListener, authority: Authority
    ) -> None:
        self.number = listening.getsockname()[1]
        self.listener = listener
        self.authority = authority

    async def ask(self, source: str = "127.0.0.1", certificate: Path | None = None) -> str:
        """Return the body of an answer on a new connection, which closes behind it."""
        async with self.connected(source, certificate) as (reader, writer):
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return (await reader.readexactly(length)).decode()

    @asynccontextmanager
    async def connected(
        self, source: str = "127.0.0.1", certificate: Path | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection past its handshake, which has not asked for anything."""
        context = self.authority.context(certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=context, local_addr=(source, 0)
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@asynccontextmanager
async def tls_port(
    authority: Authority,
    limits: dict[str, int],
    *,
    patience: float = 10.0,
    forwarded: Any = False,
) -> AsyncIterator[Port]:
    own = authority.signed("gateway")
    kafka = {"servers": ["localhost:9092"]}
    settings = Settings.model_validate({"kafka": kafka, "listen": {"forwarded": forwarded}})
    tls = TlsContext(ListenTls(certificate=own, key=own, trust=authority.path))
    gate = Limits(LimitSettings.model_validate(limits), Bus())
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        if forwarded is False:
            listener = TlsListener(listening, tls.context, gate, timeout=patience)
        else:
            listener = listen_tls(listening, tls, settings, gate)
        config = edge(application, settings, ws="none", lifespan="off")
        config.load()
        GatewayProtocol.prepare(listening)
        server = EdgeServer(config, listener)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        try:
            yield Port(listening, listener, authority)
        finally:
            server.force_exit = True
            await server.shutdown(sockets=[listening])


def test_of_one_address_only_so_many_handshakes_are_held(run, authority: Authority):
    async def test() -> None:
        async with (
            tls_port(authority, {"connections": 50, "perAddress": 20}) as port,
            half_clients(port.number, 300) as clients,
        ):
            await until(lambda: held(clients) <= 20, lambda: f"{held(clients)} held", WITHIN)
            assert port.listener.under_way == held(clients) == 20
            assert port.listener.refused["perAddress"] >= 280 - (300 - len(clients))
            assert await port.ask("127.0.0.2") == "https 0"
            with pytest.raises(OSError):
                await port.ask()
        await until(lambda: port.listener.under_way == 0, "all are gone", WITHIN)

    run(test)


def test_of_all_addresses_only_so_many_are_held(run, authority: Authority):
    async def test() -> None:
        async with (
            tls_port(authority, {"connections": 30, "perAddress": 20}) as port,
            half_clients(port.number, 20) as first,
            half_clients(port.number, 20, "127.0.0.2") as second,
        ):
            await until(lambda: held(second) <= 10, "those too many are closed", WITHIN)
            assert (held(first), held(second)) == (20, 10)
            assert port.listener.refused == {"connections": 10}
            figures = Figures()
            port.listener.read(figures)
            assert "gateway_tls_handshakes" in str(figures.plain())

    run(test)


def test_a_handshake_that_is_not_finished_in_time_is_closed(run, authority: Authority):
    """Also one that goes on, a byte at a time."""

    async def test() -> None:
        async with (
            tls_port(authority, {"perAddress": 2}, patience=0.5) as port,
            half_clients(port.number, 1) as (silent,),
            half_clients(port.number, 1, data=b"") as (slow,),
        ):
            for byte in client_hello():
                if slow.is_closed:
                    break
                slow.writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            await silent.closed()
            await slow.closed()
            assert port.listener.refused == {"timeout": 2}
            assert port.listener.under_way == 0
            assert await port.ask() == "https 0"

    run(test)


@pytest.mark.parametrize("data", [REQUEST, b"\x00" * 100, b"\x16\x03\x01\x00\x05hello"])
def test_what_is_no_tls_is_closed(run, authority: Authority, data: bytes):
    async def test() -> None:
        async with (
            tls_port(authority, {"perAddress": 5}) as port,
            half_clients(port.number, 5, data=data) as clients,
        ):
            for client in clients:
                assert b"HTTP" not in await client.closed()
            await until(lambda: port.listener.under_way == 0, "they left", WITHIN)
            assert port.listener.refused == {"failed": 5}

    run(test)


def test_a_client_that_asks_for_nothing_counts_until_it_does(run, authority: Authority):
    """Else whoever finishes its handshakes would hold the same memory without a bound."""

    async def test() -> None:
        async with tls_port(authority, {"perAddress": 1}) as port:
            async with port.connected() as (reader, writer):
                with pytest.raises(OSError):
                    await port.ask()
                writer.write(REQUEST)
                await reader.readuntil(b"\r\n\r\n")
                assert port.listener.under_way == 0
                assert await port.ask() == "https 0"  # while the first is still open
            async with port.connected():
                assert port.listener.under_way == 1
            await until(lambda: port.listener.under_way == 0, "it left", WITHIN)
            assert await port.ask() == "https 0"
            assert port.listener.refused["perAddress"] == 1

    run(test)


def test_a_certificate_of_the_client_is_seen(run, authority: Authority, tmp_path: Path):
    async def test() -> None:
        forged = Authority(tmp_path, "another").signed("eve")
        async with tls_port(authority, {}) as port:
            assert await port.ask(certificate=authority.signed("ada")) == "https 1"
            assert await port.ask() == "https 0"
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await port.ask(certificate=forged)

    run(test)


@pytest.mark.parametrize("forwarded", [True, ["127.0.0.1"]])
def test_a_proxy_that_is_believed_has_no_bound_of_its_own(run, authority, forwarded: Any):
    async def test() -> None:
        limits = {"connections": 50, "perAddress": 5}
        async with (
            tls_port(authority, limits, forwarded=forwarded) as port,
            half_clients(port.number, 60) as clients,
        ):
            await until(lambda: held(clients) <= 50, "those too many are closed", WITHIN)
            assert held(clients) == 50

    run(test)


def test_closing_ends_the_handshakes_under_way(run, authority: Authority):
    async def test() -> None:
        async with tls_port(authority, {}) as port, half_clients(port.number, 50) as clients:
            await until(lambda: port.listener.under_way == 50, "all are accepted", WITHIN)
            port.listener.close()
            await port.listener.wait_closed()
            assert port.listener.under_way == 0
            for client in clients:
                await client.closed()

    run(test)


@pytest.mark.parametrize(
    ("settings", "every", "one"),
    [
        ({}, MAX_HANDSHAKES, MAX_HANDSHAKES // 2),
        ({"connections": 50, "perAddress": 20}, 50, 20),
        ({"connections": 50}, 50, 50),
        ({"connections": 10**6, "perAddress": 10**5}, MAX_HANDSHAKES, MAX_HANDSHAKES),
        ({"perAddress": 20}, MAX_HANDSHAKES, 20),
    ],
)
def test_the_bounds_are_those_of_connections(settings: dict[str, int], every: int, one: int):
    for kind, bound in ((Full.HANDSHAKES, every), (Full.HANDSHAKES_OF_ADDRESS, one)):
        ledger = Ledger.of(LimitSettings.model_validate(settings))
        taken = [ledger.take(0, [kind.key("a")], 0.0) for _ in range(bound + 1)]
        assert taken[:-1] == [None] * bound and taken[-1] is not None


async def test_several_workers_share_the_bounds():
    settings = LimitSettings.model_validate({"connections": 50, "perAddress": 3})
    keys = [Full.HANDSHAKES.key(), Full.HANDSHAKES_OF_ADDRESS.key(" 192.0.2.1")]
    async with host(2) as made:
        count_for(made.relay, settings)
        one, other = [Limits(settings, bus) for bus in made.buses]
        await made.run()
        first = await one.admit(keys)
        await one.admit(keys)
        await other.admit(keys)
        with pytest.raises(LimitReached) as refused:
            await other.admit(keys)
        assert refused.value.full is Full.HANDSHAKES_OF_ADDRESS
        assert not other.refused  # of connections, which it was none of
        first()
        await other.admit(keys)
