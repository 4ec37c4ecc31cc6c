"""The proxies do what the tests that lean on them believe."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as KafkaPartition
from support import kafka_wire
from support.brokers import KafkaCluster
from support.kafka_proxy import ApiKey, KafkaProxy, SeenRequest, TcpProxy
from support.oracle import ReceivedRecord, StreamOracle
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition


@asynccontextmanager
async def serving(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server on a port of the OS whose every connection runs `talk`."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    for _ in range(200):
        writer.write(b"x" * 65536)
        await writer.drain()


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    async with serving(echo) as port, TcpProxy("127.0.0.1", port) as proxy:
        yield proxy


async def dial(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", proxy.port), WAIT_TIMEOUT_S)


async def read(reader: asyncio.StreamReader, count: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(count), WAIT_TIMEOUT_S)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that still comes; a reset ends it, too."""
    got = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), WAIT_TIMEOUT_S):
            got += piece
    except ConnectionError:
        pass
    return got


async def silent(reader: asyncio.StreamReader, seconds: float = 0.3) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_unchanged_both_ways(proxy: TcpProxy) -> None:
    reader, writer = await dial(proxy)
    payload = bytes(range(256)) * 4096
    writer.write(payload)
    assert await read(reader, len(payload)) == payload
    assert proxy.bytes_to_client == proxy.bytes_to_target == len(payload)
    writer.close()


async def test_the_end_of_either_side_reaches_the_other(proxy: TcpProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"last words")
    assert await read(reader, 10) == b"last words"
    writer.close()
    await wait_until(lambda: proxy.connection_count == 0)


async def test_a_target_that_sends_and_leaves_is_heard_to_the_end() -> None:
    async with serving(flood) as port, TcpProxy("127.0.0.1", port) as proxy:
        reader, writer = await dial(proxy)
        writer.write(b"!")
        assert len(await rest(reader)) == 200 * 65536


async def test_hidden_carries_nothing_until_unhidden_and_loses_nothing(proxy: TcpProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"a")
    assert await read(reader, 1) == b"a"
    await proxy.hide()
    writer.write(b"b")
    assert await silent(reader)
    assert proxy.bytes_to_target == 1
    await proxy.unhide()
    assert await read(reader, 1) == b"b"
    writer.close()


async def test_hidden_leaves_a_new_connection_without_an_answer(proxy: TcpProxy) -> None:
    await proxy.hide()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.open_connection("127.0.0.1", proxy.port), 0.5)
    assert proxy.accepted_at == []
    await proxy.unhide()
    reader, writer = await dial(proxy)
    writer.write(b"a")
    assert await read(reader, 1) == b"a"
    writer.close()


async def test_unhiding_leaves_other_faults_be_and_restoring_does_not(proxy: TcpProxy) -> None:
    proxy.stall()
    await proxy.hide()
    await proxy.unhide()
    reader, writer = await dial(proxy)
    writer.write(b"a")
    assert await silent(reader)
    await proxy.restore()
    assert await read(reader, 1) == b"a"
    writer.close()


async def test_a_connection_begun_while_hidden_comes_through_once_unhidden(
    proxy: TcpProxy,
) -> None:
    await proxy.hide()
    waiting = asyncio.create_task(dial(proxy))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await proxy.unhide()
    reader, writer = await waiting
    writer.write(b"a")
    assert await read(reader, 1) == b"a"
    writer.close()


async def test_refused_closes_old_connections_and_turns_new_ones_away(proxy: TcpProxy) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"a")
    await read(reader, 1)
    await proxy.refuse()
    assert await rest(reader) == b""
    with pytest.raises(ConnectionRefusedError):
        await dial(proxy)
    await proxy.restore()
    _, again = await dial(proxy)
    again.close()
    writer.close()


async def test_the_port_stays_the_proxys_own_while_it_refuses(proxy: TcpProxy) -> None:
    await proxy.refuse()
    with socket.socket() as thief, pytest.raises(OSError):
        thief.bind(("127.0.0.1", proxy.port))


async def test_hanging_up_counts_the_attempts(proxy: TcpProxy) -> None:
    await proxy.hang_up()
    for _ in range(3):
        reader, writer = await dial(proxy)
        assert await rest(reader) == b""
        writer.close()
    assert len(proxy.accepted_at) == 3


