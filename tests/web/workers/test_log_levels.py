"""What is logged is changed in all workers at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.buses import host
from support.until import until

from gateway.telemetry import logs
from gateway.telemetry.logs import QUIET
from gateway.web.workers.bus import Bus
from gateway.web.workers.log_levels import TOPIC, Levels


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logs.set_levels("info", {})
    logging.getLogger().setLevel(level)


async def test_levels_set_in_one_worker_are_said_to_the_others(monkeypatch: pytest.MonkeyPatch):
    heard: list[tuple[int, object]] = []
    async with host(3) as made:
        one = Levels(made.buses[0])
        for bus in made.buses[1:]:
            bus.on(TOPIC, lambda worker, said: heard.append((worker, said)))
        await made.run()
        one.set("warning", {"kafka": "debug"})
        await until(lambda: len(heard) == 2)
    assert heard == [(1, ["warning", {"kafka": "debug"}])] * 2
    assert one.current == {"": "warning", "kafka": "debug", **QUIET}


async def test_what_another_says_is_set_here(monkeypatch: pytest.MonkeyPatch):
    async with host(2) as made:
        own = Levels(made.buses[0])
        await made.run()
        made.buses[1].say(TOPIC, ["error", {"hub": "info"}])
        await until(lambda: own.current[""] == "error")
    assert own.current["hub"] == "info"


def test_what_is_no_level_is_said_to_nobody():
    bus = Bus()
    own, said = Levels(bus), []
    bus.say = lambda *what: said.append(what)  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match="'loud' is no level"):
        own.set("loud", {})
    assert said == []
