"""When a page is due, and what is in it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.one_client import TP, client_of, write

from gateway.core.log.position import UNVERIFIED, Place
from gateway.core.token.resume_token import decode
from gateway.errors import KafkaError
from gateway.hub.fanout.client import Client
from gateway.hub.reads import page
from gateway.hub.reads.page import Page, read
from gateway.hub.wires.lines import Ndjson

PLAIN, MARKED = Ndjson(), Ndjson(positions=True)


def client(wire: Ndjson = PLAIN, credit: int = 1000, **options: Any) -> Client:
    return client_of(wire, credit=credit, **options)


async def read_within(client: Client, wait: float, wire: Ndjson = PLAIN) -> Page:
    async with asyncio.timeout(30):
        return await read(client, wire, wait)


def lines(page: Page) -> list[Any]:
    return [json.loads(line) for line in page.body.splitlines()]


def end(page: Page) -> dict[str, Any]:
    return {"@end": {"reason": page.reason, "position": page.position.decode()}}


def offset(page: Page) -> int | None:
    return decode(page.position.decode()).topics[0].offsets[0]


async def test_a_page_holds_what_there_is_and_then_its_end():
    it = client()
    write(it, b"1", b"two")
    got = await read_within(it, 300.0)
    assert lines(got) == [1, "two", end(got)]
    assert (got.reason, offset(got)) == ("wait", 2)


async def test_nothing_is_waited_for_and_heartbeats_are_no_part_of_a_page():
    it = client(heartbeat=0.01)
    reading = asyncio.create_task(read_within(it, 300.0))
    done, _ = await asyncio.wait([reading], timeout=0.1)
    assert not done
    write(it, b"1")
    assert lines(await reading) == [1, end(reading.result())]


@pytest.mark.parametrize("wait", [0.0, 0.05])
async def test_a_page_of_nothing_still_says_where_to_go_on(
    wait: float, monkeypatch: pytest.MonkeyPatch
):
    """At once, where all partitions have said what they hold."""
    monkeypatch.setattr(page, "SETTLE", 300.0)
    got = await read_within(client(), wait)
    assert (lines(got), offset(got)) == ([end(got)], 0)


async def test_a_page_has_so_many_records_and_the_next_begins_behind_them():
    it = client(credit=3)
    write(it, b"0", b"1")
    write(it, *(b"%d" % n for n in range(2, 10)))
    got = await read_within(it, 300.0)
    assert (lines(got), offset(got)) == ([0, 1, 2, end(got)], 3)


async def test_a_page_ends_where_it_has_become_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "BYTES", 2000)
    it = client()
    for n in range(100):
        write(it, b'"%d%b"' % (n, b"x" * 1000))
    first = await read_within(it, 300.0)
    count = len(lines(first)) - 1
    assert 2 <= count < 100
    assert offset(first) == count


async def test_where_the_stream_stands_alone_does_not_end_the_wait():
    it = client(MARKED)
    got = await read_within(it, 0.05, MARKED)
    assert [next(iter(each)) for each in lines(got)] == ["@begin", "@end"]
    assert got.reason == "wait"


async def test_a_gateway_that_ends_says_so_in_the_page_at_once():
    it = client()
    reading = asyncio.create_task(read_within(it, 300.0))
    await asyncio.sleep(0)
    it.end("drain")
    got = await reading
    assert (lines(got), got.reason) == ([end(got)], "drain")


async def test_when_no_partition_can_be_read_there_is_no_page():
    with pytest.raises(KafkaError, match="ask again"):
        await read_within(client(ready=False), 300.0)


async def test_a_partition_that_says_nothing_is_waited_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its place is held against a log that never answers."""
    monkeypatch.setattr(page, "SETTLE", 0.05)
    it = client()
    it.subscription.part({TP: Place(0, 0, UNVERIFIED)})
    monkeypatch.setattr(Client, "_seek", lambda self: None)
    write(it, b"1")
    got = await read_within(it, 0.0)
    assert (lines(got), offset(got)) == ([end(got)], 0)
