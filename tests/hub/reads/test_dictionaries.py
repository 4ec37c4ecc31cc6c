"""Dictionaries of views: which are kept, which are offered, and what a stranger can do to them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.gateways import build_config
from support.moved_ids import move_id
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import WAIT_TIMEOUT_S

from gateway.config import Settings
from gateway.core.channel.filters import Filter, Filters
from gateway.core.log.record import NO_EPOCH, PartitionPosition, TopicPartition
from gateway.errors import GatewayError
from gateway.formats import create_format
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.dictionaries import MAX_DICTIONARIES, Dictionaries
from gateway.hub.reads.view import View
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Encoder
from gateway.kafka.embedded import EmbeddedKafka

ALL = View(("orders",), Filters(), "value", "error")
RECORDS = 40


def show_key(key: str) -> View:
    return View(("orders",), Filters((Filter(key=key.encode()),)), "value", "error")


async def produce(kafka: EmbeddedKafka, first: int, count: int) -> None:
    records = [
        RecordToSend(b'{"order":%d}' % number, b"key-%d" % (number % 100))
        for number in range(first, first + count)
    ]
    await produce_records(kafka.bootstrap, "orders", records)


@asynccontextmanager
async def running_hub(kafka: EmbeddedKafka) -> AsyncIterator[Hub]:
    async with open_cluster(kafka.bootstrap) as cluster:
        config = build_config(kafka.bootstrap, ["orders"])
        hub = Hub(cluster, Settings.model_validate(config))
        await hub.start()
        try:
            yield hub
        finally:
            await hub.close()


@pytest.fixture
async def hub(embedded: EmbeddedKafka) -> AsyncIterator[Hub]:
    embedded.create_topic("orders")
    await produce(embedded, 0, RECORDS)
    async with running_hub(embedded) as hub:
        yield hub


def create_dictionaries(hub: Hub, **options: Any) -> Dictionaries:
    return Dictionaries(hub.read_services, hub.keep_open, create_encoder, **options)


def create_encoder(view: View) -> Encoder:
    return SseWire().create_encoder(create_format(view.format))


async def test_what_is_offered_is_found_and_lasts(hub: Hub, embedded: EmbeddedKafka):
    dictionaries = hub.dictionaries
    newest = await dictionaries.get_newest(ALL, "a")
    assert newest.record_count == RECORDS
    await produce(embedded, RECORDS, 10)
    assert await dictionaries.get_newest(ALL, "a") is newest
    digest = newest.dictionary.digest
    assert await dictionaries.find(ALL, "a", digest, newest.id) is newest.dictionary
    assert await dictionaries.find(ALL, "a", digest, "") is newest.dictionary
    assert await dictionaries.find(ALL, "a", b"other", newest.id) is None


async def test_equal_content_is_one_dictionary_however_it_was_found(hub: Hub):
    """So that all of its clients share what is compressed."""
    newest = await hub.dictionaries.get_newest(ALL, "a")
    hub.dictionaries.clear()
    again = await hub.dictionaries.find(ALL, "a", newest.dictionary.digest, newest.id)
    assert again is newest.dictionary
    assert len({hub.dictionaries.used_bytes, create_dictionaries(hub).used_bytes}) == 2


async def test_an_id_beyond_the_end_holds_up_no_read_of_the_partition(hub: Hub):
    newest = await hub.dictionaries.get_newest(ALL, "a")
    for offset in (RECORDS + 1, 10**9):
        finding = asyncio.create_task(
            hub.dictionaries.find(ALL, "a", b"d" * 32, move_id(newest.id, "orders", offset))
        )
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await hub.backfill_reader.read(
                TopicPartition("orders", 0), PartitionPosition(0, NO_EPOCH)
            )
            assert await finding is None
        assert not hub.backfill_reader.fetcher.partition_fetches


async def test_what_a_stranger_names_is_offered_to_nobody_and_evicts_nothing(hub: Hub):
    newest = await hub.dictionaries.get_newest(ALL, "a")
    for number in range(2 * MAX_DICTIONARIES):
        id = move_id(newest.id, "orders", 1, issued=1_000_000 + number)
        assert await hub.dictionaries.find(ALL, "a", b"d" * 32, id) is None
    assert await hub.dictionaries.get_newest(ALL, "a") is newest
    hub.dictionaries.clear()
    old = move_id(newest.id, "orders", 1)
    await hub.dictionaries.find(ALL, "a", b"d" * 32, old)
    assert (await hub.dictionaries.get_newest(ALL, "a")).record_count == RECORDS


async def test_many_views_at_once_each_get_one(hub: Hub):
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        made = await asyncio.gather(
            *(hub.dictionaries.get_newest(show_key(f"key-{n}"), "a") for n in range(30))
        )
    assert [each.record_count for each in made] == [1] * 30


async def test_more_than_that_many_are_never_made_and_streams_do_without(hub: Hub):
    """Those that streams use count, too, after they were forgotten here."""
    used = []
    for number in range(MAX_DICTIONARIES):
        key = f"key-{number % RECORDS}"
        view = View(("orders",), Filters((Filter(key=key.encode()),)), "value", "error")
        used.append((await hub.dictionaries.get_newest(view, f"{number}")).dictionary)
    distinct = len(set(map(id, used)))
    assert hub.dictionaries.used_bytes == distinct * 128 * 1024
    hub.dictionaries.clear()
    assert hub.dictionaries.used_bytes == distinct * 128 * 1024
    used.clear()
    gc.collect()
    assert hub.dictionaries.used_bytes == 0


async def test_one_of_records_that_kafka_has_no_longer_is_not_offered(hub, embedded):
    dictionaries = create_dictionaries(hub, check_interval_s=0.0)
    newest = await dictionaries.get_newest(ALL, "a")
    assert await dictionaries.get_newest(ALL, "a") is newest
    embedded.delete_topic("orders")
    await hub.cluster.metadata.refresh("the topic is gone")
    with pytest.raises(GatewayError):
        await dictionaries.get_newest(ALL, "a")
    await dictionaries.close()


async def test_nothing_that_was_begun_before_a_change_is_kept_after_it(hub: Hub):
    dictionaries = create_dictionaries(hub, check_interval_s=0.0)
    newest = await dictionaries.get_newest(ALL, "a")
    pending = [
        asyncio.create_task(dictionaries.get_newest(ALL, "a")),
        asyncio.create_task(dictionaries.find(ALL, "b", newest.dictionary.digest, newest.id)),
    ]
    await asyncio.sleep(0)
    dictionaries.clear()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert isinstance(results[0], GatewayError) and results[1] is None
    reads = hub.backfill_reader.read_counts.total()
    await dictionaries.get_newest(ALL, "a")
    assert hub.backfill_reader.read_counts.total() > reads, "it is made anew"
    await dictionaries.close()


async def test_an_error_costs_a_stream_its_dictionary_only(hub, caplog):
    newest = await hub.dictionaries.get_newest(ALL, "a")

    def fail(view: View) -> Any:
        raise ZeroDivisionError

    dictionaries = Dictionaries(hub.read_services, hub.keep_open, fail)
    assert await dictionaries.find(ALL, "a", newest.dictionary.digest, newest.id) is None
    assert "ZeroDivisionError" in caplog.text
    await dictionaries.close()
