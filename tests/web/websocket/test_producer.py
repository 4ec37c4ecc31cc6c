"""The records of one socket, with a hub that answers when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import Limits as Rates
from gateway.config import Settings
from gateway.errors import RequestError
from gateway.web.http.limits import Attempts, ConnectionSlot, Limits
from gateway.web.routing.messages import BadMessageError, ProduceMessage, parse_message
from gateway.web.websocket.handshake import HandshakeScope
from gateway.web.websocket.message_processor import MAX_IN_FLIGHT, SocketProducer
from gateway.web.workers.bus import Bus


class FakeHub:
    """It is routes, too, of which there are none."""

    draining = False
    settings = Settings.model_construct(routes=[])

    def __init__(self) -> None:
        self.hubs: Any = self

    def get_hub(self, cluster: str) -> Any:
        return self

    def create_writer(self) -> object:
        return object()


def parse_produce() -> ProduceMessage:
    said = parse_message('{"type": "produce", "id": "1", "topic": "orders", "value": 1}')
    assert isinstance(said, ProduceMessage)
    return said


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub()


@pytest.fixture
def produces(hub: FakeHub) -> SocketProducer:
    caller = HandshakeScope(
        {"type": "websocket", "headers": [], "path": "/ws", "query_string": b""}
    )
    slot = ConnectionSlot(None)
    return SocketProducer(hub, caller, slot)  # type: ignore[arg-type]


def test_one_too_many_is_refused_and_not_counted(produces: SocketProducer):
    for _ in range(MAX_IN_FLIGHT):
        produces.accept(parse_produce(), is_closing=False)
    with pytest.raises(BadMessageError, match="wait for 'produced'"):
        produces.accept(parse_produce(), is_closing=False)
    assert produces.in_flight == MAX_IN_FLIGHT


@pytest.mark.parametrize("closing", [True, False])
def test_what_comes_before_a_close_is_to_be_repeated(hub, produces, closing):
    hub.draining = not closing
    with pytest.raises(RequestError, match="repeat it over a new one") as caught:
        produces.accept(parse_produce(), is_closing=closing)
    assert (caught.value.status, produces.in_flight) == (503, 0)


def test_what_cannot_be_written_is_not_under_way_any_more(produces: SocketProducer):
    accepted = produces.accept(parse_produce(), is_closing=False)
    with pytest.raises(RequestError, match="name the route to write to"):
        attempts = Attempts(Limits(Rates(), Bus()), "")
        asyncio.run(produces.write_record(accepted, None, None, attempts))
    assert produces.in_flight == 0


def test_only_the_bytes_of_a_record_are_kept_while_it_waits(produces: SocketProducer):
    """Values stayed parsed while Kafka was away: 12 times the bytes that were counted."""
    message = produces.accept(parse_produce(), is_closing=False)
    assert message.content == (None, b"1") and message.value is None
