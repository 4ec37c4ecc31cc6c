"""A session between its socket and its streams; nothing of Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.one_client import client_of, write
from support.until import until

from gateway.config import Limits as Settings
from gateway.errors import RequestError
from gateway.hub.fanout.client import Client
from gateway.web.access import NOBODY, Granted
from gateway.web.routing.limits import Limits
from gateway.web.streams.open_streams import Openings
from gateway.web.websocket.caller import Caller
from gateway.web.websocket.session import MOST_STREAMS, Session
from gateway.web.workers.bus import Bus
from gateway.wire.websocket import messages


class At(str):
    """A path, as what it leads to."""

    granted = NOBODY

    @property
    def path(self) -> str:
        return self


class Held:
    """The place of a connection."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self) -> None:
        self.left += 1

    async def identify(self, granted: Granted) -> None: ...


class House:
    """Routes, hub and socket, as far as a session knows them. Access is asked for at the `door`,
    which a message of the path /locked waits for."""

    deflate = full = closed = draining = False

    def __init__(self) -> None:
        self.hubs: Any = self
        self.limits = Limits(Settings(), Bus())
        self.leaving: set[Callable[[], None]] = set()
        self.clients: dict[str, Client] = {}
        self.sent: list[dict[str, Any]] = []
        self.code = 0
        self.went_on = 0
        self.door = asyncio.Event()
        self.openings = Openings()
        self.place = Held()
        self.session = Session(self, self._caller(), None, self.place)  # type: ignore[arg-type]

    def _caller(self) -> Caller:
        return Caller({"type": "websocket", "headers": [], "path": "/ws", "query_string": b""})

    # routes

    def match(self, path: str) -> Any:
        return At(path)

    async def admit(self, match: Any, connection: Any, token: str | None = None) -> Any:
        if match == "/locked" or token == "late":
            await self.door.wait()
        if match == "/forbidden" or token == "bad":
            raise RequestError(403, "Forbidden", "not for you")
        return match

    settings: Any = None

    def is_current(self, match: Any) -> bool:
        return True

    async def refresh(self, match: Any, connection: Any, token: str | None = None) -> Any:
        return match

    async def open(self, match: Any, request: Any, wire: Any) -> Client:
        if match == "/broken":
            raise LookupError("on purpose")
        self.clients[match] = client_of(wire)
        return self.clients[match]

    # the socket

    def write(self, data: bytes) -> None:
        self.sent += map(json.loads, messages(data))

    def close(self, code: int, reason: str = "") -> None:
        if not self.closed:
            self.closed, self.code = True, code
            self.session.lost(code, reason)

    def go_on(self) -> None:
        self.went_on += 1

    # the client

    def say(self, kind: str, **members: Any) -> None:
        self.session.heard(json.dumps({"type": kind, **members}))

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == kind]


@pytest.fixture
async def house() -> House:
    made = House()
    made.session.start(made, None, [])  # type: ignore[arg-type]
    return made


async def test_what_comes_while_something_waits_is_done_behind_it_in_order(house: House):
    house.say("subscribe", id="a", path="/locked")
    house.say("ping", id="behind")
    house.say("unsubscribe", id="a")
    house.say("subscribe", id="b", path="/open")
    house.say("ping", id="last")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not house.sent
    house.door.set()
    await until(lambda: house.heard("end") and len(house.heard("begin")) == 2)
    assert [message["id"] for message in house.heard("pong")] == ["behind", "last"]
    assert house.heard("end")[0]["id"] == "a"
    assert house.heard("end")[0]["reason"] == "unsubscribed"
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert house.went_on


async def test_what_goes_wrong_in_one_message_is_told_and_the_next_is_done(house: House):
    house.say("subscribe", id="a", path="/forbidden")
    house.say("credit", id="nobody", n=1)
    house.say("subscribe", id="b", path="/open")
    await until(lambda: house.heard("begin"))
    assert [(error["id"], error["code"]) for error in house.heard("error")] == [
        ("a", "forbidden"),
        ("nobody", "unknown-subscription"),
    ]
    house.say("token", jwt="bad")
    await until(lambda: len(house.heard("error")) == 3)
    assert not house.closed


async def test_a_stream_that_breaks_is_told_and_logged(house: House, caplog: Any):
    house.say("subscribe", id="a", path="/broken")
    await until(lambda: house.heard("error"))
    assert "on purpose" in caplog.text and "on purpose" not in str(house.sent)
    house.say("subscribe", id="a", path="/open")
    await until(lambda: house.heard("begin"))


async def test_after_a_full_socket_it_is_the_turn_of_those_who_did_not_fill_it(house: House):
    for label in "abc":
        house.say("subscribe", id=label, path=f"/{label}")
    await until(lambda: len(house.heard("begin")) == 3)
    house.sent.clear()
    for first, second in ("ab", "bc", "ca"):
        house.full = False
        house.session.drained()
        house.full = True
        for label in "abc":
            write(house.clients[f"/{label}"], b"%d" % len(house.sent))
        house.session.filled(house.session._streams[first])
        assert next(iter(house.session._streams)) == second


async def test_a_lost_session_leaves_no_client_no_task_and_nobody_to_tell(house: House):
    house.say("subscribe", id="a", path="/open")
    await until(lambda: house.heard("begin"))
    house.say("subscribe", id="b", path="/locked")
    house.say("ping")
    house.session.lost(1006, "")
    assert not house.leaving
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert house.clients["/open"]._hub.left == [house.clients["/open"]]  # type: ignore[attr-defined]
    assert not house.heard("pong") and house.place.left == 1


async def test_a_drain_closes_at_once_where_nothing_runs_and_else_behind_the_last_end(house: House):
    house.say("subscribe", id="a", path="/open")
    await until(lambda: house.heard("begin"))
    house.draining = True
    (leave,) = house.leaving
    house.clients["/open"].end("drain")
    leave()
    assert not house.closed
    await until(lambda: house.closed)
    assert (house.code, house.sent[-1]["type"]) == (1012, "end")

    idle = House()
    idle.session.start(idle, None, [])  # type: ignore[arg-type]
    (leave,) = idle.leaving
    leave()
    assert idle.code == 1012


async def test_there_are_so_many_streams_and_no_more(house: House):
    for n in range(MOST_STREAMS + 1):
        house.say("subscribe", id=f"{n}", path=f"/{n}")
    await until(lambda: house.heard("error"))
    (error,) = house.heard("error")
    assert (error["id"], error["code"]) == (f"{MOST_STREAMS}", "too-many-subscriptions")


def test_an_idle_session_has_no_dictionary():
    assert "__dict__" not in dir(Session)
