"""When a client that has nothing to say says something."""

from __future__ import annotations

import asyncio
import gc

import pytest
from support.outlet import FakeOutlet
from support.single_client import TP, create_client, get_hub, run_loop_turns, write_records

from gateway.client_memory import HeldPart
from gateway.core.channel.channel import Channel
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, Throttle
from gateway.core.log.record import Gap, GapReason
from gateway.errors import MemoryFull
from gateway.hub.fanout.broadcaster import Audience
from gateway.hub.fanout.client import Client
from gateway.hub.fanout.pulled_bytes import MAX_UNREAD_BYTES, PulledBytes
from gateway.hub.reads.pacing import RateLimiter
from gateway.hub.wires.sse import SseWire
from gateway.telemetry.traffic import SLOW


async def test_an_idle_client_gets_every_heartbeat():
    client, now = create_client(), asyncio.get_running_loop().time()
    stream = client.pull()
    await anext(stream)
    for n in range(1, 4):
        client.check_heartbeat(now + 61.0 * n)
        client.check_heartbeat(now + 61.0 * n + 1)
    assert [await anext(stream) for _ in range(3)] == [SseWire().encode_heartbeat()] * 3
    client.end(EndReason.DRAIN)
    assert [b"event: end" in piece async for piece in stream] == [True]


async def test_a_record_is_sent_at_once_and_puts_the_heartbeat_off():
    client = create_client()
    stream = client.pull()
    await anext(stream)
    for offset in range(2):
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        write_records(client, b"%d" % offset)
        async with asyncio.timeout(30):
            assert b"data: %d\n" % offset in await waiting
    client.close()


async def test_a_lifetime_that_is_over_ends_an_idle_stream_without_a_last_comment():
    client = create_client(lifetime=60.0)
    stream = client.pull()
    client.check_heartbeat(client.ends_at)
    async with asyncio.timeout(30):
        pieces = [piece async for piece in stream]
    assert len(pieces) == 2 and b'event: end\ndata: {"reason":"lifetime"}' in pieces[1]
    assert get_hub(client).removed_clients == [client]


async def test_a_pulled_client_that_does_not_read_is_slow_and_its_lifetime_ends_too():
    """What was read for it was never dropped, and held back the reads of all others."""
    client = create_client(lifetime=60.0)
    stream = client.pull()
    await run_loop_turns()
    assert client.state is None, "rounds write to it"
    write_records(client, b"1" * MAX_UNREAD_BYTES)
    await run_loop_turns()
    write_records(client, b"2")
    await run_loop_turns()
    assert client.state == SLOW
    await anext(stream)
    assert client.state == SLOW
    assert b"data: 11" in await anext(stream)
    assert b"data: 2\n" in await anext(stream)
    client.check_heartbeat(client.ends_at)
    assert [b'{"reason":"lifetime"}' in piece async for piece in stream] == [True]


async def test_a_pulled_client_loses_nothing_when_the_pull_is_cancelled():
    client = create_client()
    stream = client.pull()
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    write_records(client, b"1")
    await run_loop_turns()
    waiting.cancel()
    got = await asyncio.gather(waiting, return_exceptions=True)
    client.end(EndReason.DRAIN)
    got += [piece async for piece in stream]
    assert b"".join(each for each in got if isinstance(each, bytes)).count(b"data: 1\n") == 1


async def test_one_that_waits_for_its_begin_and_is_told_to_end_does_so():
    """A drain does not wait for partitions that nobody leads."""
    client = create_client(ready=False, deadline=asyncio.get_running_loop().time() + 3600)
    waiting = asyncio.create_task(client.wait_until_ready())
    await asyncio.sleep(0)
    client.end(EndReason.DRAIN)
    async with asyncio.timeout(30):
        await waiting
        pieces = [piece async for piece in client.pull()]
    assert b"event: begin" in pieces[0] and b'{"reason":"drain"}' in pieces[-1]


async def test_a_client_that_is_gone_waits_for_no_collection_of_garbage():
    """It was part of a reference cycle, with its filters and its channel."""
    kinds = (
        Client, PulledBytes, Subscription, Channel, Audience,
    )  # fmt: skip

    def count_alive() -> int:
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = count_alive()
        for credit in (None, 1):
            client = create_client(credit=credit)
            client.attach(FakeOutlet())
            for _ in range(3):
                await asyncio.sleep(0)
            write_records(client, b"1")
            await asyncio.sleep(0)
            hub, channel = get_hub(client), client.subscription.channel
            client.close()
            hub.broadcaster.remove_channel(channel)
            hub.removed_clients.clear()
            del client, hub, channel
            client = create_client(credit=credit)
            async for _ in client.pull():
                client.end(EndReason.DRAIN)
            get_hub(client).removed_clients.clear()
            get_hub(client).broadcaster.remove_channel(client.subscription.channel)
            del client
        await asyncio.sleep(0)
        assert count_alive() == before
    finally:
        gc.enable()


async def test_an_event_for_one_client_alone_comes_next_and_nothing_after_its_expiry():
    client = create_client()
    stream = client.pull()
    await anext(stream)
    client.send_event("challenge", {"guard": "jwt0"})
    assert b"event: challenge" in await anext(stream)
    client = create_client(credit=1)
    stream = client.pull()
    await anext(stream)
    write_records(client, b"1")
    client.end(EndReason.TOKEN_EXPIRED)
    assert [b"event: end" in piece async for piece in stream] == [True]


async def test_a_rate_and_a_credit_limit_a_client_together():
    """Credit that the client granted itself went to the subscription, beside the rate."""
    limiter = RateLimiter(Throttle(100, 3600.0), 1)
    client = create_client(credit=1, rate_limiter=limiter)
    client.grant_credit(2)
    assert (client.credit, client.subscription.credit) == (3, 1)
    client.close()


async def test_the_handover_of_a_pulled_client_is_where_it_stopped():
    """It was taken when somebody had pulled the last bytes. By then the closed client stood where
    the tail stood: what came meanwhile was lost at each reload."""
    client = create_client()
    stream = client.pull()
    write_records(client, b"sent")
    await run_loop_turns(5)
    position = client.subscription.token
    client.end(EndReason.CHANGED)
    await run_loop_turns(5)
    write_records(client, b"later")
    assert b"sent" in b"".join([piece async for piece in stream])
    assert stream.handover is not None and stream.handover.position == position


async def test_a_client_that_follows_another_ends_before_what_a_recreated_topic_brings():
    """It took the ends of the former log for those of the new one, and never ended."""
    client = create_client(end_offset=5)
    log = client.subscription.channel.tail.logs[TP]
    client.begin()
    log.append(Gap(TP, 5, 0, 1, GapReason.RECREATED), 0.0)
    assert client.build_handover().until == {TP: 0}


async def test_bytes_that_nobody_pulls_are_counted_and_dropped_for_others():
    """300 clients of HTTP/1.0 that read nothing held 667 MiB of a gateway that was given 128."""
    aborted: list[bool] = []
    client = create_client()
    memory = get_hub(client).client_memory
    stream = client.pull(lambda: aborted.append(True))
    write_records(client, b"x" * 40_000)
    await run_loop_turns(5)
    assert memory.total > 40_000
    await anext(stream)
    assert memory.total > 40_000, "it is being sent"
    memory.limit = 1000
    memory.hold(HeldPart.RECEIVED, create_client().pull(), 10)  # alone, it might have any size
    write_records(client, b"x" * 40_000)
    await run_loop_turns(5)
    assert aborted == [True] and memory.total == 10
    with pytest.raises(MemoryFull):
        await anext(stream)
