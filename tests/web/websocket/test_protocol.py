from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import uvicorn
import uvloop
from support import bad_frames
from support.certificates import Authority
from support.raw_http import Served, serving
from support.raw_websocket import (
    BINARY,
    CLOSE,
    DEFLATE,
    PING,
    PONG,
    TEXT,
    Socket,
    close,
    frame,
    handshake,
    squeezed,
)
from support.until import PATIENCE
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState

from gateway.web.http.outlet import TAKEOVER
from gateway.web.http.transport import GatewayProtocol
from gateway.web.websocket.connection import Peer
from gateway.web.websocket.protocol import WebSocketProtocol
from gateway.wire import websocket as wire

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
LONG = "a" * 5000


class App:
    """Echoes; other paths do other things. `ended`: what a connection was told last."""

    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.raised: list[BaseException] = []
        self.received = self.before_me = 0
        self.go_on = threading.Event()

    async def __call__(self, scope, receive, send) -> None:
        assert scope["type"] == "websocket"
        assert (await receive())["type"] == "websocket.connect"
        kind = scope["path"].strip("/") or "echo"
        if kind == "rejected":
            await reject(send)
        elif kind == "forbidden":
            await send({"type": "websocket.close"})
        elif kind == "failing":
            await send({"type": "websocket.accept"})
            raise LookupError("on purpose")
        else:
            await send({"type": "websocket.accept"})
            await getattr(self, kind, self.echo)(scope, receive, send)

    async def echo(self, scope, receive, send) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            self.received += 1
            if message.get("text") == "me too":
                self.before_me = self.received
            with suppress(ClientDisconnected):
                await send({**message, "type": "websocket.send"})
        self.ended.append((message["code"], message.get("reason", "")))

    async def framed(self, scope, receive, send) -> None:
        Framing(scope)

    async def flooding(self, scope, receive, send) -> None:
        data = "a" * 60_000
        try:
            while True:
                self.received += 1
                await send({"type": "websocket.send", "text": data})
                await asyncio.sleep(0)
        except BaseException as error:
            self.raised.append(error)
            raise

    async def deaf(self, scope, receive, send) -> None:
        await asyncio.to_thread(self.go_on.wait, PATIENCE)
        await self.echo(scope, receive, send)

    async def closing(self, scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 3000, "reason": "enough"})

    async def both(self, scope, receive, send) -> None:
        await send({"type": "websocket.close", "code": 3000})
        try:
            await send({"type": "websocket.send", "text": "late"})
        except ClientDisconnected as error:
            self.raised.append(error)

    async def late(self, scope, receive, send) -> None:
        """Too late to take it over."""
        message = await receive()
        assert scope["extensions"][TAKEOVER](Framing.__new__(Framing)) is None
        await send({**message, "type": "websocket.send"})


class Framing:
    """Takes a connection over, and answers in finished frames."""

    busy = False

    def __init__(self, scope: Any) -> None:
        self.socket = scope["extensions"][TAKEOVER](self)

    def heard(self, message: str) -> None:
        make = wire.deflated if self.socket.deflate else wire.frame
        self.socket.write(make(message.encode()))

    def drained(self) -> None: ...

    def lost(self, code: int, reason: str) -> None: ...


async def reject(send) -> None:
    headers = [(b"content-type", b"application/problem+json")]
    await send({"type": "websocket.http.response.start", "status": 404, "headers": headers})
    body = b'{"title": "Not Found", "status": 404, "detail": "no such path"}'
    await send({"type": "websocket.http.response.body", "body": body})


class HastyPeer(Peer):
    __slots__ = ()
    PING_SECONDS = 0.1
    PONG_SECONDS = 0.3
    CLOSE_SECONDS = 0.3
    LINGER_SECONDS = 0.3
    DRAIN_SECONDS = 0.3


class UnhurriedPeer(Peer):
    __slots__ = ()
    PING_SECONDS = PONG_SECONDS = 120.0
    DRAIN_SECONDS = 120.0