async def test_a_missing_target_closes_the_connection() -> None:
    async with TcpProxy() as proxy:
        reader, writer = await dial(proxy)
        assert await rest(reader) == b""
        writer.close()


async def test_delay_postpones_each_piece_without_slowing_the_flow(proxy: TcpProxy) -> None:
    proxy.set_delay(0.5)
    reader, writer = await dial(proxy)
    began = time.monotonic()
    for n in range(10):
        writer.write(bytes([n]))
        await asyncio.sleep(0.02)
    assert await read(reader, 10) == bytes(range(10))
    took = time.monotonic() - began
    assert took >= 0.65, "the last piece was written after 0.18 s and comes 0.5 s later"
    assert took < 4.9, "ten delays in a row would be 5 s"
    writer.close()


@pytest.mark.parametrize("count", [0, 1, 7, 100_000])
async def test_cut_after_delivers_exactly_so_many_bytes(proxy: TcpProxy, count: int) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"a")
    assert await read(reader, 1) == b"a"
    payload = bytes(i % 251 for i in range(200_000))
    proxy.cut_after(count)
    writer.write(payload)
    assert await rest(reader) == payload[:count]
    _, again = await dial(proxy)
    again.close()
    writer.close()


async def test_cut_ends_every_connection_and_spares_the_next(proxy: TcpProxy) -> None:
    first, second = await dial(proxy), await dial(proxy)
    await wait_until(lambda: proxy.connection_count == 2)
    proxy.cut()
    assert await rest(first[0]) == await rest(second[0]) == b""
    reader, writer = await dial(proxy)
    writer.write(b"a")
    assert await read(reader, 1) == b"a"
    for _, old in (first, second, (reader, writer)):
        old.close()


async def test_a_stalled_client_holds_up_the_target_and_then_gets_all() -> None:
    async with (
        serving(flood) as port,
        TcpProxy("127.0.0.1", port, receive_buffer=8192) as proxy,
    ):
        proxy.stall()
        reader, writer = await dial(proxy)
        writer.write(b"!")
        assert await silent(reader)
        assert proxy.bytes_to_client == 0
        proxy.unstall()
        assert len(await rest(reader)) == 200 * 65536
        writer.close()


# -- Kafka's frames -------------------------------------------------------------------


def request(api: int, version: int, correlation: int, client: str = "test") -> bytes:
    body = struct.pack(">hhih", api, version, correlation, len(client)) + client.encode()
    return struct.pack(">i", len(body)) + body


async def receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await read(reader, 4))
    return await read(reader, size)


def metadata_v1(correlation: int, port: int) -> bytes:
    """Node 1 on localhost, no rack, controller 1, no topics."""
    broker = struct.pack(">ih9sih", 1, 9, b"localhost", port, -1)
    return struct.pack(">ii", correlation, 1) + broker + struct.pack(">ii", 1, 0)


def list_offsets_v1(correlation: int) -> bytes:
    """orders: partition 0 at offset 5, partition 1 at 6."""
    head = struct.pack(">iih6si", correlation, 1, 6, b"orders", 2)
    return head + b"".join(struct.pack(">ihqq", p, 0, -1, 5 + p) for p in (0, 1))


def fetch_v4(correlation: int) -> bytes:
    """orders 0 with three bytes of records."""
    head = struct.pack(">iiih6si", correlation, 0, 1, 6, b"orders", 1)
    return head + struct.pack(">ihqqii3s", 0, 0, 9, 9, -1, 3, b"abc")


async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers metadata, list offsets and fetch; other requests by their correlation id alone."""
    while True:
        header = kafka_wire.parse_request_header(await receive(reader))
        known = {ApiKey.LIST_OFFSETS: list_offsets_v1, ApiKey.FETCH: fetch_v4}
        if header.api_key == ApiKey.METADATA:
            answer = metadata_v1(header.correlation_id, 9092)
        elif header.api_key in known:
            answer = known[ApiKey(header.api_key)](header.correlation_id)
        else:
            answer = struct.pack(">i", header.correlation_id)
        writer.write(struct.pack(">i", len(answer)) + answer)


@asynccontextmanager
async def cluster(
    rewrite: bool = False,
) -> AsyncIterator[tuple[KafkaProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Two nodes behind a proxy, and a connection to node 1."""
    async with serving(broker) as port, KafkaProxy(rewrites_addresses=rewrite) as proxy:
        ports = await proxy.listen_for([1, 2])
        assert proxy.get_advertised(2) == ("127.0.0.1", ports[2])
        for node in (1, 2):
            proxy.set_target(node, "127.0.0.1", port)
        reader, writer = await dial(proxy[1])
        yield proxy, reader, writer
        writer.close()


