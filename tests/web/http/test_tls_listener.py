"""TLS handshakes are bounded in number, per address and in time, on every event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send
from support.certificates import CertificateAuthority
from support.unfinished_handshakes import build_client_hello, count_open, open_unfinished_clients
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.worker_buses import worker_buses

from gateway.config import Limits as LimitSettings
from gateway.config import ListenTls, Settings
from gateway.telemetry.samples import MetricSamples
from gateway.web.http.certificate import TlsContext
from gateway.web.http.edge import (
    EdgeServer,
    configure_socket,
    create_port_limits,
    create_uvicorn_config,
)
from gateway.web.http.limits import LimitReached, Limits
from gateway.web.http.shared_counts import MAX_HANDSHAKES, ConnectionCounts, LimitKind, serve_counts
from gateway.web.http.tls import TlsListener
from gateway.web.workers.bus import Bus

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

Test = Callable[[], Awaitable[None]]


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Run a test on a loop of each kind."""

    def on_loop(test: Test) -> None:
        async def within() -> None:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await test()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(within())

    return on_loop


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


async def count_certificates(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of certificates that the client has shown."""
    shown = scope["extensions"].get("tls", {}).get("client_cert_chain", ())
    body = f"{scope['scheme']} {len(shown)}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class TlsPort:
    """A port with TLS in this loop."""

    def __init__(
        self,
        listening: socket.socket,
        listener: TlsListener,
        authority: CertificateAuthority,
        limits: Limits,
    ) -> None:
        self.number = listening.getsockname()[1]
        self.listener = listener
        self.authority = authority
        self.limits = limits

    async def request_body(self, source: str = "127.0.0.1", certificate: Path | None = None) -> str:
        """Return the body of an answer on a new connection, which closes behind it."""
        async with self.connect(source, certificate) as (reader, writer):
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return (await reader.readexactly(length)).decode()

    @asynccontextmanager
    async def connect(
        self, source: str = "127.0.0.1", certificate: Path | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection past its handshake, which has not asked for anything."""
        context = self.authority.create_client_context(certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=context, local_addr=(source, 0)
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@asynccontextmanager
async def running_port(
    authority: CertificateAuthority,
    limits: dict[str, int],
    *,
    timeout_s: float = 10.0,
    forwarded: Any = False,
) -> AsyncIterator[TlsPort]:
    own = authority.issue_certificate("gateway")
    kafka = {"servers": ["localhost:9092"]}
    settings = Settings.model_validate({"kafka": kafka, "listen": {"forwarded": forwarded}})
    tls = TlsContext(ListenTls(certificate=own, key=own, ca=authority.certificate_path))
    gate = Limits(LimitSettings.model_validate(limits), Bus())
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        port_limits = create_port_limits(settings, gate)
        listener = TlsListener(listening, tls.context, port_limits, timeout_s=timeout_s)
        config = create_uvicorn_config(
            count_certificates, settings, port_limits=port_limits, lifespan="off"
        )
        config.load()
        configure_socket(listening)
        server = EdgeServer(config, listener)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        try:
            yield TlsPort(listening, listener, authority, gate)
        finally:
            server.force_exit = True
            await server.shutdown(sockets=[listening])


def test_of_one_address_only_so_many_handshakes_are_held(run, authority: CertificateAuthority):
    async def test() -> None:
        async with (
            running_port(authority, {"connections": 50, "perAddress": 20}) as port,
            open_unfinished_clients(port.number, 300) as clients,
        ):
            await wait_until(
                lambda: count_open(clients) <= 20, lambda: f"{count_open(clients)} held"
            )
            assert port.listener.pending_handshakes == count_open(clients) == 20
            assert port.listener.refused_counts["perAddress"] >= 280 - (300 - len(clients))
            assert await port.request_body("127.0.0.2") == "https 0"
            with pytest.raises(OSError):
                await port.request_body()
        await wait_until(lambda: port.listener.pending_handshakes == 0, "all are gone")

    run(test)


def test_of_all_addresses_only_so_many_are_held(run, authority: CertificateAuthority):
    async def test() -> None:
        async with (
            running_port(authority, {"connections": 30, "perAddress": 20}) as port,
            open_unfinished_clients(port.number, 20) as first,
            open_unfinished_clients(port.number, 20, "127.0.0.2") as second,
        ):
            await wait_until(lambda: count_open(second) <= 10, "those too many are closed")
            assert (count_open(first), count_open(second)) == (20, 10)
            assert port.listener.refused_counts == {"connections": 10}
            figures = MetricSamples()
            port.listener.collect_metrics(figures)
            assert "gateway_tls_handshakes" in str(figures.to_json())

    run(test)


def test_a_handshake_that_is_not_finished_in_time_is_closed(run, authority: CertificateAuthority):
    """Also one that goes on, a byte at a time."""

    async def test() -> None:
        async with (
            running_port(authority, {"perAddress": 2}, timeout_s=0.5) as port,
            open_unfinished_clients(port.number, 1) as (silent,),
            open_unfinished_clients(port.number, 1, data=b"") as (slow,),
        ):
            for byte in build_client_hello():
                if slow.is_closed:
                    break
                slow.writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            await silent.wait_closed()
            await slow.wait_closed()
            assert port.listener.refused_counts == {"timeout": 2}
            assert port.listener.pending_handshakes == 0
            assert await port.request_body() == "https 0"

    run(test)


@pytest.mark.parametrize("data", [REQUEST, b"\x00" * 100, b"\x16\x03\x01\x00\x05hello"])
def test_what_is_no_tls_is_closed(run, authority: CertificateAuthority, data: bytes):
    async def test() -> None:
        async with (
            running_port(authority, {"perAddress": 5}) as port,
            open_unfinished_clients(port.number, 5, data=data) as clients,
        ):
            for client in clients:
                assert b"HTTP" not in await client.wait_closed()
            await wait_until(lambda: port.listener.pending_handshakes == 0, "they left")
            assert port.listener.refused_counts == {"failed": 5}

    run(test)


def test_a_client_that_asks_for_nothing_counts_until_it_does(run, authority: CertificateAuthority):
    """Else whoever finishes its handshakes would hold the same memory without a bound."""

    async def test() -> None:
        async with running_port(authority, {"perAddress": 1}) as port:
            async with port.connect() as (reader, writer):
                with pytest.raises(OSError):
                    await port.request_body()
                writer.write(REQUEST)
                await reader.readuntil(b"\r\n\r\n")
                assert port.listener.pending_handshakes == 0
                assert await port.request_body() == "https 0"  # while the first is still open
            async with port.connect():
                assert port.listener.pending_handshakes == 1
            await wait_until(lambda: port.listener.pending_handshakes == 0, "it left")
            assert await port.request_body() == "https 0"
            assert port.listener.refused_counts["perAddress"] == 1

    run(test)


def test_a_connection_past_its_handshake_counts_while_it_is_idle(
    run, authority: CertificateAuthority
):
    async def test() -> None:
        async with (
            running_port(authority, {"perAddress": 1}) as port,
            port.connect() as (_, writer),
        ):
            writer.write(REQUEST)
            await wait_until(lambda: port.listener.pending_handshakes == 0)
            async with port.connect() as (reader, other):
                other.write(REQUEST)  # which is answered, and the last one of its connection
                assert b"connection: close" in (await reader.read()).lower()
            writer.transport.abort()
            await wait_until(lambda: port.limits.connection_count == 0)

    run(test)


def test_a_certificate_of_the_client_is_seen(run, authority: CertificateAuthority, tmp_path: Path):
    async def test() -> None:
        forged = CertificateAuthority(tmp_path, "another").issue_certificate("eve")
        async with running_port(authority, {}) as port:
            assert (
                await port.request_body(certificate=authority.issue_certificate("ada")) == "https 1"
            )
            assert await port.request_body() == "https 0"
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await port.request_body(certificate=forged)

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_little_is_held_of_what_clients_have_sent(run, authority: CertificateAuthority):
    """A connection held 600 KB of TLS after its client had sent as much, in no account."""

    def send_much(port: int) -> list[ssl.SSLSocket]:
        context, clients = authority.create_client_context(), []
        for _ in range(100):
            plain = socket.create_connection(("127.0.0.1", port), WAIT_TIMEOUT_S)
            clients.append(context.wrap_socket(plain, server_hostname="localhost"))
            clients[-1].sendall(REQUEST)
            clients[-1].sendall(b"\r\n" * 250_000)
        return clients

    def measure_kilobytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    async def test() -> None:
        async with running_port(authority, {}) as port:
            await port.request_body()
            before = measure_kilobytes()
            clients = await asyncio.to_thread(send_much, port.number)
            await wait_until(lambda: not port.listener.pending_handshakes)
            grown = measure_kilobytes() - before
            for client in clients:
                client.close()
        assert grown < 200 * len(clients), f"{grown} KB"

    run(test)


@pytest.mark.parametrize("forwarded", [True, ["127.0.0.1"]])
def test_a_proxy_that_is_believed_has_no_bound_of_its_own(run, authority, forwarded: Any):
    async def test() -> None:
        limits = {"connections": 50, "perAddress": 5}
        async with (
            running_port(authority, limits, forwarded=forwarded) as port,
            open_unfinished_clients(port.number, 60) as clients,
        ):
            await wait_until(lambda: count_open(clients) <= 50, "those too many are closed")
            assert count_open(clients) == 50

    run(test)


def test_closing_ends_the_handshakes_under_way(run, authority: CertificateAuthority):
    async def test() -> None:
        async with (
            running_port(authority, {}) as port,
            open_unfinished_clients(port.number, 50) as clients,
        ):
            await wait_until(lambda: port.listener.pending_handshakes == 50, "all are accepted")
            port.listener.close()
            await port.listener.wait_closed()
            assert port.listener.pending_handshakes == 0
            for client in clients:
                await client.wait_closed()

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
    for kind, bound in ((LimitKind.HANDSHAKES, every), (LimitKind.HANDSHAKES_OF_ADDRESS, one)):
        ledger = ConnectionCounts.from_settings(LimitSettings.model_validate(settings))
        taken = [ledger.acquire(0, [kind.build_key("a")], 0.0) for _ in range(bound + 1)]
        assert taken[:-1] == [None] * bound and taken[-1] is not None


async def test_several_workers_share_the_bounds():
    settings = LimitSettings.model_validate({"connections": 50, "perAddress": 3})
    keys = [
        LimitKind.HANDSHAKES.build_key(),
        LimitKind.HANDSHAKES_OF_ADDRESS.build_key(" 192.0.2.1"),
    ]
    async with worker_buses(2) as made:
        serve_counts(made.relay, settings)
        one, other = [Limits(settings, bus) for bus in made.buses]
        await made.start()
        first = await one.reserve_slot(keys)
        await one.reserve_slot(keys)
        await other.reserve_slot(keys)
        with pytest.raises(LimitReached) as refused:
            await other.reserve_slot(keys)
        assert refused.value.limit is LimitKind.HANDSHAKES_OF_ADDRESS
        assert not other.refused_counts  # of connections, which it was none of
        first()
        await other.reserve_slot(keys)