class PatientPeer(HastyPeer):
    """It asks for no pongs: what ends it is the server's end."""

    __slots__ = ()
    PING_SECONDS = 60.0


class Patient(WebSocketProtocol):
    PEER = PatientPeer


class Hasty(WebSocketProtocol):
    PEER = HastyPeer
    LINGER_SECONDS = 0.3


class Unhurried(WebSocketProtocol):
    PEER = UnhurriedPeer


class Running:
    """A server and the app it serves."""

    def __init__(self, served: Served, app: App) -> None:
        self.served, self.app, self.port = served, app, served.port

    def open(self, path: str = "/", *headers: bytes) -> Socket:
        return Socket.open(self.port, path, *headers)

    def connection(self) -> Peer:
        """The only one, once it is a WebSocket."""

        def found() -> list[Peer]:
            return [c for c in self.served.connections if isinstance(c, Peer)]

        eventually(lambda: len(found()) == 1, "one connection")
        return found()[0]

    def call(self, function: Callable[[], Any]) -> None:
        self.served.loop.call_soon_threadsafe(function)


Start = Callable[..., Running]


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


@pytest.fixture(scope="module", params=LOOPS)
def start(request) -> Iterator[Start]:
    """One server for each protocol and loop, for all tests here."""
    with ExitStack() as stack:
        running: dict[Any, Running] = {}

        def started(ws: type[WebSocketProtocol] = Unhurried, compression: bool = False) -> Running:
            key = (ws, compression)
            if key not in running:
                app = App()
                options = {"ws": ws, "ws_per_message_deflate": compression}
                served = serving(app, GatewayProtocol, LOOPS[request.param], **options)
                running[key] = Running(stack.enter_context(served), app)
            running[key].app.ended.clear()
            running[key].app.raised.clear()
            running[key].app.received = 0
            running[key].app.go_on.clear()
            eventually(lambda: not running[key].served.connections, "the last test's end")
            return running[key]

        yield started


@pytest.fixture
def echo(start: Start) -> Running:
    return start()


# Messages


def test_messages_of_all_lengths_come_back(echo: Running):
    with echo.open() as socket:
        for length in (0, 1, 125, 126, 127, 4096, 65_535, 65_536, bad_frames.MIB):
            socket.send(frame(TEXT, b"a" * length))
            assert socket.text() == "a" * length


def test_binary_messages_and_fragments_reach_the_application(echo: Running):
    with echo.open() as socket:
        pieces = [frame(BINARY, b"\xff", fin=False), frame(PING, b"x"), frame(0, b"\x00")]
        socket.send(b"".join(pieces))
        assert (pong := socket.said()).opcode == PONG and pong.payload == b"x"
        assert (said := socket.said()).opcode == BINARY and said.payload == b"\xff\x00"


def test_lengths_with_more_bytes_than_they_need_are_read_all_the_same(echo: Running):
    """RFC 6455 5.2 forbids it to the sender; the library does not mind, and nobody is harmed."""
    with echo.open() as socket:
        socket.send(frame(TEXT, b"short", wide=2) + frame(TEXT, b"short", wide=8))
        assert [socket.text(), socket.text()] == ["short", "short"]


def test_frames_that_came_with_the_handshake_wait_for_its_answer(echo: Running):
    with Socket(echo.port) as socket:
        socket.send(handshake("/") + frame(PING) + frame(TEXT, b"early"))
        assert socket.answer_head().status == 101
        assert socket.said().opcode == PONG
        assert socket.text() == "early"


def test_a_message_in_pieces_of_a_byte_is_whole(echo: Running):
    with echo.open() as socket:
        for byte in frame(TEXT, b"hello"):
            socket.send(bytes((byte,)))
        assert socket.text() == "hello"


def test_messages_behind_one_another_keep_their_order(echo: Running):
    with echo.open() as socket:
        socket.send(b"".join(frame(TEXT, b"%d" % n) for n in range(5000)))
        assert [int(socket.text()) for _ in range(5000)] == list(range(5000))


# Finished frames


