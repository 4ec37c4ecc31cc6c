"""BEGIN does not wait for the slowest partition, and nobody loses by that.

Against three real brokers; the gateway reaches them by way of a proxy, the producers directly.
Figures are printed (`pytest -s`); what is asserted is loose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.brokers import KafkaCluster
from support.clients.wires import WireName, client_for_wire
from support.continuous_writer import ContinuousWriter, TimedClient
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.kafka_proxy import ApiKey, KafkaProxy
from support.oracle import StreamOracle
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

PARTITIONS = 12
NODE = 2  # the broker that is hidden, killed or frozen
# s; longer than a test waits for BEGIN, so that a BEGIN was not sent because it expired
READY_TIMEOUT = "60s"
BROWSER = {"Accept": "text/event-stream", "User-Agent": "Mozilla/5.0"}


class Scene:
    """A topic of 12 partitions over three brokers, written to all the time.

    out: the partitions that NODE leads. others: the rest.
    """

    def __init__(
        self, kafka: KafkaCluster, proxy: KafkaProxy, oracle: StreamOracle, flow: ContinuousWriter
    ) -> None:
        self.kafka, self.proxy, self.oracle, self.flow = kafka, proxy, oracle, flow
        self.topic = flow.partitions[0].topic
        self.out = {tp for tp in flow.partitions if leader_of(tp.partition) == NODE}
        self.others = set(flow.partitions) - self.out

    def config(self, **topic: Any) -> dict[str, Any]:
        options = {"name": self.topic, "partitionReadyTimeout": READY_TIMEOUT, **topic}
        return build_config(self.proxy.bootstrap, [options])

    def url(self, gateway: GatewayProcess) -> str:
        return f"{gateway.base_url}/records/{self.topic}"

    async def end(self, client: TimedClient, **check: Any) -> None:
        """Nothing is lost, nothing came twice."""
        await self.flow.stop()
        await client.wait_until_caught_up(self.oracle, self.flow.partitions)
        self.oracle.check_events(client.list_record_events(), **check)


def leader_of(partition: int) -> int:
    return partition % 3 + 1


@asynccontextmanager
async def scene(
    kafka: KafkaCluster, assignment: Sequence[Sequence[int]] | None = None
) -> AsyncIterator[Scene]:
    """assignment: of replicas; by default each partition has one."""
    assignment = assignment or [[leader_of(number)] for number in range(PARTITIONS)]
    topic = await asyncio.to_thread(lambda: kafka.create_unique_topic(assignment=assignment))
    async with (
        KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy,
        StreamOracle(kafka.bootstrap_servers) as oracle,
        ContinuousWriter(kafka.bootstrap_servers, oracle, topic, range(PARTITIONS)) as flow,
    ):
        await wait_until(lambda: flow.has_acked(flow.partitions), "records everywhere", 60)
        yield Scene(kafka, proxy, oracle, flow)


async def reconnected(client: TimedClient) -> None:
    """Cut, and back with the id that it had."""
    begun = len(client.get_event_data("begin"))
    client.reconnect_delay = 0.05
    client.cut()
    await wait_until(lambda: len(client.get_event_data("begin")) > begun, client.describe_state, 30)


async def leaders(kafka: KafkaCluster, topic: str, met: Any, within: float = 60.0) -> float:
    """When the leaders were first seen to be as wanted, by a client that is not the gateway."""
    deadline = time.monotonic() + within
    while not met(await asyncio.to_thread(kafka.admin.get_leaders, topic)):
        assert time.monotonic() < deadline, "no other leaders"
        await asyncio.sleep(0.02)
    return time.monotonic()


def told(name: str, **figures: float | Iterable[float]) -> None:
    def shown(figure: float | Iterable[float]) -> str:
        if isinstance(figure, float | int):
            return f"{figure:.3f}"
        return "/".join(f"{each:.2f}" for each in sorted(figure))

    print(f"\n{name}: " + ", ".join(f"{key} {shown(value)} s" for key, value in figures.items()))


@pytest.mark.parametrize(
    "wire",
    ["sse", *(pytest.param(wire, marks=pytest.mark.night) for wire in ("ndjson", "websocket"))],
)
async def test_a_hidden_leader_is_pending_and_its_records_come_once_it_shows(
    kafka3, wire: WireName
):
    """Through a cut while it is hidden, and onto a gateway that never saw it."""
    async with scene(kafka3) as s:
        await s.proxy[NODE].hide()
        async with (
            running_gateway_process(s.config()) as gateway,
            running_gateway_process(s.config()) as second,
            client_for_wire(wire, TimedClient)(s.url(gateway)) as client,
        ):
            began = time.monotonic()
            ends = {tp: len(s.flow.acked_at[tp]) for tp in s.out}
            await wait_until(lambda: client.get_event_data("begin"), client.describe_state, 30)
            begin = time.monotonic() - began
            assert client.get_pending() >= s.out
            await wait_until(lambda: client.has_received(s.others), client.describe_state, 30)
            flowing = time.monotonic()
            await asyncio.sleep(1.0)  # how long they have to flow
            await reconnected(client)
            assert client.get_pending() >= s.out
            client.set_server(second.base_url)
            await reconnected(client)
            assert client.get_pending() >= s.out
            await asyncio.sleep(1.0)
            await client.wait_until_received(s.flow, s.others, flowing)  # while it is hidden
            delay = client.measure_delay(s.flow, s.others, flowing)
            assert not client.get_ready() & s.out and not client.has_received(s.out)
            shown = time.monotonic()
            await s.proxy[NODE].unhide()
            await wait_until(lambda: s.out <= client.get_ready(), client.describe_state, 30)
            ready = time.monotonic() - shown
            await wait_until(lambda: client.has_received(s.out), client.describe_state, 30)
            told("hidden leader", begin=begin, delay=delay, ready_after_unhiding=ready)
            await s.end(client)
            for tp in s.out:
                assert client.received_offsets[tp][0][1] <= ends[tp], "since the connect"


@pytest.mark.night
async def test_a_start_in_the_past_does_not_wait_for_a_hidden_leader_either(kafka3):
    """It took partitionReadyTimeout, and replayed what the hidden partition had from offset 0."""
    async with scene(kafka3) as s, running_gateway_process(s.config()) as gateway:
        await s.proxy[NODE].hide()
        began = time.monotonic()
        async with (
            TimedClient(f"{s.url(gateway)}?from=earliest") as earliest,
            TimedClient(f"{s.url(gateway)}?from=-1h") as hour,
        ):
            clients = (earliest, hour)
            for client in clients:
                await wait_until(
                    lambda c=client: c.get_event_data("begin"), client.describe_state, 30
                )
                assert client.get_pending() >= s.out
            begin = time.monotonic() - began
            for client in clients:
                await wait_until(
                    lambda c=client: c.has_received(s.others), client.describe_state, 30
                )
                await reconnected(client)
            shown = time.monotonic()
            await s.proxy[NODE].unhide()
            for client in clients:
                await wait_until(
                    lambda c=client: c.has_received(s.flow.partitions), client.describe_state, 30
                )
            flows = time.monotonic() - shown
            told("hidden leader, from the past", begin=begin, flows_after_unhiding=flows)
            for client in clients:
                await s.end(client, start=dict.fromkeys(s.flow.partitions, 0))
                assert not client.get_event_data("gap")


async def test_a_leaderless_partition_starts_where_it_ended_at_the_connect(kafka3):
    """Exactly there, whatever the clocks say; also for one who resumes elsewhere meanwhile."""
    async with scene(kafka3) as s:
        await s.flow.pause_partitions(s.out)
        ends = {tp: len(s.flow.acked_at[tp]) for tp in s.out}
        kafka3.local_kafka.get_node(NODE).kill()
        await leaders(kafka3, s.topic, lambda led: len(led) == len(s.others))
        s.flow.resume_all()
        async with (
            running_gateway_process(s.config()) as gateway,
            running_gateway_process(s.config()) as second,
            TimedClient(s.url(gateway)) as client,
        ):
            await wait_until(lambda: client.has_received(s.others), client.describe_state, 30)
            flowing = time.monotonic()
            assert client.get_pending() >= s.out
            await reconnected(client)
            client.set_server(second.base_url)
            await reconnected(client)
            assert client.get_pending() >= s.out
            since, span = time.monotonic(), 2.0
            await asyncio.sleep(span)
            rate = (
                s.proxy.count_requests(ApiKey.METADATA, since=since) / span / 2
            )  # of each gateway
            assert rate < 10
            await client.wait_until_received(s.flow, s.others, flowing)  # while it has no leader
            delay = client.measure_delay(s.flow, s.others, flowing)
            kafka3.local_kafka.get_node(NODE).start()
            led = await leaders(kafka3, s.topic, lambda led: len(led) == PARTITIONS)
            await wait_until(lambda: s.out <= client.get_ready(), client.describe_state, 60)
            ready = time.monotonic() - led
            assert ready < 10
            told(f"leaderless, {rate:.1f} Metadata/s", delay=delay, ready_after_leader=ready)
            resolved = [
                e["resolved"] for e in client.get_event_data("ready") if e["partition"] % 3 == 1
            ]
            assert set(resolved) == {"exact"}
            await wait_until(lambda: client.has_received(s.out), client.describe_state, 60)
            await s.end(client, start=ends)


async def test_when_no_partition_is_ready_the_stream_begins_at_the_timeout(kafka3):
    """A gateway that knows the topic begins; one that knows nothing says that Kafka is away."""
    async with scene(kafka3) as s:
        config = s.config(partitionReadyTimeout="1s")
        async with (
            running_gateway_process(config) as gateway,
            running_gateway_process(config) as cold,
        ):
            async with TimedClient(s.url(gateway)) as before:
                await wait_until(
                    lambda: before.has_received(s.flow.partitions), before.describe_state, 30
                )
            for broker in s.proxy.brokers:
                await broker.hide()
            await asyncio.sleep(2.5)  # no partition counts as ready after 1.5 s of silence
            ends = {tp: len(s.flow.acked_at[tp]) for tp in s.flow.partitions}
            began = time.monotonic()
            async with TimedClient(s.url(gateway)) as client:
                await wait_until(lambda: client.get_event_data("begin"), client.describe_state, 30)
                begin = time.monotonic() - began
                assert 0.9 < begin < 5
                assert client.get_pending() == set(s.flow.partitions)
                program, browser = await asyncio.gather(
                    asked(s.url(cold)), asked(s.url(cold), BROWSER)
                )
                assert program.status_code == 503
                assert int(program.headers["retry-after"]) >= 1
                assert program.headers["content-type"] == "application/problem+json"
                assert browser.status_code == 200
                assert browser.headers["content-type"].startswith("text/event-stream")
                assert browser.text.startswith("retry: ") and "event: end" in browser.text
                shown = time.monotonic()
                for broker in s.proxy.brokers:
                    await broker.unhide()
                await wait_until(
                    lambda: client.has_received(s.flow.partitions), client.describe_state, 30
                )
                took = [client.get_first_time(tp, shown) - shown for tp in s.flow.partitions]
                slow = max(program.elapsed, browser.elapsed).total_seconds()
                told("none ready", begin=begin, refused_after=slow, flows_after_unhiding=max(took))
                assert client.get_ready() == set(s.flow.partitions)
                await s.end(client)
                for tp in s.flow.partitions:
                    assert client.received_offsets[tp][0][1] <= ends[tp], "since the connect"


async def asked(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url, headers=headers, timeout=30)


@pytest.mark.night
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_one_broker_of_three_is_missed_by_its_own_partitions_alone(kafka3, how):
    """The others' replicas are elsewhere: Kafka itself would make those wait for a dead one."""
    own, other = [[2, 1], [2, 3]], [[1, 3], [3, 1]]
    assignment = [
        (own if leader_of(number) == NODE else other)[number // 3 % 2] for number in range(12)
    ]
    async with (
        scene(kafka3, assignment) as s,
        running_gateway_process(s.config()) as gateway,
        TimedClient(s.url(gateway)) as client,
        TimedClient(s.url(gateway)) as late,
    ):
        await wait_until(lambda: client.has_received(s.flow.partitions), client.describe_state, 30)
        began = time.monotonic()
        node = kafka3.local_kafka.get_node(NODE)
        node.kill() if how == "killed" else node.freeze()
        elected = await leaders(
            kafka3, s.topic, lambda led: len(led) == PARTITIONS and NODE not in led.values()
        )
        await wait_until(lambda: s.flow.has_acked(s.out, elected), "records to the new leaders", 60)
        await wait_until(lambda: client.has_received(s.out, elected), client.describe_state, 60)
        flows = [client.get_first_time(tp, elected) - elected for tp in s.out]
        delay = client.measure_delay(s.flow, s.others, began)
        own_delay = client.measure_delay(s.flow, s.out, elected)
        election = elected - began
        told(how, others=delay, election=election, flows_after_it=flows, own_delay=own_delay)
        assert delay < election + min(flows), "held up as long as those of the broker"
        assert not late.is_closed
        await asyncio.to_thread(kafka3.restore)
        await s.end(client)
        await late.wait_until_caught_up(s.oracle, s.flow.partitions)
        s.oracle.check_events(late.list_record_events())


async def test_new_partitions_are_read_and_a_topic_made_anew_goes_on_from_its_start(kafka3):
    topic = await asyncio.to_thread(lambda: kafka3.create_unique_topic(partitions=2))
    every = [TopicPartition(topic, number) for number in range(5)]
    async with (
        StreamOracle(kafka3.bootstrap_servers) as oracle,
        running_gateway_process(build_config(kafka3.bootstrap_servers, [topic])) as gateway,
        TimedClient(f"{gateway.base_url}/records/{topic}") as client,
    ):
        await wait_until(lambda: client.get_event_data("begin"), client.describe_state, 30)
        await wait_until(
            lambda: client.get_pending() <= client.get_ready(), client.describe_state, 30
        )
        await asyncio.to_thread(kafka3.admin.add_partitions, topic, 5)
        await written(kafka3, oracle, every, 20)
        await client.wait_until_caught_up(oracle, every)
        oracle.check_events(client.list_record_events(), start=dict.fromkeys(every, 0))

        await asyncio.to_thread(kafka3.admin.delete_topic, topic)
        await wait_until(
            lambda: len(client.get_event_data("error")) >= 5, client.describe_state, 30
        )
        assert {error["code"] for error in client.get_event_data("error")} == {"unknown-topic"}
        await becomes(404, f"{gateway.base_url}/records/{topic}")  # once two brokers say so
        await asyncio.to_thread(kafka3.admin.create_topic, topic, 5)
        oracle.mark_recreated(topic)
        await written(kafka3, oracle, every, 7)
        await wait_until(lambda: len(client.get_event_data("gap")) >= 5, client.describe_state, 60)
        await wait_until(
            lambda: len(client.get_event_data("message")) >= 5 * 27, client.describe_state, 30
        )
        assert {(gap["reason"], gap["to"]) for gap in client.get_event_data("gap")} == {
            ("recreated", 0)
        }
        oracle.check_events(client.list_record_events(), start=dict.fromkeys(every, 0))
        assert client.open_count == 1 and not client.is_closed


async def becomes(status: int, url: str, within: float = 30.0) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http, asyncio.timeout(within):
        while True:
            async with http.stream("GET", url) as answer:
                if answer.status_code == status:
                    return
            await asyncio.sleep(0.1)


async def written(
    kafka: KafkaCluster, oracle: StreamOracle, tps: Iterable[TopicPartition], count: int
) -> None:
    """By a producer of its own: one that knew the topic before believes that for a while."""
    async with ContinuousWriter(
        kafka.bootstrap_servers, oracle, next(iter(tps)).topic, (), interval_s=60
    ) as flow:
        flow.write_now(tps, count)
        await flow.stop()
