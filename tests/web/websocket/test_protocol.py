from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
import uvloop
from support import bad_frames
from support.certificates import CertificateAuthority
from support.raw_http import RunningServer, running_server
from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_BINARY,
    OPCODE_CLOSE,
    OPCODE_PING,
    OPCODE_PONG,
    OPCODE_TEXT,
    RawWebSocket,
    build_close,
    build_frame,
    build_handshake,
    deflate_payload,
)
from support.waiting import WAIT_TIMEOUT_S
from uvicorn.server import ServerState

from gateway.telemetry.logs import LogRateLimit
from gateway.web.http.edge import USER_TIMEOUT_S
from gateway.web.http.outlet import TAKEOVER
from gateway.web.http.transport import GatewayProtocol
from gateway.web.websocket.connection import WebSocketConnection
from gateway.web.websocket.protocol import ClientDisconnected, WebSocketProtocol
from gateway.wire import websocket as wire

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
LONG = "a" * 5000


class SocketApp:
    """Takes sockets over with the listener that their path names, or refuses them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.closings: list[tuple[int, str]] = []
        self.errors: list[BaseException] = []
        self.sent_count = self.received_count = self.count_before_mark = 0
        self.is_deaf = False

    async def __call__(self, scope, receive, send) -> None:
        assert scope["type"] == "websocket"
        assert (await receive())["type"] == "websocket.connect"
        kind = scope["path"].strip("/")
        if kind == "rejected":
            await send_rejection(send)
        elif kind == "forbidden":
            await send({"type": "websocket.close"})
            try:
                await send({"type": "websocket.close"})
            except ClientDisconnected as error:
                self.errors.append(error)
        else:
            await send({"type": "websocket.accept"})
            if kind == "failing":
                raise LookupError("on purpose")
            if kind != "forgetful":
                LISTENERS[kind](self, scope)


class EchoingListener:
    """Sends back what comes, in finished frames."""

    def __init__(self, app: SocketApp, scope: Any) -> None:
        self.app = app
        self.socket = scope["extensions"][TAKEOVER](self)

    @property
    def is_busy(self) -> bool:
        return self.app.is_deaf

    def on_message(self, message: str | bytes) -> None:
        self.app.received_count += 1
        if message == "me too":
            self.app.count_before_mark = self.app.received_count
        encode = wire.encode_deflated_text if self.socket.deflate else wire.encode_text
        self.socket.write(encode(message if isinstance(message, bytes) else message.encode()))

    def on_drained(self) -> None: ...

    def on_closed(self, code: int, reason: str) -> None:
        self.app.closings.append((code, reason))


class FloodingListener(EchoingListener):
    def __init__(self, app: SocketApp, scope: Any) -> None:
        super().__init__(app, scope)
        asyncio.get_running_loop().call_soon(self.on_drained)  # behind the handshake

    def on_drained(self) -> None:
        while not self.socket.full and not self.socket.transport.is_closing():
            self.app.sent_count += 1
            self.socket.write(wire.encode_text(b"a" * 60_000))


class ClosingListener(EchoingListener):
    def on_message(self, message: str | bytes) -> None:
        self.socket.close(3000, "enough")


LISTENERS = {"": EchoingListener, "flooding": FloodingListener, "closing": ClosingListener}


async def send_rejection(send) -> None:
    headers = [(b"content-type", b"application/problem+json")]
    await send({"type": "websocket.http.response.start", "status": 404, "headers": headers})
    body = b'{"title": "Not Found", "status": 404, "detail": "no such path"}'
    await send({"type": "websocket.http.response.body", "body": body})


class ImpatientConnection(WebSocketConnection):
    __slots__ = ()
    PING_INTERVAL_S = 0.1
    PONG_TIMEOUT_S = 0.3
    CLOSE_TIMEOUT_S = 0.3
    LINGER_S = 0.3
    DRAIN_TIMEOUT_S = 0.3


class UnhurriedConnection(WebSocketConnection):
    __slots__ = ()
    PING_INTERVAL_S = PONG_TIMEOUT_S = 120.0
    DRAIN_TIMEOUT_S = 120.0


class PatientConnection(ImpatientConnection):
    """It asks for no pongs: what ends it is the server's end."""

    __slots__ = ()
    PING_INTERVAL_S = 60.0