def test_finished_frames_go_out_as_they_are(start: Start):
    with start().open("/framed") as socket:
        socket.send(frame(TEXT, LONG.encode()))
        said = socket.said()
        assert (said.payload.decode(), said.compressed) == (LONG, False)


@pytest.mark.parametrize(
    ("offer", "compressed"),
    {
        b"permessage-deflate": True,
        b"permessage-deflate; client_max_window_bits": True,
        b"permessage-deflate; server_max_window_bits=12": True,
        b"permessage-deflate; server_max_window_bits=15; client_no_context_takeover": True,
        b"permessage-deflate; server_max_window_bits=11": False,
        b"permessage-deflate; server_max_window_bits=9, permessage-deflate": False,
        b"permessage-deflate; unknown=1, permessage-deflate": True,
        b"x-other": False,
    }.items(),
)
def test_finished_frames_are_compressed_for_whoever_has_the_window(
    start: Start, offer: bytes, compressed: bool
):
    with start(compression=True).open("/framed", b"Sec-WebSocket-Extensions: " + offer) as socket:
        for _ in range(2):
            socket.send(frame(TEXT, LONG.encode()))
            said = socket.said()
            assert said.compressed is compressed
            assert len(said.payload) < 100 or not compressed


def test_the_servers_own_messages_do_not_disturb_the_shared_ones(start: Start):
    """Both are compressed, neither refers to the other."""
    with start(compression=True).open("/", DEFLATE) as socket:
        answer = socket.answered.headers["sec-websocket-extensions"]
        assert "server_no_context_takeover" in answer and "server_max_window_bits=12" in answer
        for _ in range(3):
            socket.send(frame(TEXT, squeezed(LONG.encode()), rsv=4))
            assert socket.text() == LONG


@pytest.mark.parametrize("name", bad_frames.UNFIT_EXTENSIONS)
def test_an_offer_that_does_not_fit_is_declined(start: Start, name: str):
    offer = b"Sec-WebSocket-Extensions: " + bad_frames.UNFIT_EXTENSIONS[name]
    with start(compression=True).open("/framed", offer) as socket:
        assert "sec-websocket-extensions" not in socket.answered.headers
        socket.send(frame(TEXT, LONG.encode()))
        assert not socket.said().compressed


def test_nothing_is_compressed_unless_it_is_configured(echo: Running):
    with echo.open("/", DEFLATE) as socket:
        assert "sec-websocket-extensions" not in socket.answered.headers
        socket.send(frame(TEXT, squeezed(b"{}"), rsv=4))
        assert socket.closed() == 1002


def test_a_client_that_does_not_read_holds_its_sender_back_and_its_end_is_told(start: Start):
    running = start()
    with Socket(running.port, receive_buffer=4096) as socket:
        socket.send(handshake("/flooding"))
        eventually(lambda: running.app.received, "the first frame")
        connection = running.connection()
        eventually(lambda: connection.full, "a full buffer")
        assert connection.transport.get_write_buffer_size() < 1024 * 1024
    eventually(lambda: running.app.raised, "the application is told")
    assert isinstance(running.app.raised[0], ClientDisconnected)


def test_a_connection_that_was_taken_over_has_no_task_and_no_protocol_but_the_peer(start: Start):
    running = start()
    with running.open("/framed") as socket:
        socket.send(frame(TEXT, b"a"))
        assert socket.text() == "a"
        state = running.served.server.server_state
        eventually(lambda: not state.tasks, "the end of the application's call")
        assert running.served.connections == {running.connection()}
        socket.send(frame(TEXT, b"b"))
        assert socket.text() == "b"


def test_an_application_that_awaited_something_first_gets_events_and_not_the_connection(
    start: Start,
):
    with start().open("/late") as socket:
        socket.send(frame(TEXT, b"a"))
        assert socket.text() == "a"
        assert socket.said().code == 1000, "an application that returns has ended it"