async def test_requests_are_counted_by_node_key_client_and_time() -> None:
    async with cluster() as (proxy, reader, writer):
        for number, api in enumerate((ApiKey.HEARTBEAT, ApiKey.HEARTBEAT, ApiKey.LIST_OFFSETS)):
            writer.write(request(api, 1, number))
            await receive(reader)
        then = time.monotonic()
        other_reader, other = await dial(proxy[2])
        other.write(request(ApiKey.HEARTBEAT, 1, 9, client="another"))
        await receive(other_reader)
        assert proxy.count_requests(ApiKey.HEARTBEAT) == 3
        assert proxy.count_requests(ApiKey.HEARTBEAT, node=1) == 2
        assert proxy.count_requests(ApiKey.HEARTBEAT, since=then) == 1
        assert proxy.count_requests(client_id="another") == 1
        assert proxy.count_requests() == 4
        assert (
            proxy.count_connects(),
            proxy.count_connects(1),
            proxy.count_connects(since=then),
        ) == (2, 1, 1)
        other.close()


async def test_a_frame_in_many_pieces_is_one_request() -> None:
    async with cluster() as (proxy, reader, writer):
        for byte in request(ApiKey.HEARTBEAT, 1, 7):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert await receive(reader) == struct.pack(">i", 7)
        assert proxy.count_requests() == 1


async def test_a_fault_of_one_broker_is_not_one_of_the_other() -> None:
    async with cluster() as (proxy, reader, writer):
        await proxy[1].hide()
        writer.write(request(ApiKey.HEARTBEAT, 1, 1))
        other_reader, other = await dial(proxy[2])
        other.write(request(ApiKey.HEARTBEAT, 1, 2))
        assert await receive(other_reader) == struct.pack(">i", 2)
        assert await silent(reader)
        await proxy.restore_all()
        assert await receive(reader) == struct.pack(">i", 1)
        other.close()


async def test_a_cut_falls_inside_a_frame() -> None:
    async with cluster() as (proxy, reader, writer):
        proxy[1].cut_after(6)
        writer.write(request(ApiKey.HEARTBEAT, 1, 1))
        assert await rest(reader) == struct.pack(">ih", 4, 0)


async def test_rewriting_points_metadata_at_the_proxies() -> None:
    async with cluster(rewrite=True) as (proxy, reader, writer):
        writer.write(request(ApiKey.METADATA, 1, 3))
        answer = kafka_wire.decode_response(ApiKey.METADATA, 1, await receive(reader))
        assert answer is not None
        assert answer["brokers"][0]["host"] == "127.0.0.1"
        assert answer["brokers"][0]["port"] == proxy[1].port


async def test_without_rewriting_metadata_passes_byte_for_byte() -> None:
    async with cluster() as (_, reader, writer):
        writer.write(request(ApiKey.METADATA, 1, 3))
        assert await receive(reader) == metadata_v1(3, 9092)


async def test_an_injected_error_hits_only_its_partition_so_many_times() -> None:
    async with cluster() as (proxy, reader, writer):
        injection = proxy.inject_error(ApiKey.LIST_OFFSETS, 6, topic="orders", partition=1, times=1)
        seen = []
        for number in range(2):
            writer.write(request(ApiKey.LIST_OFFSETS, 1, number))
            answer = kafka_wire.decode_response(ApiKey.LIST_OFFSETS, 1, await receive(reader))
            assert answer is not None
            seen.append([entry["error_code"] for entry in answer["topics"][0]["partitions"]])
        assert seen == [[0, 6], [0, 0]]
        assert injection.hit_count == 1


async def test_an_injected_fetch_error_takes_the_records_away_until_healed() -> None:
    async with cluster() as (proxy, reader, writer):
        injection = proxy.inject_error(ApiKey.FETCH, 74, node=1)
        writer.write(request(ApiKey.FETCH, 4, 1))
        answer = kafka_wire.decode_response(ApiKey.FETCH, 4, await receive(reader))
        assert answer is not None
        entry = answer["topics"][0]["partitions"][0]
        assert (entry["error_code"], entry["records"]) == (74, b"")
        proxy.remove_injection(injection)
        writer.write(request(ApiKey.FETCH, 4, 2))
        assert await receive(reader) == fetch_v4(2)


