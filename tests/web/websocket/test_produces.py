"""The records of one socket, with a hub that answers when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import Limits as Rates
from gateway.config import Settings
from gateway.errors import RequestError
from gateway.web.routing.attempts import Attempts
from gateway.web.routing.limits import Limits
from gateway.web.websocket.caller import Caller
from gateway.web.websocket.messages import BadMessage, Produce, read
from gateway.web.websocket.produces import MOST_PRODUCES, Produces
from gateway.web.workers.bus import Bus


class Hub:
    """It is routes, too, of which there are none."""

    draining = False
    settings = Settings.model_construct(routes=[])

    def __init__(self) -> None:
        self.hubs: Any = self
        self.publisher: Any = self

    def of(self, cluster: str) -> Any:
        return self

    def writer(self) -> object:
        return object()


def produce() -> Produce:
    said = read('{"type": "produce", "id": "1", "topic": "orders", "value": 1}')
    assert isinstance(said, Produce)
    return said


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def produces(hub: Hub) -> Produces:
    caller = Caller({"type": "websocket", "headers": [], "path": "/ws", "query_string": b""})
    return Produces(hub, caller)  # type: ignore[arg-type]


def test_one_too_many_is_refused_and_not_counted(produces: Produces):
    for _ in range(MOST_PRODUCES):
        produces.take_on(produce(), closing=False)
    with pytest.raises(BadMessage, match="wait for 'produced'"):
        produces.take_on(produce(), closing=False)
    assert produces.under_way == MOST_PRODUCES


@pytest.mark.parametrize("closing", [True, False])
def test_what_comes_before_a_close_is_to_be_repeated(hub: Hub, produces: Produces, closing: bool):
    hub.draining = not closing
    with pytest.raises(RequestError, match="repeat it over a new one") as caught:
        produces.take_on(produce(), closing=closing)
    assert (caught.value.status, produces.under_way) == (503, 0)


def test_what_cannot_be_written_is_not_under_way_any_more(produces: Produces):
    produces.take_on(produce(), closing=False)
    with pytest.raises(RequestError, match="name the route to write to"):
        attempts = Attempts(Limits(Rates(), Bus()), "")
        asyncio.run(produces.write(produce(), None, None, attempts))
    assert produces.under_way == 0
