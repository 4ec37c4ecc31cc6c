"""What operators forbid is known to all workers, whenever they come."""

from __future__ import annotations

import time

import pytest
from support.tasks import running_task
from support.waiting import wait_until
from support.worker_buses import WorkerBuses, worker_buses

from gateway.config import Route
from gateway.errors import RequestError
from gateway.web.access import Grant, Granted
from gateway.web.admin.blocklist import Blocklist, BlocklistEntry, serve_blocklist
from gateway.web.routing.open_streams import StreamRegistry
from gateway.web.routing.paths import AccessRevoked, Match, RoutePaused
from gateway.web.workers.bus import Bus

ADA = BlocklistEntry(guard="login", identity="ada")
PAUSE = BlocklistEntry(route="/orders")


def build_match(path: str = "/orders", *who: tuple[str, str]) -> Match:
    route = Route.model_validate({"when": [{"path": path}], "with": {"topic": "orders"}})
    return Match(route, granted=Granted([Grant(guard, identity) for guard, identity in who]))


def build_blocklists(made: WorkerBuses) -> list[Blocklist]:
    return [Blocklist(StreamRegistry(), bus) for bus in made.buses]


async def test_alone_it_holds_here_until_it_is_lifted():
    own = Blocklist(StreamRegistry(), Bus())
    assert own.find_refusal(build_match("/orders", ("login", "ada"))) is None
    assert (await own.add_entry(ADA)).missing == []
    assert isinstance(own.find_refusal(build_match("/x", ("login", "ada"))), AccessRevoked)
    assert isinstance(
        own.find_refusal(build_match("/x", ("more", "bob"), ("login", "ada"))), AccessRevoked
    )
    for other in ([("login", "bob")], [("other", "ada")], []):
        assert own.find_refusal(build_match("/x", *other)) is None
    await own.remove_entry(ADA.key)
    assert own.find_refusal(build_match("/x", ("login", "ada"))) is None
    with pytest.raises(RequestError, match="nothing of this kind"):
        await own.remove_entry(ADA.key)


async def test_without_a_guard_it_is_of_all_guards():
    own = Blocklist(StreamRegistry(), Bus())
    await own.add_entry(BlocklistEntry(identity="ada"))
    assert isinstance(
        own.find_refusal(build_match("/x", ("login", "bob"), ("more", "ada"))), AccessRevoked
    )


async def test_one_that_is_over_forbids_nothing_and_is_forgotten():
    own = Blocklist(StreamRegistry(), Bus())
    await own.add_entry(ADA._replace(until=time.time() - 1))
    assert own.entries == [] and own.find_refusal(build_match("/x", ("login", "ada"))) is None
    later = ADA._replace(until=time.time() + 3600)
    await own.add_entry(later)
    assert own.entries == [later]


async def test_all_workers_know_it_and_one_that_comes_later_too():
    async with worker_buses(3) as made:
        current = serve_blocklist(made.relay)
        all_of_them = build_blocklists(made)
        await made.start()
        assert (await all_of_them[1].add_entry(ADA)).missing == []
        assert (await all_of_them[2].add_entry(PAUSE)).missing == []
        for each in all_of_them:
            assert isinstance(each.find_refusal(build_match("/x", ("login", "ada"))), AccessRevoked)
            assert isinstance(each.find_refusal(build_match("/orders")), RoutePaused)
        assert current() == [ADA, PAUSE]
        await made.stop_worker(3)
        bus = Bus(made.socket_path, 3, 3)
        later = Blocklist(StreamRegistry(), bus)
        later.replace_entries([PAUSE])  # as of when it was started
        await all_of_them[0].remove_entry(PAUSE.key)
        async with running_task(bus.run()):
            await wait_until(lambda: later.entries == [ADA], "what holds by now", 60)


async def test_where_the_supervisor_is_away_nothing_is_promised():
    own = Blocklist(StreamRegistry(), Bus(worker_count=2))
    with pytest.raises(RequestError, match="supervisor") as refused:
        await own.add_entry(ADA)
    assert refused.value.status == 503 and own.entries == []
