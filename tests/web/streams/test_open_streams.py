"""What a reload changes while a stream is being opened, or its token renewed; nothing of Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from support.outlet import FakeOutlet
from support.single_client import create_client, write_records
from support.waiting import wait_until

from gateway.client_memory import ClientMemory
from gateway.config import Route
from gateway.core.client.terms import EndReason
from gateway.errors import Busy
from gateway.hub.wires.sse import SseWire
from gateway.web.access import NO_GRANTS
from gateway.web.routing.open_streams import StreamChange, StreamRegistry, get_end_reason
from gateway.web.routing.paths import Match
from gateway.web.streams.http_stream import HttpStream

ROUTE = Route.model_validate({"when": [{"path": "/"}], "with": {"topic": "t"}})


class FakeRoutes:
    """As far as a stream knows them. Brokers are asked for a view until `answered` is set."""

    def __init__(self, stream_registry: StreamRegistry) -> None:
        self.stream_registry = stream_registry
        self.answered = asyncio.Event()

    async def get_view(self, match: Match, query: object) -> Any:
        await self.answered.wait()
        return SimpleNamespace(topics=(), cluster="", path=match.path)

    def match(self, path: str) -> Match:
        return build_match(path)

    def get_challenge_lead(self, guard: str) -> None: ...


def build_stream(stream_registry: StreamRegistry | None = None) -> HttpStream:
    request = Request({"type": "http", "headers": [], "path": "/", "query_string": b""})
    routes: Any = FakeRoutes(stream_registry or StreamRegistry())
    return HttpStream(routes, build_match("/old"), request, SseWire(), lambda: None)


def build_match(path: str) -> Match:
    return Match(ROUTE, path=path)


def build_change(path: str) -> StreamChange:
    view: Any = path
    return StreamChange(build_match(path), [], view)


class HandedOver(FakeOutlet):
    def hand_over(self) -> None:
        self.is_finished = True


@pytest.mark.parametrize("outcome", [EndReason.ACCESS_CHANGED, "another view"])
async def test_a_stream_that_opens_during_a_reload_shows_nothing_by_the_old_route(outcome: str):
    """It was sent 64 KiB of records before it was moved or ended, after the reload had answered."""
    stream, client, outlet = build_stream(), create_client(credit=9), HandedOver()
    write_records(client, b"secret")
    if isinstance(outcome, EndReason):
        stream.end(outcome)
    else:
        stream.apply_change(build_change("/new"))
    stream._set_client(client)
    stream.attach(outlet, b"")  # type: ignore[arg-type]
    assert outlet.is_finished and b"secret" not in b"".join(outlet.chunks)


@pytest.mark.parametrize("change", ["renewal", "reload"])
async def test_a_change_that_waits_for_brokers_undoes_no_later_one(change: str):
    """A reload gave a stream the rights of a token back that had been renewed meanwhile."""
    stream = build_stream()
    client = create_client()
    client.view = SimpleNamespace()  # type: ignore[assignment]
    stream._set_client(client)
    waiting = asyncio.create_task(
        stream.renew(NO_GRANTS) if change == "renewal" else stream.apply_reload(set(), set())
    )
    await asyncio.sleep(0)
    stream.apply_change(build_change("/new"))
    stream.routes.answered.set()  # type: ignore[attr-defined]
    await waiting
    assert [match.path for match in stream.matches] == ["/old", "/new"]


def test_a_stream_that_no_longer_fits_the_share_of_its_client_ends_as_busy():
    """It ended as if its client might no longer read it, which a browser takes for a new login."""
    assert get_end_reason(Busy(429, "close some", retry_after=3.0)) is EndReason.BUSY


async def test_a_reload_does_not_wait_for_the_brokers_of_one_stream_to_look_at_the_next():
    """While a cluster was frozen, each stream of its topics by a pattern took a timeout before the
    next one was looked at, and streams of other clusters showed what was taken away."""
    waiting = build_stream()
    registry = waiting.routes.stream_registry
    other = build_stream(registry)
    other.routes.answered.set()  # type: ignore[attr-defined]
    reload = asyncio.create_task(registry.apply_reload(set(), set()))
    await wait_until(lambda: len(other.matches) == 2)
    assert len(waiting.matches) == 1
    waiting.routes.answered.set()  # type: ignore[attr-defined]
    assert sum((await reload).values()) == len(waiting.matches) == 2


async def test_streams_of_long_paths_count_as_memory_and_end_above_its_limit():
    """4,500 streams of a path of 60 KB each held 275 MiB of a gateway that was given 64."""
    memory = ClientMemory(limit=100_000)
    routes: Any = SimpleNamespace(stream_registry=StreamRegistry(memory))
    request = Request({"type": "http", "headers": [], "path": "/", "query_string": b"q=1"})
    streams = [
        HttpStream(routes, build_match("/" + "x" * size), request, SseWire(), lambda: None)
        for size in (9, 60_000, 59_000)
    ]
    assert memory.total > 119_000
    short, *_ = streams
    short._pending_change = StreamChange(build_match("/"), [("_" + "x" * 9000, "")], None)  # type: ignore[arg-type]
    short._client = create_client()
    short._take_handover()
    assert memory.total > 128_000, "names that nobody reads are kept, too"
    await asyncio.sleep(0)
    assert [stream._end_reason for stream in streams] == [None, EndReason.SLOW, None]
    for stream in streams:
        stream.close()
    assert memory.total == 0
