"""What is logged is changed in all workers at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.waiting import wait_until
from support.worker_buses import worker_buses

from gateway.telemetry import logs
from gateway.telemetry.logs import DEFAULT_LIBRARY_LEVELS
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import BUS_TOPIC, LogLevels


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logs.set_levels("info", {})
    logging.getLogger().setLevel(level)


async def test_levels_set_in_one_worker_are_said_to_the_others(monkeypatch: pytest.MonkeyPatch):
    heard: list[tuple[int, object]] = []
    async with worker_buses(3) as made:
        one = LogLevels(made.buses[0])
        for bus in made.buses[1:]:
            bus.add_handler(BUS_TOPIC, lambda worker, said: heard.append((worker, said)))
        await made.start()
        one.set_levels("warning", {"kafka": "debug"})
        await wait_until(lambda: len(heard) == 2)
    assert heard == [(1, ["warning", {"kafka": "debug"}])] * 2
    assert one.current_levels == {"": "warning", "kafka": "debug", **DEFAULT_LIBRARY_LEVELS}


async def test_what_another_says_is_set_here(monkeypatch: pytest.MonkeyPatch):
    async with worker_buses(2) as made:
        own = LogLevels(made.buses[0])
        await made.start()
        made.buses[1].broadcast(BUS_TOPIC, ["error", {"hub": "info"}])
        await wait_until(lambda: own.current_levels[""] == "error")
    assert own.current_levels["hub"] == "info"


def test_what_is_no_level_is_said_to_nobody():
    bus = Bus()
    own, said = LogLevels(bus), []
    bus.broadcast = lambda *what: said.append(what)  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match="'loud' is no level"):
        own.set_levels("loud", {})
    assert said == []
