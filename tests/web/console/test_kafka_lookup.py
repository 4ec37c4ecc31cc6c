"""Lookups in Kafka are bounded, and their failure is told in words."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from support.waiting import WAIT_TIMEOUT_S

from gateway.api.gateway import Gateway
from gateway.config import loads
from gateway.errors import BrokerUnavailable, RequestError, UnknownGroup
from gateway.hub.fanout.hubs import Hubs
from gateway.web.console.kafka_lookup import MAX_LOOKUPS, KafkaLookup, read_query

CONFIG = """
kafka:
  east: {servers: ["127.0.0.1:1"], topics: [orders]}
  west: {servers: ["127.0.0.1:1"], topics: [stock]}
"""


@pytest.fixture
async def hubs():
    """The hubs of two clusters, neither of which can be reached."""
    gateway = Gateway(loads(CONFIG, name="test"))
    await gateway.start()
    yield gateway.hubs
    await gateway.close()


async def fail_lookup(lookup: KafkaLookup, error: Exception) -> None:
    async with lookup.open_hub("east"):
        raise error


async def test_the_first_cluster_is_asked_unless_another_is_named(hubs: Hubs):
    lookup = KafkaLookup(hubs)
    assert lookup.cluster_names == ["east", "west"]
    async with lookup.open_hub() as first, lookup.open_hub("west") as other:
        assert (first.name, other.name) == ("east", "west")
    with pytest.raises(RequestError, match="did you mean 'west'"):
        async with lookup.open_hub("wset"):
            pass


async def test_an_operator_is_told_why_kafka_does_not_answer(hubs: Hubs):
    lookup = KafkaLookup(hubs)
    with pytest.raises(RequestError, match="no broker answers") as caught:
        await fail_lookup(lookup, BrokerUnavailable("no broker answers"))
    assert caught.value.status == 503
    with pytest.raises(UnknownGroup):
        await fail_lookup(lookup, UnknownGroup("there is no group x", group="x", code=69))


async def test_a_lookup_ends_after_its_time(hubs: Hubs):
    lookup = KafkaLookup(hubs, timeout_s=0.05)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with pytest.raises(RequestError, match=r"not answered within 0\.05 s"):
            async with lookup.open_hub():
                await asyncio.Event().wait()


async def test_only_so_many_run_at_a_time(hubs: Hubs):
    lookup = KafkaLookup(hubs, timeout_s=WAIT_TIMEOUT_S)

    async def look_up() -> None:
        async with lookup.open_hub():
            pass

    async with AsyncExitStack() as stack:
        for _ in range(MAX_LOOKUPS - 1):
            await stack.enter_async_context(lookup.open_hub())
        async with lookup.open_hub():
            one_more = asyncio.create_task(look_up())
            for _ in range(10):  # turns of the loop, more than it takes
                await asyncio.sleep(0)
            assert not one_more.done()
        await one_more


def test_a_misspelt_parameter_is_refused():
    request = Request({"type": "http", "query_string": b"serach=x", "headers": []})
    with pytest.raises(RequestError, match=r"\?serach= is unknown; did you mean 'search'"):
        read_query(request, ("cluster", "search"))