class PatientProtocol(WebSocketProtocol):
    CONNECTION_CLASS = PatientConnection


class ImpatientProtocol(WebSocketProtocol):
    CONNECTION_CLASS = ImpatientConnection
    LINGER_S = 0.3


class UnhurriedProtocol(WebSocketProtocol):
    CONNECTION_CLASS = UnhurriedConnection


class SocketServer:
    """A server and the app it serves."""

    def __init__(self, served: RunningServer, app: SocketApp) -> None:
        self.served, self.app, self.port = served, app, served.port

    def open_socket(self, path: str = "/", *headers: bytes) -> RawWebSocket:
        return RawWebSocket.open_socket(self.port, path, *headers)

    def get_connection(self) -> WebSocketConnection:
        """The only one, once it is a WebSocket."""

        def find_connections() -> list[WebSocketConnection]:
            return [c for c in self.served.connections if isinstance(c, WebSocketConnection)]

        wait_until(lambda: len(find_connections()) == 1, "one connection")
        return find_connections()[0]

    def call_in_loop(self, function: Callable[[], Any]) -> None:
        self.served.loop.call_soon_threadsafe(function)


Start = Callable[..., SocketServer]


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


on_both_loops = pytest.mark.parametrize("start", LOOPS, indirect=True)
"""For what the loop has a part in: how it closes, pauses and reads sockets."""


@pytest.fixture(scope="module", params=["asyncio"])
def start(request) -> Iterator[Start]:
    """One server for each protocol and loop, for all tests here."""
    with ExitStack() as stack:
        running: dict[Any, SocketServer] = {}

        def start_server(
            ws: type[WebSocketProtocol] = UnhurriedProtocol, compression: bool = False
        ) -> SocketServer:
            key = (ws, compression)
            if key not in running:
                app = SocketApp()
                options = {"ws": ws, "ws_per_message_deflate": compression}
                served = running_server(app, GatewayProtocol, LOOPS[request.param], **options)
                running[key] = SocketServer(stack.enter_context(served), app)
            server = running[key]
            wait_until(lambda: not server.served.connections, "the last test's end")
            forgotten = threading.Event()
            # In the loop: it may still be telling the application of the last test's end.
            server.call_in_loop(server.app.forget)
            server.call_in_loop(forgotten.set)
            wait_until(forgotten.is_set, "a fresh application")
            return server

        yield start_server


@pytest.fixture
def echo(start: Start) -> SocketServer:
    return start()


# Messages


@on_both_loops
def test_messages_of_all_lengths_come_back(echo: SocketServer):
    with echo.open_socket() as socket:
        for length in (0, 1, 125, 126, 127, 4096, 65_535, 65_536, bad_frames.MIB):
            socket.send_bytes(build_frame(OPCODE_TEXT, b"a" * length))
            assert socket.read_text() == "a" * length


def test_binary_messages_and_fragments_reach_the_application(echo: SocketServer):
    with echo.open_socket() as socket:
        pieces = [
            build_frame(OPCODE_BINARY, b"\xff", fin=False),
            build_frame(OPCODE_PING, b"x"),
            build_frame(0, b"\x00"),
        ]
        socket.send_bytes(b"".join(pieces))
        assert (pong := socket.read_frame()).opcode == OPCODE_PONG and pong.payload == b"x"
        assert socket.read_frame().payload == b"\xff\x00"


def test_lengths_with_more_bytes_than_they_need_are_read_all_the_same(echo: SocketServer):
    """RFC 6455 5.2 forbids it to the sender; the library does not mind, and nobody is harmed."""
    with echo.open_socket() as socket:
        socket.send_bytes(
            build_frame(OPCODE_TEXT, b"short", length_bytes=2)
            + build_frame(OPCODE_TEXT, b"short", length_bytes=8)
        )
        assert [socket.read_text(), socket.read_text()] == ["short", "short"]


def test_frames_that_came_with_the_handshake_wait_for_its_answer(echo: SocketServer):
    with RawWebSocket(echo.port) as socket:
        socket.send_bytes(
            build_handshake("/") + build_frame(OPCODE_PING) + build_frame(OPCODE_TEXT, b"early")
        )
        assert socket.read_head().status == 101
        assert socket.read_frame().opcode == OPCODE_PONG
        assert socket.read_text() == "early"


