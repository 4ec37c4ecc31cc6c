"""When a page is due, and what is in it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from support.single_client import TP, create_client, get_hub, run_loop_turns, write_records
from support.waiting import WAIT_TIMEOUT_S

from gateway.client_memory import ClientMemory, HeldPart
from gateway.core.client.terms import EndReason
from gateway.core.log.record import UNVERIFIED_LINEAGE, PartitionPosition
from gateway.core.token.resume_token import parse_token
from gateway.errors import KafkaError, MemoryFull
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.page import Page, PageBuffer, read_page
from gateway.hub.wires.ndjson import NdjsonWire

PLAIN, MARKED = NdjsonWire(), NdjsonWire(positions=True)


def build_client(wire: NdjsonWire = PLAIN, credit: int = 1000, **options: Any) -> Client:
    return create_client(wire, credit=credit, **options)


async def read_page_in_time(
    client: Client, wait: float, wire: NdjsonWire = PLAIN, **limits: Any
) -> Page:
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with PageBuffer(wire, ClientMemory()) as page:
            return await read_page(client, page, wait, **limits)


def parse_lines(page: Page) -> list[Any]:
    return [json.loads(line) for line in page.body.splitlines()]


def build_end(page: Page) -> dict[str, Any]:
    return {"@end": {"reason": page.reason, "position": page.position.decode()}}


def get_offset(page: Page) -> int | None:
    return parse_token(page.position.decode()).topics[0].offsets[0]


async def test_a_page_holds_what_there_is_and_then_its_end():
    it = build_client()
    write_records(it, b"1", b"two")
    got = await read_page_in_time(it, 300.0)
    assert parse_lines(got) == [1, "two", build_end(got)]
    assert (got.reason, get_offset(got)) == ("wait", 2)


async def test_nothing_is_waited_for_and_heartbeats_are_no_part_of_a_page():
    it = build_client()
    reading = asyncio.create_task(read_page_in_time(it, 300.0))
    await run_loop_turns()
    it.check_heartbeat(asyncio.get_running_loop().time() + it.heartbeat)
    await run_loop_turns()
    assert not reading.done()
    write_records(it, b"1")
    assert parse_lines(await reading) == [1, build_end(reading.result())]


@pytest.mark.parametrize("wait", [0.0, 0.05])
async def test_a_page_of_nothing_still_says_where_to_go_on(wait: float):
    """At once, where all partitions have said what they hold."""
    got = await read_page_in_time(build_client(), wait, settle_timeout_s=300.0)
    assert (parse_lines(got), get_offset(got)) == ([build_end(got)], 0)


async def test_a_page_has_so_many_records_and_the_next_begins_behind_them():
    it = build_client(credit=3)
    write_records(it, b"0", b"1")
    write_records(it, *(b"%d" % n for n in range(2, 10)))
    got = await read_page_in_time(it, 300.0)
    assert (parse_lines(got), get_offset(got)) == ([0, 1, 2, build_end(got)], 3)


async def test_a_page_ends_where_it_has_become_long():
    it = build_client()
    for n in range(100):
        write_records(it, b'"%d%b"' % (n, b"x" * 1000))
    first = await read_page_in_time(it, 300.0, max_bytes=2000)
    count = len(parse_lines(first)) - 1
    assert 2 <= count < 100
    assert get_offset(first) == count


async def test_where_the_stream_stands_alone_does_not_end_the_wait():
    it = build_client(MARKED)
    got = await read_page_in_time(it, 0.05, MARKED)
    assert [next(iter(each)) for each in parse_lines(got)] == ["@begin", "@end"]
    assert got.reason == "wait"


async def test_a_gateway_that_ends_says_so_in_the_page_at_once():
    it = build_client()
    reading = asyncio.create_task(read_page_in_time(it, 300.0))
    await asyncio.sleep(0)
    it.end(EndReason.DRAIN)
    got = await reading
    assert (parse_lines(got), got.reason) == ([build_end(got)], "drain")


async def test_when_no_partition_can_be_read_there_is_no_page():
    with pytest.raises(KafkaError, match="ask again"):
        await read_page_in_time(build_client(ready=False), 300.0)


async def test_a_page_that_a_reload_ends_before_it_began_is_read_again():
    """It was refused as if no partition could be read."""
    it = build_client(ready=False)
    it.end(EndReason.CHANGED)
    assert (await read_page_in_time(it, 300.0)).reason == "changed"


async def test_a_partition_that_says_nothing_is_waited_for_a_moment():
    """Its place is held against a log that never answers."""
    it = build_client()
    silent = SimpleNamespace(can_validate=lambda epoch: False)
    get_hub(it).by_partition[TP] = SimpleNamespace(reader=silent)
    it.subscription.ensure_private_reader().read({TP: PartitionPosition(0, 0, UNVERIFIED_LINEAGE)})
    write_records(it, b"1")
    got = await read_page_in_time(it, 0.0, settle_timeout_s=0.05)
    assert (parse_lines(got), get_offset(got)) == ([build_end(got)], 0)


async def test_a_page_counts_until_it_is_with_the_connection_and_is_refused_when_it_is_too_much():
    """150 clients with 16 pages each, which they did not read, were in no account: 384 MiB."""
    memory = ClientMemory()
    client = build_client()
    write_records(client, b"1" * 1000)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with PageBuffer(PLAIN, memory) as page:
            body = (await read_page(client, page, 300.0)).body
            assert memory.by_part[HeldPart.RESPONSES] == len(body)
        assert not memory.total

        client = build_client()
        write_records(client, b"1" * 1000)
        with PageBuffer(PLAIN, memory) as page, pytest.raises(MemoryFull):
            page.release_memory()
            await read_page(client, page, 300.0)
