"""One stream of a socket, between its opening and its changes; nothing of Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection
from support.one_client import TP, client_of
from support.until import until

from gateway.core.record import Ready
from gateway.hub.client import Client
from gateway.web.messages import Change
from gateway.web.subscribed import Subscribed
from gateway.wire.websocket import messages


class Hall:
    """Routes and the socket of one client, as far as a stream knows them."""

    deflate = False
    connection = HTTPConnection({"type": "http", "headers": [], "path": "/", "query_string": b""})
    topics = ("orders",)

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.asked: list[dict[str, str]] = []
        self.sent: list[str] = []

    def match(self, path: str) -> Any:
        return path

    async def view(self, match: Any, request: HTTPConnection) -> Any:
        return self

    async def open(self, match: Any, request: HTTPConnection, wire: Any) -> Client:
        self.asked.append(dict(request.query_params))
        deadline = asyncio.get_running_loop().time() + 3600
        self.clients.append(client_of(wire, credit=7, ready=False, deadline=deadline))
        return self.clients[-1]

    async def send(self, frames: bytes) -> None:
        self.sent += messages(frames)

    def get_ready(self) -> None:
        """The partition of the last client can be read."""
        client = self.clients[-1]
        client.subscription.channel.tail.turn([Ready(TP, 0, 0, 0)], 0)
        for waiting in client._shared.changed:
            waiting.set_result(None)


async def test_a_change_before_begin_waits_for_it_and_all_that_is_chosen_adds_up():
    """Begun sooner, its places would be unknown yet, and found by time."""
    hall: Any = Hall()
    stream = Subscribed(hall, hall, "a", "/orders", [("until", "5")])
    running = asyncio.create_task(stream.run())
    await until(lambda: hall.clients and hall.clients[0]._shared.changed)
    await stream.change(Change(type="change", path="/stock?from=live"))
    await stream.change(Change(type="change", fields=["/n"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not hall.sent and hall.clients[0].subscription.ended is None

    hall.get_ready()
    await until(lambda: len(hall.clients) == 2 and hall.clients[1]._shared.changed)
    assert hall.asked[1].pop("lastEventId")
    assert hall.asked[1] == {"until": "5", "from": "live", "fields": '["/n"]', "credit": "7"}
    stream.grant(3)
    assert hall.clients[1].subscription.credit == 10
    stream.stop()
    await asyncio.wait_for(running, 30)
    kinds = [text.partition('"type":"')[2].partition('"')[0] for text in hall.sent]
    assert kinds == ["begin", "begin", "end"] and '"changed":true' in hall.sent[1]