def test_a_message_in_pieces_of_a_byte_is_whole(echo: SocketServer):
    with echo.open_socket() as socket:
        for byte in build_frame(OPCODE_TEXT, b"hello"):
            socket.send_bytes(bytes((byte,)))
        assert socket.read_text() == "hello"


def test_messages_behind_one_another_keep_their_order(echo: SocketServer):
    with echo.open_socket() as socket:
        socket.send_bytes(b"".join(build_frame(OPCODE_TEXT, b"%d" % n) for n in range(5000)))
        assert [int(socket.read_text()) for _ in range(5000)] == list(range(5000))


# Finished frames


def test_finished_frames_go_out_as_they_are(start: Start):
    with start().open_socket() as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT, LONG.encode()))
        said = socket.read_frame()
        assert (said.payload.decode(), said.is_compressed) == (LONG, False)


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
def test_finished_frames_are_compressed_for_whoever_has_the_window(start, offer, compressed):
    with start(compression=True).open_socket("/", b"Sec-WebSocket-Extensions: " + offer) as socket:
        for _ in range(2):
            socket.send_bytes(build_frame(OPCODE_TEXT, LONG.encode()))
            said = socket.read_frame()
            assert said.is_compressed is compressed
            assert len(said.payload) < 100 or not compressed


def test_compressed_messages_of_both_sides_refer_to_no_earlier_one(start: Start):
    with start(compression=True).open_socket("/", DEFLATE_HEADER) as socket:
        answer = socket.response.headers["sec-websocket-extensions"]
        assert "server_no_context_takeover" in answer and "server_max_window_bits=12" in answer
        for _ in range(3):
            socket.send_bytes(build_frame(OPCODE_TEXT, deflate_payload(LONG.encode()), rsv=4))
            assert socket.read_text() == LONG


@pytest.mark.parametrize("name", bad_frames.DECLINED_EXTENSIONS)
def test_an_offer_that_does_not_fit_is_declined(start: Start, name: str):
    offer = b"Sec-WebSocket-Extensions: " + bad_frames.DECLINED_EXTENSIONS[name]
    with start(compression=True).open_socket("/", offer) as socket:
        assert "sec-websocket-extensions" not in socket.response.headers
        socket.send_bytes(build_frame(OPCODE_TEXT, LONG.encode()))
        assert not socket.read_frame().is_compressed


def test_nothing_is_compressed_unless_it_is_configured(echo: SocketServer):
    with echo.open_socket("/", DEFLATE_HEADER) as socket:
        assert "sec-websocket-extensions" not in socket.response.headers
        socket.send_bytes(build_frame(OPCODE_TEXT, deflate_payload(b"{}"), rsv=4))
        assert socket.read_close_code() == 1002


def test_a_client_that_does_not_read_holds_its_sender_back_and_its_end_is_told(start: Start):
    running = start()
    with RawWebSocket(running.port, receive_buffer=4096) as socket:
        socket.send_bytes(build_handshake("/flooding"))
        wait_until(lambda: running.app.sent_count, "the first frame")
        connection = running.get_connection()
        wait_until(lambda: connection.full, "a full buffer")
        assert connection.transport.get_write_buffer_size() < 1024 * 1024
    wait_until(lambda: running.app.closings, "the application is told")
    assert running.app.closings[0][0] == 1006


def test_a_connection_that_was_taken_over_has_no_task_and_no_protocol_but_the_peer(start: Start):
    running = start()
    with running.open_socket() as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT, b"a"))
        assert socket.read_text() == "a"
        state = running.served.server.server_state
        wait_until(lambda: not state.tasks, "the end of the application's call")
        assert running.served.connections == {running.get_connection()}
        socket.send_bytes(build_frame(OPCODE_TEXT, b"b"))
        assert socket.read_text() == "b"


def test_messages_before_the_handshake_are_the_applications_error(start: Start, caplog):
    async def app(scope, receive, send):
        with pytest.raises(RuntimeError, match=r"behind websocket\.accept"):
            scope["extensions"][TAKEOVER](None)
        await send({"type": "websocket.send", "text": "early"})

    with (
        running_server(
            app, GatewayProtocol, uvloop.new_event_loop, ws=WebSocketProtocol, log_config=None
        ) as served,
        RawWebSocket(served.port) as socket,
    ):
        socket.send_bytes(build_handshake("/"))
        assert socket.read_last_response().problem["status"] == 500
    assert "before websocket.accept" in caplog.text


