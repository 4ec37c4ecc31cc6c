"""What operators forbid is known to all workers, whenever they come."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.buses import Host, host
from support.until import until

from gateway.config import Route
from gateway.errors import RequestError
from gateway.web.access import Grant, Granted
from gateway.web.admin.orders import Order, Orders, Paused, Revoked, keep
from gateway.web.routing.routes import Match
from gateway.web.streams.open_streams import Openings
from gateway.web.workers.bus import Bus

ADA = Order(guard="login", identity="ada")
PAUSE = Order(route="/orders")


def match(path: str = "/orders", *who: tuple[str, str]) -> Match:
    route = Route.model_validate({"when": [{"path": path}], "with": {"topic": "orders"}})
    return Match(route, {}, Granted([Grant(guard, identity) for guard, identity in who]))


def orders_of(made: Host) -> list[Orders]:
    return [Orders(Openings(), bus) for bus in made.buses]


async def test_alone_it_holds_here_until_it_is_lifted():
    own = Orders(Openings(), Bus())
    assert own.refusal(match("/orders", ("login", "ada"))) is None
    assert (await own.give(ADA)).missing == []
    assert isinstance(own.refusal(match("/x", ("login", "ada"))), Revoked)
    assert isinstance(own.refusal(match("/x", ("more", "bob"), ("login", "ada"))), Revoked)
    for other in ([("login", "bob")], [("other", "ada")], []):
        assert own.refusal(match("/x", *other)) is None
    await own.lift(ADA.key)
    assert own.refusal(match("/x", ("login", "ada"))) is None
    with pytest.raises(RequestError, match="nothing of this kind"):
        await own.lift(ADA.key)


async def test_without_a_guard_it_is_of_all_guards():
    own = Orders(Openings(), Bus())
    await own.give(Order(identity="ada"))
    assert isinstance(own.refusal(match("/x", ("login", "bob"), ("more", "ada"))), Revoked)


async def test_one_that_is_over_forbids_nothing_and_is_forgotten():
    own = Orders(Openings(), Bus())
    await own.give(ADA._replace(until=time.time() - 1))
    assert own.held == [] and own.refusal(match("/x", ("login", "ada"))) is None
    later = ADA._replace(until=time.time() + 3600)
    await own.give(later)
    assert own.held == [later]


async def test_all_workers_know_it_and_one_that_comes_later_too():
    async with host(3) as made:
        current = keep(made.relay)
        all_of_them = orders_of(made)
        await made.run()
        assert (await all_of_them[1].give(ADA)).missing == []
        assert (await all_of_them[2].give(PAUSE)).missing == []
        for each in all_of_them:
            assert isinstance(each.refusal(match("/x", ("login", "ada"))), Revoked)
            assert isinstance(each.refusal(match("/orders")), Paused)
        assert current() == [ADA, PAUSE]
        await made.end(3)
        bus = Bus(made.path, 3, 3)
        later = Orders(Openings(), bus)
        later.adopt([PAUSE])  # as of when it was started
        await all_of_them[0].lift(PAUSE.key)
        coming = asyncio.create_task(bus.run())
        try:
            await until(lambda: later.held == [ADA], "what holds by now", 60)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def test_where_the_supervisor_is_away_nothing_is_promised():
    own = Orders(Openings(), Bus(workers=2))
    with pytest.raises(RequestError, match="supervisor") as refused:
        await own.give(ADA)
    assert refused.value.status == 503 and own.held == []
