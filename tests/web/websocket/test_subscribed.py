"""One stream of a socket, between its opening and its changes; nothing of Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection
from support.one_client import TP, client_of, write
from support.until import until

from gateway.config import Route
from gateway.core.log.record import Ready
from gateway.hub.fanout.client import Client, Handover
from gateway.web.access import NOBODY
from gateway.web.routing.routes import Match
from gateway.web.streams.open_streams import Openings
from gateway.web.websocket.caller import Caller
from gateway.web.websocket.messages import Change
from gateway.web.websocket.request import Query
from gateway.web.websocket.subscribed import Subscribed
from gateway.wire.websocket import messages


class Hall:
    """Routes, session and socket of one client, as far as a stream knows them."""

    deflate = full = closed = False
    topics = ("orders",)

    def __init__(self, *, ready: bool = False) -> None:
        self.clients: list[Client] = []
        self.asked: list[dict[str, str]] = []
        self.sent: list[str] = []
        self.routes: Any = self
        self.socket: Any = self
        self.caller = Caller({"type": "websocket", "headers": [], "path": "/", "query_string": b""})
        self.turns: list[Subscribed] = []
        self.over: list[Subscribed] = []
        self.opening: list[asyncio.Task[None]] = []
        self.openings = Openings()
        self._ready = ready

    def match(self, path: str) -> Match:
        return Match(Route.model_construct(), {})

    async def view(self, match: Any, query: Query) -> Any:
        return self

    async def open(self, match: Any, request: HTTPConnection, wire: Any) -> Client:
        return self._client(dict(request.query_params), wire, credit=7)

    async def go_on(self, match: Any, query: Query, wire: Any, after: Handover) -> Client:
        return self._client(dict(query), wire, credit=after.credit, after=after)

    def _client(self, asked: dict[str, str], wire: Any, **options: Any) -> Client:
        self.asked.append(asked)
        deadline = asyncio.get_running_loop().time() + 3600
        self.clients.append(client_of(wire, ready=self._ready, deadline=deadline, **options))
        return self.clients[-1]

    def stream(self, label: str | None, path: str, query: list[tuple[str, str]]) -> Any:
        return Subscribed(self, label, self.match(path), query)

    def begin(self, stream: Subscribed, after: Handover | None = None) -> None:
        self.opening.append(asyncio.create_task(stream.open(after=after)))

    def reopen(self, stream: Subscribed, after: Handover) -> None:
        self.begin(stream, after)

    def challenge(self, guard: str, expires: float) -> None: ...

    def ended(self, stream: Subscribed) -> None:
        self.over.append(stream)

    def filled(self, stream: Subscribed) -> None:
        self.turns.append(stream)

    def write(self, data: bytes) -> None:
        self.sent += messages(data)

    @property
    def kinds(self) -> list[str]:
        return [text.partition('"type":"')[2].partition('"')[0] for text in self.sent]

    def get_ready(self) -> None:
        """The partition of the last client can be read."""
        client = self.clients[-1]
        client.subscription.channel.tail.turn([Ready(TP, 0, 0, 0)], 0)
        for waiting in client._shared.changed:
            waiting.set_result(None)


async def test_a_change_before_begin_waits_for_it_and_all_that_is_chosen_adds_up():
    """Begun sooner, its places would be unknown yet, and found by time."""
    hall = Hall()
    stream = hall.stream("a", "/orders", [("until", "5")])
    hall.begin(stream)
    await until(lambda: hall.clients and hall.clients[0]._shared.changed)
    stream.go_to(await stream.changed(Change(type="change", path="/stock?from=live"), NOBODY))
    stream.go_to(await stream.changed(Change(type="change", fields=["/n"]), NOBODY))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not hall.sent and hall.clients[0].subscription.ended is None

    hall.get_ready()
    await until(lambda: len(hall.clients) == 2 and hall.clients[1]._shared.changed)
    assert hall.asked[1] == {"until": "5", "from": "live", "fields": '["/n"]'}
    stream.grant(3)
    assert hall.clients[1].subscription.credit == 10
    stream.stop()
    await until(lambda: hall.over)
    assert hall.kinds == ["begin", "begin", "end"] and '"changed":true' in hall.sent[1]
    assert stream.reason == "unsubscribed"
    await asyncio.gather(*hall.opening)


async def test_what_is_granted_before_it_is_open_counts():
    hall = Hall(ready=True)
    stream = hall.stream("a", "/orders", [])
    stream.grant(2)
    hall.begin(stream)
    await until(lambda: hall.sent)
    assert hall.clients[0].subscription.credit == 9
    stream.close()


async def test_no_task_is_left_of_a_stream_that_runs():
    hall = Hall(ready=True)
    stream = hall.stream("a", "/orders", [])
    hall.begin(stream)
    await asyncio.gather(*hall.opening)
    before = len(asyncio.all_tasks())
    write(hall.clients[0], b"1")
    await until(lambda: "records" in hall.kinds)
    assert len(asyncio.all_tasks()) == before == 1
    stream.close()


async def test_one_that_fills_the_socket_gives_its_turn_to_others_unless_it_is_alone():
    hall = Hall(ready=True)
    hall.full = True
    for label in ("a", None):  # one without a label is alone
        stream = hall.stream(label, "/orders", [])
        hall.begin(stream)
        await asyncio.gather(*hall.opening)
        assert hall.turns == ([] if label is None else [stream])
        stream.close()
        hall.turns.clear()


async def test_one_whose_client_goes_while_it_opens_does_not_begin():
    hall = Hall()
    stream = hall.stream("a", "/orders", [])
    hall.begin(stream)
    await until(lambda: hall.clients and hall.clients[0]._shared.changed)
    stream.close()
    await asyncio.gather(*hall.opening)
    assert not hall.sent
    assert hall.clients[0]._hub.left == hall.clients  # type: ignore[attr-defined]


async def test_one_that_was_told_to_end_before_it_began_ends_as_it_begins():
    hall = Hall(ready=True)
    stream = hall.stream("a", "/orders", [])
    stream.end("disconnected")
    hall.begin(stream)
    await until(lambda: hall.over)
    assert hall.kinds == ["begin", "end"] and stream.reason == "disconnected"
    await asyncio.gather(*hall.opening)


async def test_one_that_was_told_to_end_while_another_client_takes_over_ends_as_that_one_begins():
    hall = Hall(ready=True)
    stream = hall.stream("a", "/orders", [])
    hall.begin(stream)
    await until(lambda: hall.sent)
    stream.go_to(await stream.changed(Change(type="change", fields=["/n"]), NOBODY))
    assert hall.clients[0].subscription.ended == "changed"
    stream.end("access-revoked")
    await until(lambda: hall.over)
    assert hall.kinds == ["begin", "begin", "end"] and stream.reason == "access-revoked"
    await asyncio.gather(*hall.opening)
