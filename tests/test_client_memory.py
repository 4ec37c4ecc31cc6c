"""What is held for clients, and who lets go of it."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from contextlib import ExitStack

import orjson
import pytest
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart, estimate_parsed_bytes
from gateway.errors import MemoryFull
from gateway.formats.exact_values import keep_exact_numbers
from gateway.formats.serialization import SerializationFormat


class FakeHolder:
    def __init__(self) -> None:
        self.is_released = False

    def release_memory(self) -> None:
        self.is_released = True


def test_what_several_hold_counts_once_and_as_long_as_one_of_them_holds_it():
    """200 clients that were sent the same megabyte counted 200 of them, of which there was one."""
    memory, shared = ClientMemory(), b"x" * 1000
    first, second = FakeHolder(), FakeHolder()
    for holder in (first, second):
        memory.hold_unsent(holder, waiting=900, copied=0, data=shared)
    assert memory.total == 1000
    memory.release(HeldPart.UNSENT, first)
    assert memory.total == 1000
    memory.release(HeldPart.UNSENT, second)
    memory.release(HeldPart.UNSENT, second)
    assert memory.total == 0 == sum(memory.by_part.values())


def test_copies_and_events_of_ones_own_count_for_each():
    memory, shared = ClientMemory(), b"x" * 1000
    holders = [FakeHolder() for _ in range(3)]
    for holder in holders:
        memory.hold_unsent(holder, waiting=900, copied=300, data=shared)
    assert memory.total == 1000 + 3 * 300
    memory.hold_unsent(holders[0], waiting=950, copied=300, data=b"y" * 50)
    assert memory.total == 1000 + 3 * 300 + 50
    memory.hold_unsent(holders[0], waiting=2000, copied=2000, data=None)
    assert memory.total == 1000 + 2 * 300 + 2000
    for holder in holders:
        memory.release(HeldPart.UNSENT, holder)
    assert memory.total == 0


def test_no_more_counts_than_waits():
    """Events behind a shared one added up as long as something waited, sent or not; and where all
    that waits is a copy, the record that was written counted besides."""
    memory, holder = ClientMemory(), FakeHolder()
    memory.hold_unsent(holder, waiting=900, copied=0, data=b"x" * 1000)
    for _ in range(100):
        memory.hold_unsent(holder, waiting=300, copied=0, data=b"y" * 50)
    assert memory.total == 300
    memory.hold_unsent(holder, waiting=1000, copied=1000, data=b"z" * 1000)
    assert memory.total == 1000


async def test_those_with_most_let_go_at_once_when_it_is_too_much(caplog):
    """What waited was counted once a second: until then it grew without a limit."""
    memory = ClientMemory(limit=999)
    small, old, new, large = holders = [FakeHolder() for _ in range(4)]
    for holder, size in zip(holders, (100, 300, 300, 400), strict=True):
        memory.hold(HeldPart.RECEIVED, holder, size)
    await wait_until(lambda: large.is_released)
    assert memory.total == 700 and not (small.is_released or old.is_released or new.is_released)
    memory.hold(HeldPart.UNSENT, FakeHolder(), 300)
    await wait_until(lambda: old.is_released)  # it has had as much as another one, but longer
    assert memory.total == 700 and not new.is_released
    assert memory.releases == {HeldPart.RECEIVED: 2}
    (line,) = [each for each in caplog.records if "disconnected" in each.getMessage()]
    assert line.levelno == logging.WARNING


async def test_one_record_that_is_larger_than_the_limit_is_sent():
    memory, holder, other = ClientMemory(limit=1000), FakeHolder(), FakeHolder()
    memory.hold(HeldPart.UNSENT, holder, 5000)
    memory.hold(HeldPart.UNSENT, other, 10)
    await wait_until(lambda: holder.is_released)
    assert not other.is_released
    memory.hold(HeldPart.UNSENT, other, 5000)
    await asyncio.sleep(0)
    assert not other.is_released and memory.total == 5000


async def test_whoever_is_refused_finds_memory_the_next_time():
    """Clients that read nothing may have all there is: nobody else would get a page then."""
    memory, holder = ClientMemory(limit=1000), FakeHolder()
    memory.hold(HeldPart.RECEIVED, holder, 500)
    memory.hold(HeldPart.UNSENT, FakeHolder(), 350)
    assert memory.has_capacity(25) and not memory.has_capacity(100)
    await wait_until(lambda: holder.is_released)
    assert memory.has_capacity(100)


async def test_a_large_request_leaves_room_for_small_ones():
    """Six requests of one client took the whole part, and everybody else got 503."""
    memory = ClientMemory(limit=8000)
    with ExitStack() as held:
        held.enter_context(memory.reserve(HeldPart.PARSED, 9000))  # the only one may have any size
        for size in (1000, 500, 250):
            with pytest.raises(MemoryFull), memory.reserve(HeldPart.PARSED, size + 1):
                pass
            held.enter_context(memory.reserve(HeldPart.PARSED, size))
        assert memory.total == 10_750
    assert memory.total == 0


async def test_one_client_leaves_as_much_to_others_as_it_has():
    """One took all that consumers may have of memory, within 6 seconds, for as long as it liked."""
    memory = ClientMemory(limit=1600)
    with ExitStack() as held:
        for identity, size in (("alice", 400), ("bob", 200), ("carol", 100)):
            for taken in (size // 2, size - size // 2):
                reserved = memory.reserve(HeldPart.FETCHED, taken, identity)
                held.enter_context(reserved)
            with pytest.raises(MemoryFull), memory.reserve(HeldPart.FETCHED, 10, identity):
                pass
        # What others have keeps nobody from growing up to half.
        held.enter_context(memory.reserve(HeldPart.FETCHED, 300, "carol", is_growth=True))
        for identity in ("alice", "carol"):
            growth = memory.reserve(HeldPart.FETCHED, 10, identity, is_growth=True)
            with pytest.raises(MemoryFull), growth:
                pass
    assert memory.total == 0


@pytest.mark.parametrize("text", [b"{" * 1000, rb"\\\"[,{" * 200], ids=["plain", "escaped"])
def test_what_looks_like_objects_within_a_text_takes_its_length(text):
    """A text of 1 MB of braces counted 250 MB."""
    assert estimate_parsed_bytes(b'{"%b":[{},{}]}' % text) < len(text) + 1100
    assert estimate_parsed_bytes(b'{"%b":{"a":"b"}}' % (b"x" * 1000)) > 1500


@pytest.mark.parametrize(
    "text",
    [
        b"{%b}" % b",".join(b'"%d":"ab"' % number for number in range(10_000)),
        b"[%b]" % b",".join([b"1.10"] * 10_000),
        b"[1.10,%b]" % b",".join([b"1.1"] * 10_000),
    ],
    ids=["members", "Decimals", "numbers"],
)
def test_as_much_is_counted_as_a_parsed_value_takes(text):
    """Many short members took three times what was counted, and Decimals twice."""
    data = b'{"value":%b}' % text
    formats = {"value": SerializationFormat.AVRO}
    tracemalloc.start()
    try:
        body = orjson.loads(data)
        keep_exact_numbers(data, body, [body], formats, select_records=lambda parsed: [parsed])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.2 * estimate_parsed_bytes(data)