async def test_an_error_for_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout"):
        KafkaProxy().inject_error(ApiKey.HEARTBEAT, 25)


async def test_a_hook_answers_in_the_order_of_the_requests() -> None:
    async with cluster() as (proxy, reader, writer):
        proxy.on_request = lambda r: b"mine" if r.correlation_id == 2 else None
        writer.write(b"".join(request(ApiKey.HEARTBEAT, 1, n) for n in (1, 2, 3)))
        answers = [await receive(reader) for _ in range(3)]
        assert answers == [struct.pack(">i", 1), struct.pack(">i", 2) + b"mine", answers[2]]
        assert answers[2] == struct.pack(">i", 3)


async def test_a_hook_may_change_an_answer() -> None:
    async with cluster() as (proxy, reader, writer):
        proxy.on_response = lambda r, answer: answer | {"controller_id": 7}
        writer.write(request(ApiKey.METADATA, 1, 1))
        answer = kafka_wire.decode_response(ApiKey.METADATA, 1, await receive(reader))
        assert answer is not None
        assert answer["controller_id"] == 7


async def test_a_failing_hook_is_not_swallowed() -> None:
    proxy = KafkaProxy()

    def fail(_: object) -> bytes | None:
        raise AssertionError("seen")

    proxy.on_request = fail
    async with serving(broker) as port:
        await proxy.listen_for([1])
        proxy.set_target(1, "127.0.0.1", port)
        reader, writer = await dial(proxy[1])
        writer.write(request(ApiKey.HEARTBEAT, 1, 1))
        assert await rest(reader) == b""
        with pytest.raises(ExceptionGroup) as caught:
            await proxy.close()
        assert caught.group_contains(AssertionError, match="seen")


@pytest.mark.parametrize("api", sorted(kafka_wire.RESPONSE_LAYOUTS))
def test_every_layout_reads_what_it_writes(api: int) -> None:
    for version in range(18):
        answer = sample_answer(api, version)
        frame = kafka_wire.encode_response(api, version, answer)
        assert kafka_wire.decode_response(api, version, frame) == answer
        with pytest.raises(ValueError):
            kafka_wire.decode_response(api, version, frame + b"!")


def sample_answer(api: int, version: int) -> dict[str, object]:
    def sample(kind: object) -> object:
        if isinstance(kind, list):
            return [fields(kind) if isinstance(kind[0], kafka_wire.FieldLayout) else 5]
        return {"str": "topic", "bytes": b"x" * 300, "uuid": bytes(16), "bool": True}.get(
            str(kind), 7
        )

    def fields(layout: list[kafka_wire.FieldLayout]) -> dict[str, object]:
        inside = {
            f.name: sample(f.field_type)
            for f in layout
            if f.min_version <= version <= f.max_version
        }
        return inside | ({"tags": [(200, b"t" * 200)]} if flexible else {})

    flexible = version >= kafka_wire.RESPONSE_LAYOUTS[api].first_flexible
    head: dict[str, object] = {"header_tags": []} if flexible else {}
    return {"correlation_id": 1} | head | fields(kafka_wire.RESPONSE_LAYOUTS[api].fields)


# -- a real broker --------------------------------------------------------------------


async def test_a_hidden_broker_is_hidden_from_those_behind_the_proxy_alone(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    """Producers reach it; a reader behind the proxy gets all of it once it is unhidden."""
    name = topic(partitions=1)
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer,
        AIOKafkaConsumer(
            name,
            bootstrap_servers=proxy.bootstrap,
            auto_offset_reset="earliest",
            request_timeout_ms=3000,
        ) as consumer,
    ):
        await producer.send_and_wait(name, b"before")
        assert (await asyncio.wait_for(consumer.getone(), WAIT_TIMEOUT_S)).value == b"before"
        for broker in proxy.brokers:
            await broker.hide()
        await producer.send_and_wait(name, b"meanwhile")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.getone(), 0.5)
        await proxy.restore_all()
        assert (await asyncio.wait_for(consumer.getone(), WAIT_TIMEOUT_S)).value == b"meanwhile"
        assert proxy.count_requests(ApiKey.FETCH) > 0
        assert proxy.count_requests(ApiKey.PRODUCE) == 0


