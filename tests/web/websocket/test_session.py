"""A session between its socket and its streams; nothing of Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.single_client import create_client, get_hub, write_records
from support.waiting import wait_until

from gateway.client_memory import ClientMemory
from gateway.config import Limits as Settings
from gateway.core.client.terms import EndReason
from gateway.errors import RequestError
from gateway.hub.fanout.client import Client
from gateway.hub.reads.view import View
from gateway.web.access import NO_GRANTS, Granted
from gateway.web.http.limits import Limits
from gateway.web.routing.open_streams import StreamChange, StreamRegistry
from gateway.web.routing.views import parse_selection
from gateway.web.websocket.handshake import HandshakeScope
from gateway.web.websocket.session import MAX_STREAMS, Session
from gateway.web.workers.bus import Bus
from gateway.wire.websocket import iter_texts


class FakeMatch(str):
    """A path, as what it leads to."""

    granted = NO_GRANTS
    route = SimpleNamespace(guarded={})
    values = ()

    @property
    def path(self) -> str:
        return self

    def _replace(self, granted: Granted) -> FakeMatch:
        return self


class FakeSlot:
    """The place of a connection."""

    def __init__(self) -> None:
        self.leave_count = 0

    def __call__(self) -> None:
        self.leave_count += 1

    async def identify(self, granted: Granted) -> None: ...


class SessionSurroundings:
    """Routes, hub and socket, as far as a session knows them. Access is asked for at the `door`,
    which a message of the path /locked waits for."""

    deflate = full = closed = draining = False

    def __init__(self, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.headers = headers
        self.hubs: Any = self
        self.limits = Limits(Settings(), Bus())
        self.client_memory = ClientMemory()
        self.drain_callbacks: set[Callable[[], None]] = set()
        self.websocket_count = 0
        self.clients: dict[str, Client] = {}
        self.sent: list[dict[str, Any]] = []
        self.code = 0
        self.resume_count = 0
        self.may_admit = asyncio.Event()
        self.stream_registry = StreamRegistry()
        self.place = FakeSlot()
        self.session = Session(self, self._build_handshake_scope(), None, self.place)  # type: ignore[arg-type]

    def _build_handshake_scope(self) -> HandshakeScope:
        return HandshakeScope(
            {"type": "websocket", "headers": self.headers, "path": "/ws", "query_string": b""}
        )

    # routes

    def match(self, path: str) -> Any:
        return FakeMatch(path)

    async def admit(self, match: Any, connection: Any, token: str | None = None) -> Any:
        if match == "/locked" or token == "late":
            await self.may_admit.wait()
        if match == "/forbidden" or token == "bad":
            raise RequestError(403, "Forbidden", "not for you")
        return match

    settings: Any = None

    def is_current(self, match: Any) -> bool:
        return True

    async def refresh(self, match: Any, connection: Any, token: str | None = None) -> Any:
        return match

    async def open_client(self, match: Any, request: Any, wire: Any) -> Client:
        if match == "/broken":
            raise LookupError("on purpose")
        self.clients[match] = create_client(wire)
        return self.clients[match]

    def check_parameters(self, match: Any, query: Any) -> None: ...

    async def get_view(self, match: Any, query: Any) -> Any:
        filters, fields = parse_selection(query)
        return View(("orders",), filters, "value", "error", fields)

    # the socket

    def write(self, data: bytes) -> None:
        self.sent += map(json.loads, iter_texts(data))

    def close(self, code: int, reason: str = "") -> None:
        if not self.closed:
            self.closed, self.code = True, code
            self.session.on_closed(code, reason)

    def resume_reading(self) -> None:
        self.resume_count += 1

    # the client

    def receive_message(self, kind: str, **members: Any) -> None:
        self.session.on_message(json.dumps({"type": kind, **members}))

    def list_sent(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == kind]


@pytest.fixture
async def house() -> SessionSurroundings:
    made = SessionSurroundings()
    made.session.start(made, None, [])  # type: ignore[arg-type]
    return made


async def test_what_comes_while_something_waits_is_done_behind_it_in_order(house):
    house.receive_message("subscribe", id="a", path="/locked")
    house.receive_message("ping", id="behind")
    house.receive_message("unsubscribe", id="a")
    house.receive_message("subscribe", id="b", path="/open")
    house.receive_message("ping", id="last")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not house.sent
    house.may_admit.set()
    await wait_until(lambda: house.list_sent("end") and len(house.list_sent("begin")) == 2)
    assert [message["id"] for message in house.list_sent("pong")] == ["behind", "last"]
    assert house.list_sent("end")[0]["id"] == "a"
    assert house.list_sent("end")[0]["reason"] == "unsubscribed"
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert house.resume_count


async def test_what_goes_wrong_in_one_message_is_told_and_the_next_is_done(house):
    house.receive_message("subscribe", id="a", path="/forbidden")
    house.receive_message("credit", id="nobody", n=1)
    house.receive_message("subscribe", id="b", path="/open")
    await wait_until(lambda: house.list_sent("begin"))
    assert [(error["id"], error["code"]) for error in house.list_sent("error")] == [
        ("a", "forbidden"),
        ("nobody", "unknown-subscription"),
    ]
    house.receive_message("token", jwt="bad")
    await wait_until(lambda: len(house.list_sent("error")) == 3)
    assert not house.closed


async def test_a_stream_that_breaks_is_told_and_logged(house: SessionSurroundings, caplog: Any):
    house.receive_message("subscribe", id="a", path="/broken")
    await wait_until(lambda: house.list_sent("error"))
    assert "on purpose" in caplog.text and "on purpose" not in str(house.sent)
    house.receive_message("subscribe", id="a", path="/open")
    await wait_until(lambda: house.list_sent("begin"))


async def test_after_a_full_socket_it_is_the_turn_of_those_who_did_not_fill_it(house):
    for label in "abc":
        house.receive_message("subscribe", id=label, path=f"/{label}")
    await wait_until(lambda: len(house.list_sent("begin")) == 3)
    house.sent.clear()
    for first, second in ("ab", "bc", "ca"):
        house.full = False
        house.session.on_drained()
        house.full = True
        for label in "abc":
            write_records(house.clients[f"/{label}"], b"%d" % len(house.sent))
        house.session.on_stream_full(house.session.streams[first])
        assert next(iter(house.session.streams)) == second


async def test_a_lost_session_leaves_no_client_no_task_and_nobody_to_tell(house):
    house.receive_message("subscribe", id="a", path="/open")
    await wait_until(lambda: house.list_sent("begin"))
    house.receive_message("subscribe", id="b", path="/locked")
    house.receive_message("ping")
    house.session.on_closed(1006, "")
    assert not house.drain_callbacks
    assert house.websocket_count == 0
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert get_hub(house.clients["/open"]).removed_clients == [house.clients["/open"]]
    assert not house.list_sent("pong") and house.place.leave_count == 1


async def test_the_stream_of_a_path_is_not_opened_for_a_client_that_has_left():
    """It kept its place in the queue for look-ups of starts, and its handshake."""
    house, is_opening = SessionSurroundings(), asyncio.Event()

    async def wait_for_a_turn(*_: object) -> None:
        is_opening.set()
        await asyncio.Event().wait()

    house.open_client = wait_for_a_turn  # type: ignore[assignment,method-assign]
    house.session.start(house, FakeMatch("/open"), [])  # type: ignore[arg-type]
    handshake = house.session.handshake_scope.build_connection()
    opening = asyncio.create_task(house.session.open_path_stream(handshake))
    house.session.add_task(opening)  # as the endpoint adds the task of the handshake
    await wait_until(is_opening.is_set)
    house.session.on_closed(1006, "")
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_a_drain_closes_at_once_where_nothing_runs_and_else_behind_the_last_end(house):
    house.receive_message("subscribe", id="a", path="/open")
    await wait_until(lambda: house.list_sent("begin"))
    house.draining = True
    (leave,) = house.drain_callbacks
    house.clients["/open"].end(EndReason.DRAIN)
    leave()
    assert not house.closed
    await wait_until(lambda: house.closed)
    assert (house.code, house.sent[-1]["type"]) == (1012, "end")

    idle = SessionSurroundings()
    idle.session.start(idle, None, [])  # type: ignore[arg-type]
    (leave,) = idle.drain_callbacks
    leave()
    assert idle.code == 1012


async def test_there_are_so_many_streams_and_no_more(house: SessionSurroundings):
    for n in range(MAX_STREAMS + 1):
        house.receive_message("subscribe", id=f"{n}", path=f"/{n}")
    await wait_until(lambda: house.list_sent("error"))
    (error,) = house.list_sent("error")
    assert (error["id"], error["code"]) == (f"{MAX_STREAMS}", "too-many-subscriptions")


async def test_the_filters_of_a_socket_have_a_limited_number_of_conditions(house):
    """Each stream might have 64: those of 20 sockets took 0.1 s of each record."""

    def subscribe(label: str, count: int) -> None:
        filters = [{"key": {"prefix": f"{label}{n}"}} for n in range(count)]
        house.receive_message("subscribe", id=label, path="/open", filter=filters)

    for n in range(10):
        subscribe(f"{n}", 64)
    house.receive_message("subscribe", id="plain", path="/open")
    subscribe("filtered", 1)
    house.receive_message("subscribe", id="projected", path="/open", fields=["/a"])
    house.receive_message("change", id="plain", filter={"key": "ada"})
    await wait_until(lambda: len(house.list_sent("begin")) == 11)
    assert [(error["id"], error["code"]) for error in house.list_sent("error")] == [
        ("filtered", "too-many-subscriptions"),
        ("projected", "too-many-subscriptions"),
        ("plain", "too-many-subscriptions"),
    ]
    house.receive_message("unsubscribe", id="0")
    await wait_until(lambda: house.list_sent("end"))
    subscribe("filtered", 64)
    await wait_until(lambda: len(house.list_sent("begin")) == 12)


class ReloadedSurroundings(SessionSurroundings):
    """A reload takes the access away while Kafka is asked for the topics of a view."""

    is_reloaded = False

    async def get_view(self, match: Any, query: Any) -> Any:
        self.is_reloaded = True
        return await super().get_view(match, query)

    async def refresh(self, match: Any, connection: Any, token: str | None = None) -> Any:
        if self.is_reloaded:
            raise RequestError(403, "Forbidden", "not any more")
        return match


async def test_a_reload_while_the_conditions_of_a_filter_are_counted_counts():
    """The stream was opened by the guards and the route of before, and kept them."""
    reloaded = ReloadedSurroundings()
    reloaded.session.start(reloaded, None, [])  # type: ignore[arg-type]
    reloaded.receive_message("subscribe", id="a", path="/open", filter={"key": "ada"})
    await wait_until(lambda: reloaded.sent)
    assert [message["type"] for message in reloaded.sent] == ["error"]


async def test_a_token_that_is_checked_during_a_reload_does_not_undo_it(house):
    """The streams showed what they had shown before, by a route that no configuration had."""
    house.receive_message("subscribe", id="a", path="/old")
    await wait_until(lambda: house.clients)
    (stream,) = house.session._streams.values()
    house.receive_message("token", jwt="late")
    await asyncio.sleep(0)
    view: Any = SimpleNamespace(condition_count=0)
    stream._has_begun = False  # so that what it is to show stays to be seen
    stream.apply_change(StreamChange(FakeMatch("/new"), [], view))  # type: ignore[arg-type]
    house.may_admit.set()
    await wait_until(lambda: house.list_sent("renewed"))
    assert stream.matches[-1] == "/new"


class RenewedSurroundings(SessionSurroundings):
    """It notes which paths a new token is checked for, by which connection, and in which turn."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.connections: list[Any] = []

    async def admit(self, match: Any, connection: Any, token: str | None = None) -> Any:
        if token is not None:
            self.events.append(match)
            self.connections.append(connection)
            asyncio.get_running_loop().call_soon(self.events.append, "turn")
        return match


async def test_a_token_is_checked_once_for_a_path_and_others_run_between_paths():
    """100 streams were checked in one piece, each with a handshake of its own: 0.28 s."""
    renewed = RenewedSurroundings()
    renewed.session.start(renewed, None, [])  # type: ignore[arg-type]
    for label, path in zip("abcd", ("/a", "/a", "/a", "/b"), strict=True):
        renewed.receive_message("subscribe", id=label, path=path)
    await wait_until(lambda: len(renewed.list_sent("begin")) == 4)
    renewed.receive_message("token", jwt="new")
    await wait_until(lambda: renewed.list_sent("renewed"))
    assert renewed.events[:3] == ["/a", "turn", "/b"]
    first, second = renewed.connections
    assert first is second


async def test_what_a_socket_keeps_of_its_handshake_counts_as_memory():
    made = SessionSurroundings([(b"cookie", b"x" * 60_000)])
    made.session.start(made, None, [])  # type: ignore[arg-type]
    assert made.client_memory.total > 60_000
    made.close(1000)
    assert made.client_memory.total == 0


def test_an_idle_session_has_no_dictionary():
    assert "__dict__" not in dir(Session)
