"""The faults of the proxies take place: a test would not notice that one did not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support import kafka_wire
from support.kafka_proxy import ApiKey, KafkaProxy, TcpProxy
from support.waiting import WAIT_TIMEOUT_S


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


@pytest.mark.parametrize("count", [0, 100_000])
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


async def test_rewriting_points_metadata_at_the_proxies() -> None:
    async with cluster(rewrite=True) as (proxy, reader, writer):
        writer.write(request(ApiKey.METADATA, 1, 3))
        answer = kafka_wire.decode_response(ApiKey.METADATA, 1, await receive(reader))
        assert answer is not None
        assert answer["brokers"][0]["host"] == "127.0.0.1"
        assert answer["brokers"][0]["port"] == proxy[1].port


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