# What is broken


@pytest.mark.parametrize("case", bad_frames.CLOSING_CASES)
def test_ends_with_the_right_code(echo: SocketServer, case: str, caplog):
    code, sent = bad_frames.CLOSING_CASES[case]
    with echo.open_socket() as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code
    wait_until(lambda: echo.app.closings, "the application is told")
    assert echo.app.closings[0][0] == (1005 if code is None else code)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("case", bad_frames.INVALID_COMPRESSED)
def test_ends_with_the_right_code_when_compressed(start: Start, case: str):
    code, sent = bad_frames.INVALID_COMPRESSED[case]
    running = start(compression=True)
    with running.open_socket("/", DEFLATE_HEADER) as socket:
        socket.send_bytes(sent)
        assert socket.read_close_code() == code
    assert not running.app.received_count


@pytest.mark.parametrize("case", bad_frames.TRUNCATED_FRAMES)
def test_a_client_that_ends_within_a_frame_is_let_go(echo: SocketServer, case: str):
    with echo.open_socket() as socket:
        socket.send_bytes(bad_frames.TRUNCATED_FRAMES[case])
        socket.socket.shutdown(1)
        socket.read_close()
    wait_until(lambda: echo.app.closings, "the application is told")
    assert not echo.app.received_count


@pytest.mark.parametrize("case", bad_frames.REFUSED_HANDSHAKES)
def test_a_wrong_handshake_is_refused_with_a_problem(echo: SocketServer, case: str):
    status, request = bad_frames.REFUSED_HANDSHAKES[case]
    with RawWebSocket(echo.port) as socket:
        socket.send_bytes(request)
        answer = socket.read_last_response()
    assert answer.problem["status"] == status
    if status == 426:
        assert answer.headers["sec-websocket-version"] == "13"


@pytest.mark.parametrize("case", bad_frames.INVALID_EXTENSIONS)
def test_extensions_that_cannot_be_read_are_refused(start: Start, case: str):
    status, request = bad_frames.INVALID_EXTENSIONS[case]
    with RawWebSocket(start(compression=True).port) as socket:
        socket.send_bytes(request)
        assert socket.read_last_response().problem["status"] == status


def test_messages_before_a_broken_frame_are_still_taken(echo: SocketServer):
    with echo.open_socket() as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT, b"right") + build_frame(3))
        assert socket.read_close_code() == 1002
    wait_until(lambda: echo.app.closings, "the application is told")
    assert echo.app.received_count == 1


def test_pings_and_fragments_at_an_ordinary_pace_are_no_flood(echo: SocketServer):
    with echo.open_socket() as socket:
        message = b"".join(build_frame(0, b"a", fin=False) for _ in range(900))
        socket.send_bytes(build_frame(OPCODE_TEXT, fin=False) + message + build_frame(0))
        assert socket.read_text() == "a" * 900


# Bounds


@on_both_loops
def test_what_the_application_does_not_take_is_not_read(start: Start):
    running = start()
    running.app.is_deaf = True
    with running.open_socket() as socket:
        socket.socket.settimeout(0.5)
        flood = b"".join(build_frame(OPCODE_TEXT, b"%d" % n) for n in range(20_000))
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                socket.socket.sendall(flood)
        socket.socket.settimeout(WAIT_TIMEOUT_S)
        running.app.is_deaf = False
        running.call_in_loop(running.get_connection().resume_reading)
        assert [int(socket.read_text()) for _ in range(3)] == [0, 1, 2]


def test_a_flood_of_messages_takes_turns_with_others(start: Start):
    """Its listener is never busy, so only the connection can make room."""
    running = start()
    with running.open_socket() as flooding, running.open_socket() as other:
        running.app.received_count = 0
        flooding.send_bytes(b"".join(build_frame(OPCODE_TEXT) for _ in range(40_000)))
        wait_until(lambda: running.app.received_count, "the flood")
        other.send_bytes(build_frame(OPCODE_TEXT, b"me too"))
        assert other.read_text() == "me too"
        assert running.app.count_before_mark < 40_000


