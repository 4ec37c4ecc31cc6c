"""One stream of a socket, between its opening and its changes; nothing of Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection
from support.single_client import TP, create_client, get_hub, write_records
from support.waiting import wait_until

from gateway.config import Route
from gateway.core.client.terms import EndReason
from gateway.core.log.record import Ready
from gateway.hub.fanout.client import Client, Handover
from gateway.web.access import NO_GRANTS
from gateway.web.routing.messages import ChangeMessage, QueryPairs
from gateway.web.routing.open_streams import StreamRegistry
from gateway.web.routing.paths import Match
from gateway.web.websocket.handshake import HandshakeScope
from gateway.web.websocket.stream import WebSocketStream
from gateway.wire.websocket import iter_texts


class FakeStreamOwner:
    """Routes, session and socket of one client, as far as a stream knows them."""

    deflate = full = closed = False
    topics = ("orders",)
    condition_count = 0  # of its views

    def __init__(self, *, ready: bool = False) -> None:
        self.clients: list[Client] = []
        self.requested_queries: list[dict[str, str]] = []
        self.sent: list[str] = []
        self.routes: Any = self
        self.socket: Any = self
        self.handshake_scope = HandshakeScope(
            {"type": "websocket", "headers": [], "path": "/", "query_string": b""}
        )
        self.full_streams: list[WebSocketStream] = []
        self.ended_streams: list[WebSocketStream] = []
        self.open_tasks: list[asyncio.Task[None]] = []
        self.stream_registry = StreamRegistry()
        self._ready = ready

    def match(self, path: str) -> Match:
        return Match(Route.model_construct())

    def check_parameters(self, match: Any, query: QueryPairs) -> None:
        """Accept all parameters."""

    async def get_view(self, match: Any, query: QueryPairs) -> Any:
        return self

    async def open_client(self, match: Any, request: HTTPConnection, wire: Any) -> Client:
        return self._create_client(dict(request.query_params), wire, credit=7)

    async def resume_client(
        self, match: Any, query: QueryPairs, wire: Any, after: Handover
    ) -> Client:
        return self._create_client(dict(query), wire, credit=after.credit, handover=after)

    def _create_client(self, asked: dict[str, str], wire: Any, **options: Any) -> Client:
        self.requested_queries.append(asked)
        deadline = asyncio.get_running_loop().time() + 3600
        self.clients.append(create_client(wire, ready=self._ready, deadline=deadline, **options))
        return self.clients[-1]

    def build_stream(self, label: str | None, path: str, query: list[tuple[str, str]]) -> Any:
        return WebSocketStream(self, label, self.match(path), query)

    def start_opening(self, stream: WebSocketStream, after: Handover | None = None) -> None:
        self.open_tasks.append(asyncio.create_task(stream.open(handover=after)))

    def reopen(self, stream: WebSocketStream, handover: Handover) -> None:
        self.start_opening(stream, handover)

    def send_challenge(self, guard: str, expires_at: float) -> None: ...

    def on_stream_ended(self, stream: WebSocketStream) -> None:
        self.ended_streams.append(stream)

    def on_stream_full(self, stream: WebSocketStream) -> None:
        self.full_streams.append(stream)

    def write(self, data: bytes) -> None:
        self.sent += iter_texts(data)

    @property
    def sent_types(self) -> list[str]:
        return [text.partition('"type":"')[2].partition('"')[0] for text in self.sent]

    def mark_partition_ready(self) -> None:
        """The partition of the last client can be read."""
        client = self.clients[-1]
        client.subscription.channel.tail.apply_entries([Ready(TP, 0, 0, 0)], 0)
        for waiting in client.shared_tail.ready_waiters:
            waiting.set_result(None)


async def test_a_change_before_begin_waits_for_it_and_all_that_is_chosen_adds_up():
    """Begun sooner, its places would be unknown yet, and found by time."""
    hall = FakeStreamOwner()
    stream = hall.build_stream("a", "/orders", [("until", "5")])
    hall.start_opening(stream)
    await wait_until(lambda: hall.clients and hall.clients[0].shared_tail.ready_waiters)
    stream.apply_change(
        await stream.build_change(ChangeMessage(type="change", path="/stock?from=live"), NO_GRANTS)
    )
    stream.apply_change(
        await stream.build_change(ChangeMessage(type="change", fields=["/n"]), NO_GRANTS)
    )
    for _ in range(5):
        await asyncio.sleep(0)
    assert not hall.sent and hall.clients[0].subscription.end_reason is None

    hall.mark_partition_ready()
    await wait_until(lambda: len(hall.clients) == 2 and hall.clients[1].shared_tail.ready_waiters)
    assert hall.requested_queries[1] == {"until": "5", "from": "live", "fields": '["/n"]'}
    stream.grant_credit(3)
    assert hall.clients[1].subscription.credit == 10
    stream.stop()
    await wait_until(lambda: hall.ended_streams)
    assert hall.sent_types == ["begin", "begin", "end"] and '"changed":true' in hall.sent[1]
    assert stream.close_reason == "unsubscribed"
    await asyncio.gather(*hall.open_tasks)


async def test_what_is_granted_before_it_is_open_counts():
    hall = FakeStreamOwner(ready=True)
    stream = hall.build_stream("a", "/orders", [])
    stream.grant_credit(2)
    hall.start_opening(stream)
    await wait_until(lambda: hall.sent)
    assert hall.clients[0].subscription.credit == 9
    stream.close()


async def test_no_task_is_left_of_a_stream_that_runs():
    hall = FakeStreamOwner(ready=True)
    stream = hall.build_stream("a", "/orders", [])
    hall.start_opening(stream)
    await asyncio.gather(*hall.open_tasks)
    before = len(asyncio.all_tasks())
    write_records(hall.clients[0], b"1")
    await wait_until(lambda: "records" in hall.sent_types)
    assert len(asyncio.all_tasks()) == before == 1
    stream.close()


async def test_one_that_fills_the_socket_gives_its_turn_to_others_unless_it_is_alone():
    hall = FakeStreamOwner(ready=True)
    hall.full = True
    for label in ("a", None):  # one without a label is alone
        stream = hall.build_stream(label, "/orders", [])
        hall.start_opening(stream)
        await asyncio.gather(*hall.open_tasks)
        assert hall.full_streams == ([] if label is None else [stream])
        stream.close()
        hall.full_streams.clear()


async def test_one_whose_client_goes_while_it_opens_does_not_begin():
    hall = FakeStreamOwner()
    stream = hall.build_stream("a", "/orders", [])
    hall.start_opening(stream)
    await wait_until(lambda: hall.clients and hall.clients[0].shared_tail.ready_waiters)
    stream.close()
    await asyncio.gather(*hall.open_tasks)
    assert not hall.sent
    assert get_hub(hall.clients[0]).removed_clients == hall.clients


async def test_one_that_was_told_to_end_before_it_began_ends_as_it_begins():
    hall = FakeStreamOwner(ready=True)
    stream = hall.build_stream("a", "/orders", [])
    stream.end(EndReason.DISCONNECTED)
    hall.start_opening(stream)
    await wait_until(lambda: hall.ended_streams)
    assert hall.sent_types == ["begin", "end"] and stream.close_reason == "disconnected"
    await asyncio.gather(*hall.open_tasks)


async def test_one_that_was_told_to_end_while_another_client_takes_over_ends_as_that_one_begins():
    hall = FakeStreamOwner(ready=True)
    stream = hall.build_stream("a", "/orders", [])
    hall.start_opening(stream)
    await wait_until(lambda: hall.sent)
    stream.apply_change(
        await stream.build_change(ChangeMessage(type="change", fields=["/n"]), NO_GRANTS)
    )
    assert hall.clients[0].subscription.end_reason == "changed"
    stream.end(EndReason.ACCESS_REVOKED)
    await wait_until(lambda: hall.ended_streams)
    assert hall.sent_types == ["begin", "begin", "end"] and stream.close_reason == "access-revoked"
    await asyncio.gather(*hall.open_tasks)
