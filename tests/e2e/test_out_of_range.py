"""What Kafka no longer has is told once, with its bounds, and the stream goes on.

deleteRecords while the gateway is kept from reading (its brokers are behind a proxy), real
retention, topics created anew, and a leader elected that lacks records. The oracle judges
every stream: a gap must cover exactly what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.wires import WireName, client_for_wire
from support.elections import UNCLEAN_CONFIGS, elect_follower, kill_follower
from support.gateways import build_config, running_gateway_process
from support.grouped import ERROR_NAMES
from support.kafka_proxy import ApiKey, KafkaProxy, SeenRequest
from support.oracle import AckedRecord, StreamOracle, parse_events
from support.received import GapEvent, ReceivedRecord, parse_gaps
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition

# The gateway, telling on SIGUSR1 how many tasks its loop has.
COUNTED = """
import asyncio, signal
def tell(*_):
    try:
        print(f"tasks={len(asyncio.all_tasks(asyncio.get_running_loop()))}.", flush=True)
    except RuntimeError:
        print("tasks=?", flush=True)
signal.signal(signal.SIGUSR1, tell)
from gateway.cli import main
main()
"""


def told(client: FastReconnectClient) -> list[GapEvent]:
    return [gap for e in client.events if e["event"] == "gap" for gap in parse_gaps(e["data"])]


def ends(client: FastReconnectClient) -> list[str]:
    return [json.loads(e["data"])["reason"] for e in client.events if e["event"] == "end"]


def judged(client: FastReconnectClient) -> list[Any]:
    """Its events, but for those that say that a partition is away for now."""
    return [event for event in client.events if event["event"] not in ERROR_NAMES]


def values(client: FastReconnectClient) -> set[bytes | None]:
    return {each.value for each in parse_events(judged(client)) if isinstance(each, ReceivedRecord)}


def zero(topic: str, partitions: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, p): 0 for p in range(partitions)}


@asynccontextmanager
async def listening(*clients: FastReconnectClient) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(client)
        for client in clients:
            await client.wait_for_events(1)
        yield


async def records(client: FastReconnectClient, count: int) -> None:
    """Wait until it has so many records in all."""
    await client.wait_for_events(lambda e: sum(each["event"] == "message" for each in e) >= count)


def everything(acked: AckedRecord) -> bool:
    return True


async def whole(
    oracle: StreamOracle,
    clients: Sequence[FastReconnectClient],
    topic: str,
    partitions: int,
    view: Callable[[AckedRecord], bool] = everything,
) -> None:
    """Each has heard to the end, and nothing speaks against any."""
    last = {a.tp: a.value for a in oracle.list_acked() if view(a)}
    ends = set(last.values())
    for client in clients:
        with contextlib.suppress(TimeoutError):  # the oracle says better what is missing
            await wait_until(
                lambda client=client: ends <= values(client), timeout_s=30, interval_s=0.1
            )
        oracle.check_events(judged(client), start=zero(topic, partitions), view=view)


class Held:
    """A gateway that can be kept from reading while the log's start moves.

    errors: partitions that a broker refused with OFFSET_OUT_OF_RANGE: recovery attempts.
    """

    def __init__(self, kafka: KafkaCluster, proxy: KafkaProxy, oracle: StreamOracle) -> None:
        self.kafka = kafka
        self.proxy = proxy
        self.oracle = oracle
        self.errors: list[float] = []
        proxy.on_response = self._watch

    def _watch(self, request: SeenRequest, answer: dict[str, Any]) -> None:
        if request.api_key == ApiKey.FETCH:
            for topic in answer["topics"] or ():
                for each in topic["partitions"]:
                    if each["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE:
                        self.errors.append(time.monotonic())

    async def advance(self, topic: str, partitions: int, lost: int, kept: int) -> None:
        """Write while the gateway cannot read, and delete all but the last `kept`."""
        for broker in self.proxy.brokers:
            await broker.hide()
        # The fetch that waits at the broker takes what comes first, and is the last.
        await self.oracle.produce_records(topic, 1, partition=0)
        await asyncio.sleep(0.05)
        for p in range(partitions):
            await self.oracle.produce_records(topic, lost + kept, partition=p)
        ends = self.oracle.get_start_offsets(topic, partitions)
        before = {tp.partition: end - kept for tp, end in ends.items()}
        await asyncio.to_thread(self.kafka.admin.delete_records, topic, before)
        for broker in self.proxy.brokers:
            await broker.unhide()


@pytest.mark.parametrize(
    ("wire", "policy"),
    [
        ("sse", "earliest"),
        ("sse", "latest"),
        pytest.param("sse", "fail", marks=pytest.mark.night),
        pytest.param("ndjson", "fail", marks=pytest.mark.night),
        ("websocket", "fail"),
    ],
)
async def test_deleted_records_are_one_gap_for_live_and_late_clients(
    kafka: KafkaCluster, topic: Callable[..., str], wire: WireName, policy: str
) -> None:
    name, url_of = topic(partitions=3), "{}/records/{}"
    made = {"name": name, "offsetOutOfRange": policy, "cache": {"bytes": "1B"}}
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        proxy = await stack.enter_async_context(KafkaProxy.wrap_cluster(kafka.bootstrap_servers))
        held = Held(kafka, proxy, oracle)
        gateway = await stack.enter_async_context(
            running_gateway_process(build_config(proxy.bootstrap, [made]))
        )
        url = url_of.format(gateway.base_url, name)
        live, late = (
            client_for_wire(wire, FastReconnectClient)(url),
            client_for_wire(wire, FastReconnectClient)(url),
        )
        await stack.enter_async_context(listening(live, late))
        for p in range(3):
            await oracle.produce_records(name, 10, partition=p)
        await records(live, 30)
        await records(late, 30)
        await late.stop()

        since = time.monotonic()
        await held.advance(name, 3, lost=15, kept=5)
        await wait_until(lambda: len(told(live)) == 3, live.describe_state)
        asked = proxy.count_requests(ApiKey.LIST_OFFSETS, since=since)
        assert 1 <= asked <= len(held.errors), f"{asked} ListOffsets, {len(held.errors)} attempts"

        await late.start()
        await wait_until(lambda: len(told(late)) == 3, late.describe_state)
        for p in range(3):
            await oracle.produce_records(name, 2, partition=p)
        reason = "skipped" if policy == "latest" else "retention"
        kept = 0 if policy == "latest" else 5
        for client in (live, late):
            assert {gap.reason for gap in told(client)} == {reason}
            by_partition = {gap.tp.partition: gap for gap in told(client)}
            for p, gap in by_partition.items():
                assert gap.end == 30 + (p == 0) - kept
                assert gap.start in (10, 10 + (p == 0))
        await whole(oracle, [live, late], name, 3)
        if policy == "fail":
            await wait_until(lambda: ends(live) and ends(late), "both ended")
            assert {*ends(live), *ends(late)} == {"offset-out-of-range"}
            assert live.open_count > 1, "a client that was ended comes back with its position"
        else:
            assert (live.open_count, late.open_count) == (1, 2)
            assert not ends(live)
        asked = proxy.count_requests(ApiKey.LIST_OFFSETS, since=since)
        print(f"{policy}: {asked} ListOffsets in all, {len(held.errors)} attempts")
        assert asked <= len(held.errors) + 3 * late.open_count


@pytest.mark.night
async def test_a_hundred_advances_in_a_row_are_a_gap_each_and_leak_nothing(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    made = {"name": name, "cache": {"bytes": "64KiB"}}
    command = (sys.executable, "-c", COUNTED, "run", "-c")
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        proxy = await stack.enter_async_context(KafkaProxy.wrap_cluster(kafka.bootstrap_servers))
        held = Held(kafka, proxy, oracle)
        gateway = await stack.enter_async_context(
            running_gateway_process(build_config(proxy.bootstrap, [made]), command=command)
        )
        live = FastReconnectClient(f"{gateway.base_url}/records/{name}")
        await stack.enter_async_context(listening(live))

        async def footprint() -> tuple[int, int, int, int]:
            before = gateway.log.count("tasks=")
            gateway.send_signal(signal.SIGUSR1)
            await wait_until(lambda: gateway.log.count("tasks=") > before, "the number of tasks")
            tasks = gateway.log.rpartition("tasks=")[2].partition(".")[0]
            links = sum(broker.connection_count for broker in proxy.brokers)
            return int(tasks), gateway.open_file_count, links, gateway.memory_bytes

        since, took = time.monotonic(), []
        for n in range(100):
            if n == 20:
                warm = await footprint()
            began = time.monotonic()
            await held.advance(name, 2, lost=4, kept=1)
            await wait_until(lambda n=n: len(told(live)) >= 2 * (n + 1), live.describe_state)
            took.append(time.monotonic() - began)
        await whole(oracle, [live], name, 2)
        cold = await footprint()
        asked = proxy.count_requests(ApiKey.LIST_OFFSETS, since=since)
        print(f"100 advances, {sum(took):.1f} s: {asked} ListOffsets, {len(held.errors)} attempts")
        print(f"tasks, files, connections, memory: {warm} after 20, {cold} after 100")
        assert len(told(live)) == 200
        assert live.open_count == 1
        assert asked <= len(held.errors)
        assert cold[0] <= warm[0] + 2
        assert cold[1] <= warm[1] + 2
        assert cold[2] <= warm[2] + 1
        assert cold[3] < warm[3] + (16 << 20)


async def test_a_client_that_stopped_reading_is_told_what_went_meanwhile(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    made = {"name": name, "cache": {"bytes": "1B"}}
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        gateway = await stack.enter_async_context(
            running_gateway_process(build_config(kafka.bootstrap_servers, [made]))
        )
        url = f"{gateway.base_url}/records/{name}"
        slow, other = FastReconnectClient(url, receive_buffer=8192), FastReconnectClient(url)
        await stack.enter_async_context(listening(slow, other))
        await oracle.produce_records(name, 20)
        await records(slow, 20)
        slow.stop_reading()
        for _ in range(10):
            await oracle.produce_records(name, 100, fields={"pad": "x" * 10_000})
        await records(other, 1020)
        before = {tp.partition: end - 5 for tp, end in oracle.get_end_offsets().items()}
        await asyncio.to_thread(kafka.admin.delete_records, name, before)
        await oracle.produce_records(name, 20)
        slow.resume_reading()
        await whole(oracle, [slow, other], name, 2)
        print(f"after {len(judged(slow)) - 1} events: {told(slow)}")
        assert not told(other)
        assert {gap.tp.partition: gap.end for gap in told(slow)} == before
        assert len(told(slow)) == 2
        assert slow.open_count == 1


async def test_real_retention_is_told_to_live_late_and_slow_clients(
    retention_kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    """The records that had to stay were deleted, too, where the broker was too busy to take note of
    the longer retention within half a second: they are of a later time now."""
    kafka = retention_kafka
    name = topic(partitions=2)
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        proxy = await stack.enter_async_context(KafkaProxy.wrap_cluster(kafka.bootstrap_servers))
        made = {"name": name, "cache": {"bytes": "1B"}}
        gateway = await stack.enter_async_context(
            running_gateway_process(build_config(proxy.bootstrap, [made]))
        )
        url = f"{gateway.base_url}/records/{name}"
        live, late = FastReconnectClient(url), FastReconnectClient(url)
        await stack.enter_async_context(listening(live, late))
        for p in (0, 1):
            await oracle.produce_records(name, 10, partition=p)
        await records(live, 20)
        await records(late, 20)
        await late.stop()
        for broker in proxy.brokers:
            await broker.hide()
        await oracle.produce_records(name, 1, partition=0)
        for p in (0, 1):
            await oracle.produce_records(name, 50, partition=p)
        configs = {"retention.ms": "500", "segment.ms": "300"}
        await asyncio.to_thread(kafka.admin.alter_configs, name, configs)
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while (
            min(
                [await asyncio.to_thread(kafka.admin.get_log_start_offset, name, p) for p in (0, 1)]
            )
            < 60
        ):
            assert time.monotonic() < deadline, "retention deleted nothing"
            await asyncio.sleep(0.2)
        await asyncio.to_thread(kafka.admin.alter_configs, name, {"retention.ms": "3600000"})
        later = int((time.time() + 600) * 1000)
        for p in (0, 1):
            await oracle.produce_records(name, 5, partition=p, timestamp=later)
        for broker in proxy.brokers:
            await broker.unhide()
        await wait_until(lambda: len(told(live)) == 2, live.describe_state)
        await late.start()
        await wait_until(lambda: len(told(late)) == 2, late.describe_state)
        await whole(oracle, [live, late], name, 2)
        starts = {
            TopicPartition(name, p): await asyncio.to_thread(
                kafka.admin.get_log_start_offset, name, p
            )
            for p in (0, 1)
        }
        for client in (live, late):
            assert {gap.reason for gap in told(client)} == {"retention"}
            assert {gap.tp: gap.end for gap in told(client)} == starts
            assert len(told(client)) == 2


@asynccontextmanager
async def three_clients(
    kafka: KafkaCluster, oracle: StreamOracle, topic: str, partitions: int
) -> AsyncIterator[
    tuple[FastReconnectClient, FastReconnectClient, FastReconnectClient, Callable[[], Any]]
]:
    """One that rides on, one that comes back to its gateway and one that goes to another; and
    what lets the two come back. They are away when this gives them."""
    config = build_config(kafka.bootstrap_servers, [topic])
    async with running_gateway_process(config) as here, running_gateway_process(config) as there:
        url = f"{here.base_url}/records/{topic}"
        riding, back, moved = clients = (
            FastReconnectClient(url),
            FastReconnectClient(url),
            FastReconnectClient(url),
        )
        async with listening(*clients):
            for p in range(partitions):
                await oracle.produce_records(topic, 20, partition=p)
            for client in clients:
                await records(client, 20 * partitions)

            async def resume() -> None:
                await back.start()
                moved.set_server(there.base_url)
                await moved.start()

            yield riding, back, moved, resume
            for client in (back, moved):
                assert client.open_count == 2, client.describe_state()
            assert "Traceback" not in here.log + there.log


async def test_a_topic_created_anew_is_told_to_all_partitions_of_all_clients(
    kafka3: KafkaCluster,
) -> None:
    """Some of the new logs are shorter than the old ones, some longer: an offset of the old
    one is inside those. The clients come back while metadata may be of either."""
    name = await asyncio.to_thread(kafka3.create_unique_topic, partitions=6)
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka3.bootstrap_servers))
        *clients, resume = await stack.enter_async_context(three_clients(kafka3, oracle, name, 6))
        for client in clients[1:]:
            await client.stop()
        await asyncio.to_thread(kafka3.admin.delete_topic, name)
        await clients[0].wait_for_events(lambda e: any(each["event"] in ERROR_NAMES for each in e))
        await asyncio.to_thread(kafka3.admin.create_topic, name, 6)
        await oracle.close()  # its sequence numbers were of the old topic
        oracle.mark_recreated(name)
        for p in range(6):
            await oracle.produce_records(name, 10 if p % 2 else 30, partition=p)
        await resume()
        await whole(oracle, clients, name, 6)
        expected = {GapEvent(tp, 20, 0, "recreated") for tp in zero(name, 6)}
        for client in clients:
            assert set(told(client)) == expected
            assert len(told(client)) == 6


async def test_records_lost_by_an_unclean_election_are_told_to_all_clients(
    kafka3: KafkaCluster,
) -> None:
    """The follower was away when the last records were written, and leads now. New records
    have gone beyond the old end: the offsets alone show nothing."""
    placed = [[1, 2], [3, 1], [3, 2]]
    name = await asyncio.to_thread(
        lambda: kafka3.create_unique_topic(configs=UNCLEAN_CONFIGS, assignment=placed)
    )
    cut = TopicPartition(name, 0)
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka3.bootstrap_servers))
        *clients, resume = await stack.enter_async_context(three_clients(kafka3, oracle, name, 3))
        await kill_follower(kafka3, name)
        await oracle.produce_records(name, 15, partition=0)
        for client in clients:
            await records(client, 75)
        for client in clients[1:]:
            await client.stop()
        await elect_follower(kafka3, name)
        await oracle.close()
        oracle.mark_truncated(cut, 20)
        await oracle.produce_records(name, 40, partition=0)
        await resume()
        await whole(oracle, clients, name, 3)
        for client in clients:
            assert told(client) == [GapEvent(cut, 35, 20, "truncated")]