async def test_a_hidden_leader_holds_up_its_own_partitions_alone(kafka3: KafkaCluster) -> None:
    """One consumer for each partition, behind the proxy: two of three go on."""
    name = kafka3.create_unique_topic(assignment=[[1], [2], [3]])
    async with (
        KafkaProxy.wrap_cluster(kafka3.bootstrap_servers) as proxy,
        AIOKafkaProducer(bootstrap_servers=kafka3.bootstrap_servers) as producer,
        AsyncExitStack() as stack,
    ):
        consumers = []
        for partition in range(3):
            consumer = AIOKafkaConsumer(
                bootstrap_servers=proxy.bootstrap,
                auto_offset_reset="earliest",
                request_timeout_ms=3000,
            )
            consumers.append(await stack.enter_async_context(consumer))
            consumer.assign([KafkaPartition(name, partition)])

        async def write(value: bytes) -> None:
            for partition in range(3):
                await producer.send_and_wait(name, value, partition=partition)

        await write(b"before")
        for consumer in consumers:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_TIMEOUT_S)).value == b"before"
        await proxy[2].hide()
        await write(b"meanwhile")
        for consumer in (consumers[0], consumers[2]):
            assert (await asyncio.wait_for(consumer.getone(), WAIT_TIMEOUT_S)).value == b"meanwhile"
        hidden = asyncio.create_task(consumers[1].getone())
        await asyncio.sleep(0.5)
        assert not hidden.done()
        await proxy[2].unhide()
        assert (await asyncio.wait_for(hidden, WAIT_TIMEOUT_S)).value == b"meanwhile"


async def test_a_reader_cut_at_random_bytes_loses_nothing_by_the_proxy(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    """aiokafka asks again for what was cut; the oracle finds its stream whole."""
    name, chance = topic(partitions=3), random.Random(7)
    got: list[ReceivedRecord] = []
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        StreamOracle(kafka.bootstrap_servers) as oracle,
        AIOKafkaConsumer(
            name, bootstrap_servers=proxy.bootstrap, auto_offset_reset="earliest"
        ) as consumer,
    ):

        async def read() -> None:
            async for record in consumer:
                tp = TopicPartition(name, record.partition)
                got.append(ReceivedRecord(tp, record.offset, record.value, record.key))

        reading = asyncio.create_task(read())
        try:
            for _ in range(5):
                for broker in proxy.brokers:
                    broker.cut_after(chance.randrange(3000))
                await oracle.produce_records(name, 100)
                await wait_until(lambda: not oracle.list_missing(got), "every record")
        finally:
            reading.cancel()
        oracle.check_items(got, start={TopicPartition(name, number): 0 for number in range(3)})
        assert proxy.count_connects() > 5


async def test_real_answers_survive_being_taken_apart(
    kafka: KafkaCluster, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka and librdkafka use different versions of each; both read on."""
    name = topic(partitions=3)
    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        checked: set[tuple[int, int]] = set()

        altered = proxy.alter_response

        def check(request: SeenRequest, frame: bytes) -> bytes:
            if answer := kafka_wire.decode_response(request.api_key, request.api_version, frame):
                assert (
                    kafka_wire.encode_response(request.api_key, request.api_version, answer)
                    == frame
                )
                checked.add((request.api_key, request.api_version))
            return altered(request, frame)

        monkeypatch.setattr(proxy, "alter_response", check)
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for partition in range(3):
                await producer.send_and_wait(name, b"x", partition=partition)
        async with AIOKafkaConsumer(
            name, bootstrap_servers=proxy.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            for _ in range(3):
                await asyncio.wait_for(consumer.getone(), WAIT_TIMEOUT_S)
        assert await asyncio.to_thread(rdkafka_reads, proxy.bootstrap, name) == 3
        for api in (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA):
            versions = {version for key, version in checked if key == api}
            assert len(versions) >= 2, (api, versions)


def rdkafka_reads(bootstrap: str, name: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    try:
        start = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(name, p, start) for p in range(3)])
        return len([m for m in consumer.consume(3, timeout=WAIT_TIMEOUT_S) if m.error() is None])
    finally:
        consumer.close()