def test_messages_before_the_handshake_are_the_applications_error(start: Start, caplog):
    async def app(scope, receive, send):
        assert scope["extensions"][TAKEOVER](None) is None
        await send({"type": "websocket.send", "text": "early"})

    with (
        serving(app, GatewayProtocol, uvloop.new_event_loop, ws=WebSocketProtocol) as served,
        Socket(served.port) as socket,
    ):
        socket.send(handshake("/"))
        assert socket.last_answer().problem["status"] == 500
    assert "before websocket.accept" in caplog.text


def test_messages_behind_a_close_find_the_client_gone(echo: Running):
    """Another task of the application may have closed while this one waited for room."""
    with echo.open("/both") as socket:
        assert socket.said().code == 3000
        eventually(lambda: echo.app.raised, "the application is told")
    assert isinstance(echo.app.raised[0], ClientDisconnected)


# What is broken


@pytest.mark.parametrize("case", bad_frames.CLOSED)
def test_ends_with_the_right_code(echo: Running, case: str, caplog):
    code, sent = bad_frames.CLOSED[case]
    with echo.open() as socket:
        socket.send(sent)
        assert socket.closed() == code
    eventually(lambda: echo.app.ended, "the application is told")
    assert echo.app.ended[0][0] == (1005 if code is None else code)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("case", bad_frames.COMPRESSED)
def test_ends_with_the_right_code_when_compressed(start: Start, case: str):
    code, sent = bad_frames.COMPRESSED[case]
    running = start(compression=True)
    with running.open("/", DEFLATE) as socket:
        socket.send(sent)
        assert socket.closed() == code
    assert not running.app.received


@pytest.mark.parametrize("case", bad_frames.CUT)
def test_a_client_that_ends_within_a_frame_is_let_go(echo: Running, case: str):
    with echo.open() as socket:
        socket.send(bad_frames.CUT[case])
        socket.socket.shutdown(1)
        socket.closes()
    eventually(lambda: echo.app.ended, "the application is told")
    assert not echo.app.received


@pytest.mark.parametrize("case", bad_frames.REFUSED)
def test_a_wrong_handshake_is_refused_with_a_problem(echo: Running, case: str):
    status, request = bad_frames.REFUSED[case]
    with Socket(echo.port) as socket:
        socket.send(request)
        answer = socket.last_answer()
    assert answer.problem["status"] == status
    if status == 426:
        assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.parametrize("case", bad_frames.BAD_EXTENSIONS)
def test_extensions_that_cannot_be_read_are_refused(start: Start, case: str):
    status, request = bad_frames.BAD_EXTENSIONS[case]
    with Socket(start(compression=True).port) as socket:
        socket.send(request)
        assert socket.last_answer().problem["status"] == status


def test_messages_before_a_broken_frame_are_still_taken(echo: Running):
    with echo.open() as socket:
        socket.send(frame(TEXT, b"right") + frame(3))
        assert socket.closed() == 1002
    eventually(lambda: echo.app.ended, "the application is told")
    assert echo.app.received == 1


def test_pings_and_fragments_at_an_ordinary_pace_are_no_flood(echo: Running):
    with echo.open() as socket:
        message = b"".join(frame(0, b"a", fin=False) for _ in range(900))
        socket.send(frame(TEXT, fin=False) + message + frame(0))
        assert socket.text() == "a" * 900


# Bounds


def test_what_the_application_does_not_take_is_not_read(start: Start):
    running = start()
    with running.open("/deaf") as socket:
        socket.socket.settimeout(0.5)
        flood = b"".join(frame(TEXT, b"%d" % n) for n in range(20_000))
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                socket.socket.sendall(flood)
        assert len(running.connection()._listener._events) <= Unhurried.QUEUE
        socket.socket.settimeout(PATIENCE)
        running.app.go_on.set()
        assert [int(socket.text()) for _ in range(3)] == [0, 1, 2]


def test_a_flood_of_messages_takes_turns_with_others(start: Start):
    """Its application never waits for anything, so only the protocol can make room."""
    running = start()
    with running.open() as flooding, running.open() as other:
        running.app.received = 0
        flooding.send(b"".join(frame(TEXT) for _ in range(40_000)))
        eventually(lambda: running.app.received, "the flood")
        other.send(frame(TEXT, b"me too"))
        assert other.text() == "me too"
        assert running.app.before_me < 40_000


