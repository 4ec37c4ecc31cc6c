"""In which order requests convert records."""

from __future__ import annotations

import asyncio
import time

from gateway.sidecar.turns import TURN_S, SharedPlaces, current_client, take_turns


async def test_a_client_waits_for_one_request_of_another():
    """Requests were in the order of arrival: 20 connections of one client whose records took 0.4 s
    each held up every other request for 8 s, twice."""
    order = []

    def take_a_turn() -> None:
        time.sleep(TURN_S)

    async def convert(client: str) -> None:
        current_client.set(client)
        async with take_turns() as turns:
            take_a_turn()
            await turns.pass_on()
            order.append(client)

    async with asyncio.TaskGroup() as requests:
        for client in "aaaaaaaab":
            requests.create_task(convert(client))
    assert order.index("b") <= 2


async def test_a_client_waits_for_a_place_behind_one_request_of_another():
    """They were in the order of arrival: 60 requests for dead letters kept everybody else out."""
    order = []
    places = SharedPlaces(2)

    async def read(client: str) -> None:
        current_client.set(client)
        async with places:
            await asyncio.sleep(0)
            order.append(client)

    async with asyncio.TaskGroup() as requests:
        for client in "aaaaaaaaaab":
            requests.create_task(read(client))
    assert order.index("b") <= 3 and not places.locked()


async def test_a_request_that_is_cancelled_keeps_no_turn():
    async def wait_for_turn() -> None:
        async with take_turns():
            raise AssertionError("it was cancelled before")

    async with take_turns():
        current_client.set("other")
        waiting = asyncio.create_task(wait_for_turn())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with take_turns():
        pass


async def test_what_is_kept_is_counted_before_others_have_their_turn():
    """A body that is freed within its turn need not be counted, which took a tenth of a request."""
    counted = []
    async with take_turns(lambda: counted.append(1)) as turns:
        assert not counted
        await turns.pass_on()
        await turns.wait_for(asyncio.sleep(0))
    assert counted == [1]
