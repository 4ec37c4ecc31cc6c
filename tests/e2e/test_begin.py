"""BEGIN does not wait for the slowest partition, and nobody loses by that.

Against three real brokers; the gateway reaches them by way of a proxy, the producers directly.
Figures are printed (`pytest -s`); what is asserted is loose.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.brokers import Broker
from support.clients.wires import Wire, every_wire, over
from support.flow import Clocked, Flow
from support.gateways import Gateway, config_for, running_gateway
from support.oracle import Acked, Oracle, heard
from support.proxy import Api, KafkaProxy
from support.until import until

from gateway.core.log.record import TopicPartition

PARTITIONS = 12
NODE = 2  # the broker that is hidden, killed or frozen
LOOSE = 4.0  # s; a record is under way for some ms, and for much longer only if it is held up
BROWSER = {"Accept": "text/event-stream", "User-Agent": "Mozilla/5.0"}


class Scene:
    """A topic of 12 partitions over three brokers, written to all the time.

    out: the partitions that NODE leads. others: the rest.
    """

    def __init__(self, kafka: Broker, proxy: KafkaProxy, oracle: Oracle, flow: Flow) -> None:
        self.kafka, self.proxy, self.oracle, self.flow = kafka, proxy, oracle, flow
        self.topic = flow.tps[0].topic
        self.out = {tp for tp in flow.tps if leader_of(tp.partition) == NODE}
        self.others = set(flow.tps) - self.out

    def config(self, **topic: Any) -> dict[str, Any]:
        return config_for(self.proxy.bootstrap, [{"name": self.topic, **topic}])

    def url(self, gateway: Gateway) -> str:
        return f"{gateway.base_url}/records/{self.topic}"

    async def end(self, client: Clocked, **check: Any) -> None:
        """Nothing is lost, nothing came twice."""
        await self.flow.stop()
        await client.caught_up(self.oracle, self.flow.tps)
        self.oracle.check_events(client.records(), **check)


def leader_of(partition: int) -> int:
    return partition % 3 + 1


@asynccontextmanager
async def scene(
    kafka: Broker, assignment: Sequence[Sequence[int]] | None = None
) -> AsyncIterator[Scene]:
    """assignment: of replicas; by default each partition has one."""
    assignment = assignment or [[leader_of(number)] for number in range(PARTITIONS)]
    topic = await asyncio.to_thread(lambda: kafka.topic(assignment=assignment))
    async with (
        KafkaProxy.around(kafka.servers) as proxy,
        Oracle(kafka.servers) as oracle,
        Flow(kafka.servers, oracle, topic, range(PARTITIONS)) as flow,
    ):
        await until(lambda: flow.has(flow.tps), "records everywhere", 60)
        yield Scene(kafka, proxy, oracle, flow)


async def reconnected(client: Clocked) -> None:
    """Cut, and back with the id that it had."""
    begun = len(client.named("begin"))
    client.retry = 0.05
    client.cut()
    await until(lambda: len(client.named("begin")) > begun, client.state, 30)


async def leaders(kafka: Broker, topic: str, met: Any, within: float = 60.0) -> float:
    """When the leaders were first seen to be as wanted, by a client that is not the gateway."""
    deadline = time.monotonic() + within
    while not met(await asyncio.to_thread(kafka.admin.leaders, topic)):
        assert time.monotonic() < deadline, "no other leaders"
        await asyncio.sleep(0.02)
    return time.monotonic()


def told(name: str, **figures: float | Iterable[float]) -> None:
    def shown(figure: float | Iterable[float]) -> str:
        if isinstance(figure, float | int):
            return f"{figure:.3f}"
        return "/".join(f"{each:.2f}" for each in sorted(figure))

    print(f"\n{name}: " + ", ".join(f"{key} {shown(value)} s" for key, value in figures.items()))


@every_wire
async def test_a_hidden_leader_is_pending_and_its_records_come_once_it_shows(kafka3, wire: Wire):
    """Through a cut while it is hidden, and onto a gateway that never saw it."""
    async with scene(kafka3) as s:
        await s.proxy[NODE].hide()
        async with (
            running_gateway(s.config()) as gateway,
            running_gateway(s.config()) as second,
            over(wire, Clocked)(s.url(gateway)) as client,
        ):
            began = time.monotonic()
            ends = {tp: len(s.flow.acked[tp]) for tp in s.out}
            await until(lambda: client.named("begin"), client.state, 30)
            begin = time.monotonic() - began
            assert client.pending() >= s.out
            await until(lambda: client.begun(s.others), client.state, 30)
            flowing = time.monotonic()
            await asyncio.sleep(1.0)  # how long they have to flow
            await reconnected(client)
            assert client.pending() >= s.out
            client.lead_to(second.base_url)
            await reconnected(client)
            assert client.pending() >= s.out
            await asyncio.sleep(1.0)
            delay = client.delay(s.flow, s.others, flowing)
            assert delay < LOOSE
            assert not client.ready() & s.out and not client.begun(s.out)
            shown = time.monotonic()
            await s.proxy[NODE].unhide()
            await until(lambda: s.out <= client.ready(), client.state, 30)
            ready = time.monotonic() - shown
            await until(lambda: client.begun(s.out), client.state, 30)
            told("hidden leader", begin=begin, delay=delay, ready_after_unhiding=ready)
            await s.end(client)
            for tp in s.out:
                assert client.offsets[tp][0][1] <= ends[tp], "since the connect"


async def test_pages_do_not_wait_for_a_hidden_leader_and_miss_nothing_of_it(kafka3):
    async with scene(kafka3) as s:
        await s.proxy[NODE].hide()
        async with running_gateway(s.config()) as gateway:
            pages = Pages(gateway.base_url, f"/records/{s.topic}?wait=30s")
            async with pages.http:
                ends = {tp: len(s.flow.acked[tp]) for tp in s.out}
                while not pages.firsts.keys() >= s.others or len(pages.took) < 5:
                    await pages.turn()
                assert not pages.firsts.keys() & s.out
                assert max(pages.took) < LOOSE
                shown = time.monotonic()
                await s.proxy[NODE].unhide()
                while not pages.firsts.keys() >= s.out:
                    await pages.turn()
                told("pages", each=pages.took, flows_after_unhiding=time.monotonic() - shown)
                await s.flow.stop()
                while s.oracle.missing(heard(pages.events), pages.due):
                    await pages.turn()
            s.oracle.check_events(pages.events)
            assert all(pages.firsts[tp] <= ends[tp] for tp in s.out), "since the connect"


class Pages:
    """Goes from page to page. took: seconds for each. firsts: of each partition, the first
    offset."""

    def __init__(self, base_url: str, follow: str) -> None:
        lines = {"Accept": "application/x-ndjson"}
        self.http = httpx.AsyncClient(base_url=base_url, headers=lines, trust_env=False, timeout=60)
        self.events: list[dict[str, str]] = []
        self.firsts: dict[TopicPartition, int] = {}
        self.took: list[float] = []
        self._follow = follow

    async def turn(self) -> None:
        answer = await self.http.get(self._follow)
        assert answer.status_code == 200, answer.text
        self.took.append(answer.elapsed.total_seconds())
        self._follow = answer.links["next"]["url"]
        for line in answer.text.splitlines()[:-1]:
            record = json.loads(line)
            tp = TopicPartition(record["topic"], record["partition"])
            self.firsts.setdefault(tp, record["offset"])
            self.events.append({"event": "message", "id": "", "data": line})

    def due(self, acked: Acked) -> bool:
        return acked.offset >= self.firsts[acked.tp]


async def test_a_start_in_the_past_does_not_wait_for_a_hidden_leader_either(kafka3):
    """It took partitionReadyTimeout, and replayed what the hidden partition had from offset 0."""
    async with scene(kafka3) as s, running_gateway(s.config()) as gateway:
        await s.proxy[NODE].hide()
        began = time.monotonic()
        async with (
            Clocked(f"{s.url(gateway)}?from=earliest") as earliest,
            Clocked(f"{s.url(gateway)}?from=-1h") as hour,
        ):
            clients = (earliest, hour)
            for client in clients:
                await until(lambda c=client: c.named("begin"), client.state, 30)
                assert client.pending() >= s.out
            begin = time.monotonic() - began
            assert begin < LOOSE
            for client in clients:
                await until(lambda c=client: c.begun(s.others), client.state, 30)
                await reconnected(client)
            shown = time.monotonic()
            await s.proxy[NODE].unhide()
            for client in clients:
                await until(lambda c=client: c.begun(s.flow.tps), client.state, 30)
            flows = time.monotonic() - shown
            told("hidden leader, from the past", begin=begin, flows_after_unhiding=flows)
            for client in clients:
                await s.end(client, start=dict.fromkeys(s.flow.tps, 0))
                assert not client.named("gap")


async def test_a_leaderless_partition_starts_where_it_ended_at_the_connect(kafka3):
    """Exactly there, whatever the clocks say; also for one who resumes elsewhere meanwhile."""
    async with scene(kafka3) as s:
        await s.flow.pause(s.out)
        ends = {tp: len(s.flow.acked[tp]) for tp in s.out}
        kafka3.local.node(NODE).kill()
        await leaders(kafka3, s.topic, lambda led: len(led) == len(s.others))
        s.flow.resume()
        async with (
            running_gateway(s.config()) as gateway,
            running_gateway(s.config()) as second,
            Clocked(s.url(gateway)) as client,
        ):
            await until(lambda: client.begun(s.others), client.state, 30)
            flowing = time.monotonic()
            assert client.pending() >= s.out
            await reconnected(client)
            client.lead_to(second.base_url)
            await reconnected(client)
            assert client.pending() >= s.out
            since, span = time.monotonic(), 2.0
            await asyncio.sleep(span)
            rate = s.proxy.count(Api.METADATA, since=since) / span / 2  # of each gateway
            assert rate < 10
            delay = client.delay(s.flow, s.others, flowing)
            assert delay < LOOSE
            kafka3.local.node(NODE).start()
            led = await leaders(kafka3, s.topic, lambda led: len(led) == PARTITIONS)
            await until(lambda: s.out <= client.ready(), client.state, 60)
            ready = time.monotonic() - led
            assert ready < 10
            told(f"leaderless, {rate:.1f} Metadata/s", delay=delay, ready_after_leader=ready)
            resolved = [e["resolved"] for e in client.named("ready") if e["partition"] % 3 == 1]
            assert set(resolved) == {"exact"}
            await until(lambda: client.begun(s.out), client.state, 60)
            await s.end(client, start=ends)


async def test_when_no_partition_is_ready_the_stream_begins_at_the_timeout(kafka3):
    """A gateway that knows the topic begins; one that knows nothing says that Kafka is away."""
    async with scene(kafka3) as s:
        config = s.config(partitionReadyTimeout="1s")
        async with running_gateway(config) as gateway, running_gateway(config) as cold:
            async with Clocked(s.url(gateway)) as before:
                await until(lambda: before.begun(s.flow.tps), before.state, 30)
            for broker in s.proxy.brokers:
                await broker.hide()
            await asyncio.sleep(2.5)  # no partition counts as ready after 1.5 s of silence
            ends = {tp: len(s.flow.acked[tp]) for tp in s.flow.tps}
            began = time.monotonic()
            async with Clocked(s.url(gateway)) as client:
                await until(lambda: client.named("begin"), client.state, 30)
                begin = time.monotonic() - began
                assert 0.9 < begin < 5
                assert client.pending() == set(s.flow.tps)
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
                await until(lambda: client.begun(s.flow.tps), client.state, 30)
                took = [client.first(tp, shown) - shown for tp in s.flow.tps]
                slow = max(program.elapsed, browser.elapsed).total_seconds()
                told("none ready", begin=begin, refused_after=slow, flows_after_unhiding=max(took))
                assert client.ready() == set(s.flow.tps)
                await s.end(client)
                for tp in s.flow.tps:
                    assert client.offsets[tp][0][1] <= ends[tp], "since the connect"


async def asked(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url, headers=headers, timeout=30)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_one_broker_of_three_is_missed_by_its_own_partitions_alone(kafka3, how):
    """The others' replicas are elsewhere: Kafka itself would make those wait for a dead one."""
    own, other = [[2, 1], [2, 3]], [[1, 3], [3, 1]]
    assignment = [
        (own if leader_of(number) == NODE else other)[number // 3 % 2] for number in range(12)
    ]
    async with (
        scene(kafka3, assignment) as s,
        running_gateway(s.config()) as gateway,
        Clocked(s.url(gateway)) as client,
        Clocked(s.url(gateway)) as late,
    ):
        await until(lambda: client.begun(s.flow.tps), client.state, 30)
        began = time.monotonic()
        node = kafka3.local.node(NODE)
        node.kill() if how == "killed" else node.freeze()
        elected = await leaders(
            kafka3, s.topic, lambda led: len(led) == PARTITIONS and NODE not in led.values()
        )
        await until(lambda: s.flow.has(s.out, elected), "records to the new leaders", 60)
        await until(lambda: client.begun(s.out, elected), client.state, 60)
        flows = [client.first(tp, elected) - elected for tp in s.out]
        delay = client.delay(s.flow, s.others, began)
        own_delay = client.delay(s.flow, s.out, elected)
        election = elected - began
        told(how, others=delay, election=election, flows_after_it=flows, own_delay=own_delay)
        assert delay < LOOSE
        assert max(flows) < 8
        assert not late.closed
        await asyncio.to_thread(kafka3.heal)
        await s.end(client)
        await late.caught_up(s.oracle, s.flow.tps)
        s.oracle.check_events(late.records())


async def test_a_topic_new_to_a_warm_gateway_does_not_wait_for_fetches_under_way(kafka3):
    """Kafka holds those of an idle topic back for half a second."""
    placed = [[leader_of(number)] for number in range(PARTITIONS)]
    idle, *cold = [
        await asyncio.to_thread(lambda: kafka3.topic(assignment=placed)) for _ in range(5)
    ]
    async with (
        KafkaProxy.around(kafka3.servers) as proxy,
        Oracle(kafka3.servers) as oracle,
        running_gateway(config_for(proxy.bootstrap, [idle, *cold])) as gateway,
        Clocked(f"{gateway.base_url}/records/{idle}") as waiting,
    ):
        await until(lambda: waiting.named("begin"), waiting.state, 30)
        for topic in cold:
            await oracle.produce(topic, 1, partition=0)
        await asyncio.sleep(2.5)  # the partitions there are no newcomers any more
        begins, records = [], []
        for topic in cold:
            began = time.monotonic()
            async with Clocked(f"{gateway.base_url}/records/{topic}") as client:
                await until(lambda c=client: c.named("begin"), client.state, 30)
                begins.append(time.monotonic() - began)
                every = {TopicPartition(topic, number) for number in range(PARTITIONS)}
                pending = client.pending()
                await until(lambda c=client, p=pending: p <= c.ready(), client.state, 30)
                await oracle.produce(topic, 1, partition=5)
                acked = time.monotonic()
                await until(lambda c=client: c.named("message"), client.state, 30, 0.002)
                records.append(time.monotonic() - acked)
                assert client.pending() <= every
        told("new topic, warm gateway", begin=begins, first_record=records)
        assert min(begins) < 1 and min(records) < 0.4


async def test_new_partitions_are_read_and_a_topic_made_anew_goes_on_from_its_start(kafka3):
    topic = await asyncio.to_thread(lambda: kafka3.topic(partitions=2))
    every = [TopicPartition(topic, number) for number in range(5)]
    async with (
        Oracle(kafka3.servers) as oracle,
        running_gateway(config_for(kafka3.servers, [topic])) as gateway,
        Clocked(f"{gateway.base_url}/records/{topic}") as client,
    ):
        await until(lambda: client.named("begin"), client.state, 30)
        await until(lambda: client.pending() <= client.ready(), client.state, 30)
        await asyncio.to_thread(kafka3.admin.add_partitions, topic, 5)
        await written(kafka3, oracle, every, 20)
        await client.caught_up(oracle, every)
        oracle.check_events(client.records(), start=dict.fromkeys(every, 0))

        await asyncio.to_thread(kafka3.admin.delete_topic, topic)
        await until(lambda: len(client.named("error")) >= 5, client.state, 30)
        assert {error["code"] for error in client.named("error")} == {"unknown-topic"}
        await becomes(404, f"{gateway.base_url}/records/{topic}")  # once two brokers say so
        await asyncio.to_thread(kafka3.admin.create_topic, topic, 5)
        oracle.recreated(topic)
        await written(kafka3, oracle, every, 7)
        await until(lambda: len(client.named("gap")) >= 5, client.state, 60)
        await until(lambda: len(client.named("message")) >= 5 * 27, client.state, 30)
        assert {(gap["reason"], gap["to"]) for gap in client.named("gap")} == {("recreated", 0)}
        oracle.check_events(client.records(), start=dict.fromkeys(every, 0))
        assert client.opened == 1 and not client.closed


async def becomes(status: int, url: str, within: float = 30.0) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http, asyncio.timeout(within):
        while True:
            async with http.stream("GET", url) as answer:
                if answer.status_code == status:
                    return
            await asyncio.sleep(0.1)


async def written(kafka: Broker, oracle: Oracle, tps: Iterable[TopicPartition], count: int) -> None:
    """By a producer of its own: one that knew the topic before believes that for a while."""
    async with Flow(kafka.servers, oracle, next(iter(tps)).topic, (), every=60) as flow:
        flow.write(tps, count)
        await flow.stop()