def test_pongs_do_not_pile_up_for_a_client_that_reads_nothing(start: Start):
    running = start()
    with Socket(running.port, receive_buffer=4096) as socket:
        socket.send(handshake("/flooding"))
        assert socket.answer_head().status == 101
        connection = running.connection()
        eventually(lambda: connection.full, "a full buffer")
        before = connection.transport.get_write_buffer_size()
        socket.send(frame(PING, b"a" * 125) * 500)
        eventually(lambda: connection._pong, "a pong that waits")
        assert len(connection._pong) == 127
        assert connection.transport.get_write_buffer_size() <= before
        while (said := socket.said()).opcode != PONG:
            assert said.opcode == TEXT


def test_a_ping_that_is_not_answered_ends_the_connection(start: Start):
    running = start(Hasty)
    with running.open() as socket:
        assert socket.closed() == 1011
    eventually(lambda: running.app.ended, "the application is told")
    assert running.app.ended[0] == (1011, "a ping was not answered")


def test_answered_pings_go_on(start: Start):
    with start(Hasty).open() as socket:
        for _ in range(8):
            said = socket.said()
            assert said.opcode == PING
            socket.send(frame(PONG, said.payload))


def test_a_client_that_reads_slowly_is_no_dead_one(start: Start):
    """Its pong is behind megabytes that it has not taken yet."""
    running = start(Hasty)
    with Socket(running.port, receive_buffer=4096) as socket:
        socket.send(handshake("/flooding"))
        connection = running.connection()
        eventually(lambda: connection.full, "a full buffer")
        time.sleep(1.0)  # not a wait: as long as it takes to be given up three times
        assert not connection.closed
        assert socket.answer_head().status == 101


def test_a_client_that_goes_on_sending_behind_its_end_is_cut(start: Start):
    running = start(Hasty)
    with running.open() as socket:
        socket.send(frame(3))
        eventually(lambda: not socket.send(b"a" * 65536), "cut")
    eventually(lambda: not running.served.connections, "nothing is left")


def test_a_client_that_does_not_answer_a_close_is_let_go(start: Start):
    running = start(Hasty)
    with running.open("/closing") as socket:
        socket.send(frame(TEXT))
        while (said := socket.said()).opcode == PING:
            pass
        assert (said.opcode, said.code, said.payload[2:]) == (CLOSE, 3000, b"enough")
        socket.closes()


# Ends


def test_a_close_of_the_application_waits_for_the_clients(echo: Running):
    with echo.open("/closing") as socket:
        socket.send(frame(TEXT))
        assert socket.said().code == 3000
        socket.send(frame(TEXT, b"late") * 2000 + close(3000))
        socket.closes()


def test_an_application_may_reject_with_a_problem_and_the_connection_ends(echo: Running):
    with Socket(echo.port) as socket:
        socket.send(handshake("/rejected"))
        assert socket.last_answer().problem["detail"] == "no such path"
    with Socket(echo.port) as socket:
        socket.send(handshake("/forbidden"))
        assert socket.last_answer().problem["status"] == 403


def test_an_application_that_fails_ends_with_1011(echo: Running, caplog):
    with echo.open("/failing") as socket:
        assert socket.closed() == 1011
    assert "on purpose" in caplog.text


def test_a_server_that_ends_leaves_the_goodbye_to_the_application(start: Start):
    running = start()
    with running.open("/closing") as socket:
        connection = running.connection()
        running.call(connection.shutdown)
        socket.send(frame(TEXT))
        assert socket.said().code == 3000
        socket.send(close(3000))
        socket.closes()


def test_a_server_that_ends_says_so_itself_if_the_application_does_not(start: Start):
    running = start(Patient)
    with running.open() as socket:
        running.call(running.connection().shutdown)
        assert socket.closed() == 1012
    eventually(lambda: running.app.ended, "the application is told")
    assert running.app.ended[0][0] == 1012


