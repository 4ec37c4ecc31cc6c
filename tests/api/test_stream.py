"""Streams of a program, over a real connection to an embedded broker."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterable

import pytest
import uvloop
from support.gateways import build_config
from support.leaks import collect_resources
from support.records import RecordToSend, produce_records
from support.waiting import TurnCounter, wait_until

from gateway import (
    Begin,
    BrokerUnavailable,
    End,
    Gap,
    Gateway,
    GatewayError,
    Record,
    Settings,
    StreamEnded,
    UnknownTopic,
)
from gateway.core.client.read_buffer import MAX_BUFFER_BYTES
from gateway.kafka.embedded import EmbeddedKafka

PATIENCE = 30.0


@pytest.fixture
def orders(embedded: EmbeddedKafka) -> EmbeddedKafka:
    """With the topic `orders`, of three partitions."""
    embedded.create_topic("orders", 3)
    return embedded


@pytest.fixture
async def gateway(orders: EmbeddedKafka) -> AsyncIterator[Gateway]:
    async with asyncio.timeout(60), Gateway(servers=orders.bootstrap) as gateway:
        yield gateway


def values(numbers: Iterable[int]) -> list[RecordToSend]:
    return [RecordToSend(b"%d" % n, b"k%d" % n, n % 3) for n in numbers]


async def put(kafka: EmbeddedKafka, numbers: Iterable[int]) -> None:
    await produce_records(kafka.bootstrap, "orders", values(numbers))


def numbers(records: Iterable[Record]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


async def test_a_loop_hears_what_is_written_from_its_begin_on(gateway, orders):
    await put(orders, range(9))
    got: list[Record] = []
    async with gateway.subscribe("orders") as stream:
        await produce_records(
            orders.bootstrap,
            "orders",
            [RecordToSend(b"\xff\x00", b"", 2, 1_700_000_000_000, (("h", b"\xfe"), ("h", b"")))],
        )
        async for record in stream:
            got.append(record)
            break
    (record,) = got
    assert record[:7] == (
        "orders", 2, 3, 1_700_000_000_000, b"", b"\xff\x00", (("h", b"\xfe"), ("h", b""))
    )  # fmt: skip


async def test_it_goes_on_exactly_after_any_record(gateway: Gateway, orders: EmbeddedKafka):
    await put(orders, range(30))
    all_of_it = [r async for r in gateway.subscribe("orders", start="earliest", until="latest")]
    assert numbers(all_of_it) == list(range(30))
    for n in (0, 13, 28):
        rest = [
            r
            async for r in gateway.subscribe("orders", position=all_of_it[n].position, until=29 - n)
        ]
        assert numbers([*all_of_it[: n + 1], *rest]) == list(range(30))


async def test_filters_and_fields_choose_as_for_every_other_client(gateway, orders):
    texts = [b'{"n": %d, "who": "ada"}' % n for n in range(9)]
    await produce_records(
        orders.bootstrap, "orders", [*map(RecordToSend, texts), RecordToSend(b"no json")]
    )
    some = gateway.subscribe(
        "orders",
        start="earliest",
        until="latest",
        filters=[{"value": {"/n": {"gte": 7}}}, {"value": {"/n": 2}}],
        fields="/n",
    )
    assert sorted([record.json()["n"] async for record in some]) == [2, 7, 8]


async def test_all_that_is_told_is_among_the_events(gateway: Gateway, orders: EmbeddedKafka):
    await put(orders, range(6))
    orders.delete_records("orders", {0: 1})
    stream = gateway.subscribe("orders", start="earliest", until="latest")
    events = [event async for event in stream.events()]
    begin, *middle, end = events
    assert isinstance(begin, Begin)
    assert begin[:4] == (("orders",), {"orders": 3}, (), "exact")
    assert end == End("until", middle[-1].position) == End("until", stream.position or "")
    assert numbers(each for each in middle if isinstance(each, Record)) == [1, 2, 3, 4, 5]


async def gapped(gateway: Gateway, kafka: EmbeddedKafka) -> str:
    """A position before records that Kafka then lost, and nobody here remembers."""
    await put(kafka, range(30))
    async for record in gateway.subscribe("orders", start="earliest"):
        position = record.position
        break
    kafka.delete_records("orders", {0: 5, 1: 5, 2: 5})
    return position


async def test_a_gap_goes_to_who_asked_for_it_and_the_loop_goes_on(orders: EmbeddedKafka):
    async with asyncio.timeout(60):
        async with Gateway(servers=orders.bootstrap) as first:
            position = await gapped(first, orders)
        async with Gateway(servers=orders.bootstrap) as second:
            gaps: list[Gap] = []
            stream = second.subscribe("orders", position=position, on_gap=gaps.append)
            got = [await anext(stream) for _ in range(15)]
    assert numbers(got) == list(range(15, 30))
    assert {gap.reason for gap in gaps} == {"retention"}
    assert {(gap.partition, gap.to_offset) for gap in gaps} == {(0, 5), (1, 5), (2, 5)}


async def test_a_gap_that_nobody_asked_for_is_logged(orders, caplog):
    async with asyncio.timeout(60):
        async with Gateway(servers=orders.bootstrap) as first:
            position = await gapped(first, orders)
        with caplog.at_level(logging.WARNING, "gateway.api.stream"):
            async with Gateway(servers=orders.bootstrap) as second:
                stream = second.subscribe("orders", position=position)
                assert len([await anext(stream) for _ in range(15)]) == 15
    said = [each.message for each in caplog.records if each.name == "gateway.api.stream"]
    assert len(said) == 3
    assert "to 5 will not come (retention); give on_gap=" in said[0]


async def test_an_anext_that_was_given_up_loses_nothing(gateway: Gateway, orders: EmbeddedKafka):
    got: list[Record] = []
    async with gateway.subscribe("orders") as stream:
        writing = asyncio.create_task(put(orders, range(300)))
        given_up = 0
        while len(got) < 300:
            try:
                async with asyncio.timeout(0.0005):
                    got.append(await anext(stream))
            except TimeoutError:
                given_up += 1
        await writing
    assert given_up
    assert numbers(got) == list(range(300))


async def test_a_stream_goes_on_when_its_topic_is_read_otherwise(orders: EmbeddedKafka):
    """It heard nothing more, for ever: the reader of replies is such a stream, too."""
    before, after = (
        Settings.model_validate(build_config(orders.bootstrap, [{"name": "orders", **options}]))
        for options in ({}, {"cache": {"bytes": "1MiB"}})
    )
    async with asyncio.timeout(60), Gateway(before) as gateway:
        events = gateway.subscribe("orders", start="earliest", until=12).events()
        await put(orders, range(3))
        heard = [await anext(events) for _ in range(4)]
        for numbers_, settings in ((range(3, 6), after), (range(6, 12), before)):
            gateway.adopt(settings)
            await put(orders, numbers_)
            heard += [await anext(events) for _ in numbers_]
        heard += [event async for event in events]
    assert [type(event) for event in heard] == [Begin, *[Record] * 12, End]
    assert numbers(event for event in heard if isinstance(event, Record)) == list(range(12))


async def test_a_stream_that_opens_while_its_topic_is_read_otherwise_hears_all(
    orders: EmbeddedKafka,
):
    """It was given the reads that the reload had just ended, and heard nothing more, for ever."""
    before, after = (
        Settings.model_validate(build_config(orders.bootstrap, [{"name": "orders", **options}]))
        for options in ({}, {"cache": {"bytes": "1MiB"}})
    )
    async with asyncio.timeout(60), Gateway(before) as gateway:
        await put(orders, range(3))
        async with gateway.subscribe("orders", start="earliest") as stream:
            await anext(stream)
        counts = gateway.hub.cluster.request_counts
        asked = counts["ListOffsets"]
        orders.delay(1, 0.3)
        stream = gateway.subscribe("orders", start="earliest")
        first = asyncio.ensure_future(anext(stream))
        await wait_until(lambda: counts["ListOffsets"] > asked)
        gateway.adopt(after)
        orders.delay(1, 0.0)
        await put(orders, range(3, 6))
        got = [await first, *[await anext(stream) for _ in range(5)]]
        assert numbers(got) == list(range(6))
        await stream.aclose()


async def test_streams_of_the_same_share_one_read(gateway: Gateway, orders: EmbeddedKafka):
    async with (
        gateway.subscribe("orders") as one,
        gateway.subscribe("orders") as other,
        gateway.subscribe("orders", filters={"key": "k1"}) as narrow,
    ):
        await put(orders, range(9))
        for stream in (one, other):
            assert numbers([await anext(stream) for _ in range(9)]) == list(range(9))
        assert (await anext(narrow)).value == b"1"
        assert len(gateway.hub.shared_reads.fetcher.partition_fetches) == 3
        channels = {client.subscription.channel for client in gateway.hub.clients}
        assert len(gateway.hub.clients) == 3
        assert len(channels) == 2


async def left(gateway: Gateway) -> None:
    def gone() -> bool:
        gc.collect()
        return not gateway.hub.clients

    await wait_until(gone, "the end of the subscription", PATIENCE)


async def breaking(gateway: Gateway) -> None:
    async for _ in gateway.subscribe("orders", start="earliest"):
        break


async def failing(gateway: Gateway) -> None:
    with pytest.raises(ZeroDivisionError):
        async for _ in gateway.subscribe("orders", start="earliest"):
            raise ZeroDivisionError


async def cancelled(gateway: Gateway) -> None:
    async def read() -> None:
        async for _ in gateway.subscribe("orders"):
            pass

    reading = asyncio.create_task(read())
    await wait_until(lambda: gateway.hub.clients, "the stream", PATIENCE)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def closing(gateway: Gateway) -> None:
    stream = gateway.subscribe("orders", start="earliest")
    await anext(stream)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def giving_up_the_opening(gateway: Gateway) -> None:
    for step in range(12):
        task = asyncio.create_task(anext(gateway.subscribe("orders")))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("leave", [breaking, failing, cancelled, closing, giving_up_the_opening])
async def test_whoever_leaves_a_loop_leaves_nothing_behind(leave, gateway, orders):
    await put(orders, range(9))
    async for _ in gateway.subscribe("orders", start="earliest", until="latest"):
        pass
    await left(gateway)
    before = collect_resources()
    for _ in range(3):
        await leave(gateway)
        await left(gateway)
    await wait_until(
        lambda: not (collect_resources() - before).tasks,
        lambda: f"{collect_resources() - before}",
        PATIENCE,
    )


async def test_a_stream_that_nobody_reads_holds_a_bounded_backlog(gateway, orders):
    """And gets all of it when it reads again."""
    big = [RecordToSend(b"%06d" % n + b"x" * 2000, None, n % 3) for n in range(2000)]
    async with gateway.subscribe("orders") as slow, gateway.subscribe("orders") as quick:
        await produce_records(orders.bootstrap, "orders", big[:1])
        await anext(slow)
        await produce_records(orders.bootstrap, "orders", big[1:])
        for _ in big:
            await anext(quick)
        (client,) = (c for c in gateway.hub.clients if c.subscription.private_positions)
        assert client.subscription.buffered_bytes < 2 * MAX_BUFFER_BYTES
        assert (
            client.subscription.channel.bytes
            < 2 * client.subscription.channel.ring_budget.max_ring_bytes
        )
        got = {int((await anext(slow)).value[:6]) for _ in big[1:]}  # type: ignore[index]
    assert got == set(range(1, 2000))


async def test_a_loop_over_what_is_there_already_does_not_stop_all_others(gateway, orders):
    big = [RecordToSend(b"x" * 2000, None, n % 3) for n in range(1000)]
    async with gateway.subscribe("orders") as behind, gateway.subscribe("orders") as ahead:
        await produce_records(orders.bootstrap, "orders", big)
        for _ in big:
            await anext(ahead)
        with TurnCounter() as turns:
            for _ in big:  # 2 MB, all of it in memory
                await anext(behind)
    assert turns.count > 10


async def test_a_stream_is_read_by_one_task_at_a_time(gateway: Gateway):
    async with gateway.subscribe("orders") as stream:
        await anext(stream.events())
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="is being read already"):
            await anext(stream)
        first.cancel()


async def test_a_loop_cut_short_by_the_end_of_its_gateway_is_told(orders: EmbeddedKafka):
    """Ending without a word would look like the end of the records."""
    gateway = Gateway(servers=orders.bootstrap)
    await gateway.start()
    stream = gateway.subscribe("orders")
    events = gateway.subscribe("orders").events()
    assert isinstance(await anext(events), Begin)
    waiting = asyncio.create_task(anext(stream))
    await wait_until(lambda: len(gateway.hub.clients) == 2 and stream._is_open, "both", PATIENCE)
    await gateway.close()
    with pytest.raises(StreamEnded) as ended:
        await asyncio.wait_for(waiting, PATIENCE)
    assert ended.value.reason == "closed"
    assert ended.value.position
    told = [event async for event in events]
    assert isinstance(told[-1], End) and told[-1].reason == "closed"


async def test_an_opening_cut_short_by_the_end_of_its_gateway_is_told_too():
    """Who waits was not cancelled, and must not be told so."""
    topics = [{"name": "orders", "partitionReadyTimeout": "60s"}]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        gateway = Gateway(servers=f"127.0.0.1:{port}", topics=topics, requestTimeout="60s")
        await gateway.start()
        opening = asyncio.create_task(anext(gateway.subscribe("orders")))
        await wait_until(lambda: gateway.hub.topics.required_topics, "the opening", PATIENCE)
        await gateway.close()
        with pytest.raises(StreamEnded, match="closed"):
            await asyncio.wait_for(opening, PATIENCE)


async def test_who_waits_for_a_stream_closed_by_another_task_is_let_go(gateway: Gateway):
    stream = gateway.subscribe("orders")
    waiting = asyncio.create_task(anext(stream, None))
    await wait_until(lambda: stream._is_open, "the begin", PATIENCE)
    await stream.aclose()
    assert await asyncio.wait_for(waiting, PATIENCE) is None


async def test_what_topics_settings_say_of_lost_records_ends_the_loop(orders: EmbeddedKafka):
    topic = {"name": "orders", "offsetOutOfRange": "fail"}
    config = build_config(orders.bootstrap, [topic], routes=[])
    async with asyncio.timeout(60):
        async with Gateway(servers=orders.bootstrap) as first:
            position = await gapped(first, orders)
        async with Gateway(Settings.model_validate(config)) as second:
            gaps: list[Gap] = []
            with pytest.raises(StreamEnded, match="offset-out-of-range"):
                async for _ in second.subscribe("orders", position=position, on_gap=gaps.append):
                    pass
    assert gaps


async def test_what_cannot_be_opened_says_why(gateway: Gateway):
    with pytest.raises(UnknownTopic):
        await anext(gateway.subscribe("nowhere"))
    closed = Gateway(servers="localhost:1")
    with pytest.raises(GatewayError, match="does not run; use it within `async with"):
        await anext(closed.subscribe("orders"))


async def test_kafka_away_is_told_after_the_topics_patience():
    topics = [{"name": "orders", "partitionReadyTimeout": "200ms"}]
    async with Gateway(servers="127.0.0.1:1", topics=topics) as gateway:
        with pytest.raises(BrokerUnavailable):
            await anext(gateway.subscribe("orders"))


def test_it_works_under_uvloop_too(orders: EmbeddedKafka):
    async def main() -> list[int]:
        async with asyncio.timeout(60), Gateway(servers=orders.bootstrap) as gateway:
            async with gateway.subscribe("orders") as stream:
                await put(orders, range(30))
                got = [await anext(stream) for _ in range(30)]
                for _ in range(3):
                    await breaking(gateway)
            await left(gateway)
            return numbers(got)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == list(range(30))