@on_both_loops
def test_pongs_do_not_pile_up_for_a_client_that_reads_nothing(start: Start):
    running = start()
    with RawWebSocket(running.port, receive_buffer=4096) as socket:
        socket.send_bytes(build_handshake("/flooding"))
        assert socket.read_head().status == 101
        connection = running.get_connection()
        wait_until(lambda: connection.full, "a full buffer")
        before = connection.transport.get_write_buffer_size()
        socket.send_bytes(build_frame(OPCODE_PING, b"a" * 125) * 500)
        wait_until(lambda: connection.pending_pong, "a pong that waits")
        assert len(connection.pending_pong) == 127
        assert connection.transport.get_write_buffer_size() <= before
        while (said := socket.read_frame()).opcode != OPCODE_PONG:
            assert said.opcode == OPCODE_TEXT


def test_a_ping_that_is_not_answered_ends_the_connection(start: Start):
    running = start(ImpatientProtocol)
    with running.open_socket() as socket:
        assert socket.read_close_code() == 1011
    wait_until(lambda: running.app.closings, "the application is told")
    assert running.app.closings[0] == (1011, "a ping was not answered")


def test_answered_pings_go_on(start: Start):
    with start(ImpatientProtocol).open_socket() as socket:
        for _ in range(8):
            said = socket.read_frame()
            assert said.opcode == OPCODE_PING
            socket.send_bytes(build_frame(OPCODE_PONG, said.payload))


def test_a_client_that_reads_slowly_is_no_dead_one(start: Start):
    """Its pong is behind megabytes that it has not taken yet."""
    running = start(ImpatientProtocol)
    with RawWebSocket(running.port, receive_buffer=4096) as socket:
        socket.send_bytes(build_handshake("/flooding"))
        connection = running.get_connection()
        wait_until(lambda: connection.full, "a full buffer")
        time.sleep(1.0)  # not a wait: as long as it takes to be given up three times
        assert not connection.closed
        assert socket.read_head().status == 101


@on_both_loops
def test_a_client_that_goes_on_sending_behind_its_end_is_cut(start: Start):
    running = start(ImpatientProtocol)
    with running.open_socket() as socket:
        socket.send_bytes(build_frame(3))
        wait_until(lambda: not socket.send_bytes(b"a" * 65536), "cut")
    wait_until(lambda: not running.served.connections, "nothing is left")


def test_a_client_that_does_not_answer_a_close_is_let_go(start: Start):
    running = start(ImpatientProtocol)
    with running.open_socket("/closing") as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT))
        while (said := socket.read_frame()).opcode == OPCODE_PING:
            pass
        assert (said.opcode, said.close_code, said.payload[2:]) == (OPCODE_CLOSE, 3000, b"enough")
        socket.read_close()


# Ends


@on_both_loops
def test_a_close_of_the_application_waits_for_the_clients(echo: SocketServer):
    with echo.open_socket("/closing") as socket:
        socket.send_bytes(build_frame(OPCODE_TEXT))
        assert socket.read_frame().close_code == 3000
        socket.send_bytes(build_frame(OPCODE_TEXT, b"late") * 2000 + build_close(3000))
        socket.read_close()


def test_an_application_may_reject_with_a_problem_and_the_connection_ends(echo: SocketServer):
    with RawWebSocket(echo.port) as socket:
        socket.send_bytes(build_handshake("/rejected"))
        assert socket.read_last_response().problem["detail"] == "no such path"
    with RawWebSocket(echo.port) as socket:
        socket.send_bytes(build_handshake("/forbidden"))
        assert socket.read_last_response().problem["status"] == 403
    wait_until(lambda: echo.app.errors, "the error for what it sends behind that")


@pytest.mark.parametrize(
    ("path", "logged"), [("/failing", "on purpose"), ("/forgetful", "neither took over")]
)
def test_an_application_that_does_not_take_over_ends_with_1011(echo, path, logged, caplog):
    with echo.open_socket(path) as socket:
        assert socket.read_close_code() == 1011
    assert logged in caplog.text