def test_a_peer_that_vanished_is_noticed_by_the_kernel(echo: Running):
    import socket as sockets

    with echo.open() as socket:
        peer = echo.connection().transport.get_extra_info("socket")
        timeout = peer.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT)
        assert timeout == GatewayProtocol.USER_TIMEOUT * 1000
        socket.send(frame(TEXT, b"a"))
        assert socket.text() == "a"


@pytest.mark.parametrize("loop", LOOPS)
def test_over_tls(tmp_path, loop: str):
    authority = Authority(tmp_path)
    signed = str(authority.signed("server"))
    files = {"ssl_certfile": signed, "ssl_keyfile": signed}
    context = ssl.create_default_context(cafile=str(authority.path))
    app = App()

    def opened(path: str, **options: int) -> Socket:
        socket = Socket(served.port, **options)
        socket.socket = context.wrap_socket(socket.socket, server_hostname="localhost")
        socket.send(handshake(path))
        assert socket.answer_head().status == 101
        return socket

    with serving(app, GatewayProtocol, LOOPS[loop], ws=Unhurried, **files) as served:
        with opened("/") as socket:
            socket.send(frame(TEXT, b"a" * 200_000))
            assert socket.text() == "a" * 200_000
            socket.send(frame(3))
            while (said := socket.said()).opcode != CLOSE:
                pass
            assert said.code == 1002
        eventually(lambda: not served.connections, "nothing is left")
        with opened("/framed") as socket:
            socket.send(frame(TEXT, b"a" * 200_000) + frame(TEXT, b"b"))
            assert [socket.text(), socket.text()] == ["a" * 200_000, "b"]
        with opened("/flooding", receive_buffer=4096) as socket:
            connection = Running(served, app).connection()
            eventually(lambda: connection.full, "a full buffer")
            assert connection.transport.get_write_buffer_size() < 1024 * 1024
            assert [socket.text() for _ in range(100)] == ["a" * 60_000] * 100
        eventually(lambda: not served.connections, "nothing is left")


# Logs


def test_no_query_and_no_ordinary_event_is_logged(start: Start, caplog):
    caplog.set_level(logging.DEBUG)
    options = {"ws": Unhurried, "log_level": "debug", "log_config": None}
    with serving(App(), GatewayProtocol, uvloop.new_event_loop, **options) as served:
        for path in ("/?token=hunter2", "/rejected?token=hunter2", "/forbidden?token=hunter2"):
            with Socket(served.port) as socket:
                socket.send(handshake(path, b"Authorization: Bearer hunter2"))
                status = socket.answer_head().status
                if status == 101:
                    socket.send(frame(TEXT, b"hunter2") + frame(3))
                    assert socket.closed() == 1002
    assert "hunter2" not in caplog.text
    assert "closed 127.0.0.1" in caplog.text and "1002" in caplog.text


# uvicorn


def test_uvicorn_still_has_what_the_protocol_builds_on():
    told = f"uvicorn {uvicorn.__version__} changed; read upgraded.py"
    config = uvicorn.Config(App(), lifespan="off", ws=WebSocketProtocol)
    config.load()
    for name in ("loaded_app", "root_path", "asgi_version", "ws_per_message_deflate"):
        assert hasattr(config, name), f"{told}: {name}"
    assert config.ws_protocol_class is WebSocketProtocol, told
    state = ServerState()
    assert isinstance(state.connections, set) and isinstance(state.tasks, set), told
    assert isinstance(state.default_headers, list), told
    assert weakref.ref(state)() is state and hash(state) is not None, told


def test_uvicorn_still_ends_each_connection_by_its_shutdown_and_waits_until_it_is_gone():
    shutdown = inspect.getsource(uvicorn.Server.shutdown)
    assert "for connection in list(self.server_state.connections)" in shutdown
    assert "connection.shutdown()" in shutdown
    waiting = inspect.getsource(uvicorn.Server._wait_tasks_to_complete)
    assert "while self.server_state.connections" in waiting
