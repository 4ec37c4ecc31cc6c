"""Clients that are gone are freed by their reference counts: nothing collects them for long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from support.outlet import FakeOutlet
from support.single_client import TP, create_client, get_hub, write_records

from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason
from gateway.core.log.record import PartitionPosition
from gateway.hub.fanout.client import Client

CLIENT_COUNT = 20


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def create_first() -> Client:
    """A client that is live, and the records that others have missed."""
    first = create_client()
    first.attach(FakeOutlet())
    write_records(first, *(b"%d" % number for number in range(50)))
    return first


def create_late(first: Client, offset: int) -> Client:
    """A client that reads privately, from an offset on."""
    subscription = Subscription(first.subscription.channel, {TP: PartitionPosition(offset, 0, 0)})
    return create_client(sibling=first, subscription=subscription)


def count_leftovers(first: Client) -> int:
    """How many objects of the gateway only a collection frees."""
    get_hub(first).removed_clients.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sum(type(each).__module__.startswith("gateway.") for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


async def leave_at_once(first: Client, number: int) -> None:
    client = create_late(first, number)
    client.attach(FakeOutlet())
    client.close()


async def leave_while_pulling(first: Client, number: int) -> None:
    client = create_late(first, number)
    body = client.pull()
    await anext(body)
    client.close()


async def leave_before_pulling(first: Client, number: int) -> None:
    client = create_late(first, number)
    client.pull()
    client.close()


async def leave_before_the_end_is_pulled(first: Client, number: int) -> None:
    client = create_late(first, number)
    body = client.pull()
    await anext(body)
    client.end(EndReason.DRAIN)
    client.close()


async def leave_before_the_handover(first: Client, number: int) -> None:
    client = create_late(first, number)
    client.attach(FakeOutlet())
    client.end(EndReason.CHANGED)
    client.close()


async def catch_up_together(first: Client, number: int) -> None:
    clients = [create_late(first, number) for _ in range(2)]
    for client in clients:
        client.attach(FakeOutlet())
    for _ in range(5):
        await asyncio.sleep(0)
    for client in clients:
        client.close()
    get_hub(first).shared_catch_ups.maintain(asyncio.get_running_loop().time() + 10)


@pytest.mark.parametrize(
    "come_and_go",
    [
        leave_at_once,
        leave_while_pulling,
        leave_before_pulling,
        leave_before_the_end_is_pulled,
        leave_before_the_handover,
        catch_up_together,
    ],
)
async def test_a_client_that_is_gone_is_freed_at_once(come_and_go):
    first = create_first()
    for number in range(CLIENT_COUNT):
        await come_and_go(first, number)
    for _ in range(5):
        await asyncio.sleep(0)
    assert count_leftovers(first) == 0