def test_a_server_that_ends_leaves_the_goodbye_to_the_application(start: Start):
    running = start()
    with running.open_socket("/closing") as socket:
        connection = running.get_connection()
        running.call_in_loop(connection.shutdown)
        socket.send_bytes(build_frame(OPCODE_TEXT))
        assert socket.read_frame().close_code == 3000
        socket.send_bytes(build_close(3000))
        socket.read_close()


@on_both_loops
def test_a_server_that_ends_says_so_itself_if_the_application_does_not(start: Start):
    running = start(PatientProtocol)
    with running.open_socket() as socket:
        running.call_in_loop(running.get_connection().shutdown)
        assert socket.read_close_code() == 1012
    wait_until(lambda: running.app.closings, "the application is told")
    assert running.app.closings[0][0] == 1012


def test_a_peer_that_vanished_is_noticed_by_the_kernel(echo: SocketServer):
    import socket as sockets

    with echo.open_socket() as socket:
        peer = echo.get_connection().transport.get_extra_info("socket")
        timeout = peer.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT)
        assert timeout == USER_TIMEOUT_S * 1000
        socket.send_bytes(build_frame(OPCODE_TEXT, b"a"))
        assert socket.read_text() == "a"


@pytest.mark.parametrize("loop", LOOPS)
def test_over_tls(tmp_path, loop: str):
    authority = CertificateAuthority(tmp_path)
    signed = authority.issue_certificate("server")
    context = ssl.create_default_context(cafile=str(authority.certificate_path))
    app = SocketApp()

    def open_tls_socket(path: str, **options: int) -> RawWebSocket:
        socket = RawWebSocket(served.port, **options)
        socket.socket = context.wrap_socket(socket.socket, server_hostname="localhost")
        socket.send_bytes(build_handshake(path))
        assert socket.read_head().status == 101
        return socket

    with running_server(app, GatewayProtocol, LOOPS[loop], signed, ws=UnhurriedProtocol) as served:
        with open_tls_socket("/") as socket:
            socket.send_bytes(build_frame(OPCODE_TEXT, b"a" * 200_000))
            assert socket.read_text() == "a" * 200_000
            socket.send_bytes(build_frame(3))
            while (said := socket.read_frame()).opcode != OPCODE_CLOSE:
                pass
            assert said.close_code == 1002
        wait_until(lambda: not served.connections, "nothing is left")
        with open_tls_socket("/") as socket:
            socket.send_bytes(
                build_frame(OPCODE_TEXT, b"a" * 200_000) + build_frame(OPCODE_TEXT, b"b")
            )
            assert [socket.read_text(), socket.read_text()] == ["a" * 200_000, "b"]
        with open_tls_socket("/flooding", receive_buffer=4096) as socket:
            connection = SocketServer(served, app).get_connection()
            wait_until(lambda: connection.full, "a full buffer")
            assert connection.transport.get_write_buffer_size() < 1024 * 1024
            assert [socket.read_text() for _ in range(100)] == ["a" * 60_000] * 100
        wait_until(lambda: not served.connections, "nothing is left")


# Logs


def test_no_query_and_no_ordinary_event_is_logged(start: Start, caplog, monkeypatch):
    monkeypatch.setattr(LogRateLimit, "filter", lambda *_: True)  # lines of other tests count
    caplog.set_level(logging.DEBUG)
    options = {"ws": UnhurriedProtocol, "log_level": "debug", "log_config": None}
    with running_server(SocketApp(), GatewayProtocol, uvloop.new_event_loop, **options) as served:
        for path in ("/?token=hunter2", "/rejected?token=hunter2", "/forbidden?token=hunter2"):
            with RawWebSocket(served.port) as socket:
                socket.send_bytes(build_handshake(path, b"Authorization: Bearer hunter2"))
                status = socket.read_head().status
                if status == 101:
                    socket.send_bytes(build_frame(OPCODE_TEXT, b"hunter2") + build_frame(3))
                    assert socket.read_close_code() == 1002
    assert "hunter2" not in caplog.text
    assert "closed 127.0.0.1" in caplog.text and "1002" in caplog.text


# uvicorn


def test_uvicorn_still_has_what_the_protocol_builds_on():
    told = f"uvicorn {uvicorn.__version__} changed; read websocket/protocol.py"
    config = uvicorn.Config(SocketApp(), lifespan="off", ws=WebSocketProtocol, log_config=None)
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
