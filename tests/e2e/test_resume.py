"""A client that was cut, anywhere and by anything, goes on exactly where it stopped.

Judged by the oracle: every acknowledged record of the view once, in order per partition,
nothing of aborted transactions. The gateways are processes, the broker is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.clients.fast_reconnect import FastReconnectClient, cut_at_random
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.grouped import iter_single_events
from support.kafka_proxy import KafkaProxy
from support.oracle import AckedRecord, StreamOracle, parse_events
from support.received import ReceivedRecord, parse_envelope
from support.sse import SseParser
from support.waiting import wait_until

from gateway.core.channel.channel import Channel
from gateway.core.channel.tail import Tail
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Record, TopicPartition
from gateway.core.token import resume_token as tokens
from gateway.formats import create_format
from gateway.hub.reads import position_resolver
from gateway.hub.wires.sse import SseEncoder

TRAFFIC = 5.0  # s of cuts and kills
KEY = b"key-3"


def everything(acked: AckedRecord) -> bool:
    return True


def keyed(acked: AckedRecord) -> bool:
    return acked.key == KEY


def zero(topic: str, partitions: int = 12) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, p): 0 for p in range(partitions)}


def routes(topic: str) -> list[dict[str, Any]]:
    """/records/TOPIC, /events/TOPIC and /keyed/KEY."""
    filtered = {"topic": topic, "format": "envelope", "filters": [{"key": "${params.key}"}]}
    own = {"when": [{"path": "/keyed/{key}"}], "with": filtered}
    return [build_route(topic, "envelope"), build_route(topic, "value"), own]


def settings(topic: str, cache: str = "64MiB", **more: Any) -> dict[str, Any]:
    return {"name": topic, "cache": {"bytes": cache}, **more}


def records(events: Iterable[Mapping[str, Any]]) -> list[ReceivedRecord]:
    return [parse_envelope(event) for event in events if event["event"] == "message"]


def told(client: RawClient, name: str) -> list[dict[str, Any]]:
    """The data of its control events of one name."""
    return [
        data
        for each in client.events
        if each["event"] in (name, f"partitions-{name}")
        for _, data in iter_single_events(each["event"], json.loads(each["data"]))
    ]


async def whole(oracle: StreamOracle, client: RawClient, **options: Any) -> None:
    """It has every record of its view from `start` on, and the oracle nothing against it."""
    view, start = options.get("view", everything), options["start"]

    def due(acked: AckedRecord) -> bool:
        return view(acked) and acked.offset >= start[acked.tp]

    with contextlib.suppress(TimeoutError):  # the oracle says better what is missing
        await wait_until(
            lambda: not oracle.list_missing(parse_events(client.events), due),
            timeout_s=30,
            interval_s=0.1,
        )
    oracle.check_events(client.events, **options)


@asynccontextmanager
async def listening(
    *clients: FastReconnectClient,
) -> AsyncIterator[tuple[FastReconnectClient, ...]]:
    """All of them, from their first block on."""
    async with AsyncExitStack() as stack:
        for client in clients:
            await stack.enter_async_context(client)
        for client in clients:
            await client.wait_for_events(1)
        yield clients


async def traffic(oracle: StreamOracle, topic: str, random: Random, ends: float) -> None:
    """Plain records, and transactions that are committed, aborted, or open for a while."""
    while time.monotonic() < ends:
        pick = random.random()
        if pick < 0.5:
            await oracle.produce_records(topic, random.randrange(1, 60))
        elif pick < 0.9:
            count, commit = random.randrange(1, 40), pick < 0.7
            await oracle.produce_transaction(topic, count, commit=commit)
        else:
            async with oracle.open_transaction() as opened:
                await opened.send_records(topic, 10)
                await oracle.produce_records(topic, 30)
                await asyncio.sleep(0.3)
                await (opened.commit() if random.random() < 0.5 else opened.abort())
        await asyncio.sleep(random.random() * 0.05)


async def cut_and_move(
    clients: Sequence[RawClient], gateways: Sequence[GatewayProcess], random: Random, ends: float
) -> int:
    """Cut one after the other at any byte; half of them come back at the other gateway."""
    cuts = 0
    while time.monotonic() < ends:
        client = random.choice(clients)
        if random.random() < 0.5:
            client.set_server(random.choice(gateways).base_url)
        cut_at_random(client, random)
        cuts += 1
        await asyncio.sleep(random.random() * 0.08)
    return cuts


async def kill_now_and_then(gateway: GatewayProcess, random: Random, ends: float) -> None:
    while time.monotonic() + 1.5 < ends:
        await asyncio.sleep(random.uniform(1.0, 2.0))
        await gateway.kill()
        await gateway.start(ready=False)


@pytest.mark.parametrize(
    ("wire", "seed", "cache"),
    [
        pytest.param("sse", 1, "64MiB", marks=pytest.mark.night),
        ("sse", 2, "1B"),
        pytest.param("ndjson", 3, "1B", marks=pytest.mark.night),
        pytest.param("websocket", 4, "1B", marks=pytest.mark.night),
    ],
)
async def test_cut_at_any_byte_killed_and_moved_to_another_gateway_nothing_is_lost_or_repeated(
    kafka: KafkaCluster, topic: Callable[..., str], wire: WireName, seed: int, cache: str
) -> None:
    random = Random(seed)
    name = topic(partitions=12)
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        proxy = await stack.enter_async_context(KafkaProxy.wrap_cluster(kafka.bootstrap_servers))
        for broker in proxy.brokers:
            broker.set_delay(0.2)  # the second gateway hears everything later
        gateways = [
            await stack.enter_async_context(
                running_gateway_process(
                    build_config(servers, [settings(name, cache)], routes(name))
                )
            )
            for servers in (kafka.bootstrap_servers, proxy.bootstrap)
        ]
        url = gateways[0].base_url
        client = client_for_wire(wire, FastReconnectClient)
        whole_view = [client(f"{url}/records/{name}") for _ in range(4)]
        filtered = [client(f"{url}/keyed/{KEY.decode()}") for _ in range(2)]
        await stack.enter_async_context(listening(*whole_view, *filtered))
        ends = time.monotonic() + TRAFFIC
        _, cuts, _ = await asyncio.gather(
            traffic(oracle, name, random, ends),
            cut_and_move([*whole_view, *filtered], gateways, random, ends),
            kill_now_and_then(gateways[0], random, ends),
        )
        for each in whole_view:
            await whole(oracle, each, start=zero(name))
        for each in filtered:
            await whole(oracle, each, start=zero(name), view=keyed)
        opened = sum(each.open_count for each in (*whole_view, *filtered))
        print(f"{len(oracle.list_acked())} records, {cuts} cuts, {opened} connections")
        assert opened > 12, "hardly anything was cut"


@pytest.mark.night
async def test_fifty_clients_resume_at_once_what_only_kafka_still_has(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    random = Random(3)
    name = topic(partitions=12)
    config = build_config(kafka.bootstrap_servers, [settings(name, cache="1B")], routes(name))
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(config) as gateway,
    ):
        url = f"{gateway.base_url}/records/{name}"
        async with listening(FastReconnectClient(url)) as (first,):
            for commit in (True, False, True):
                await oracle.produce_records(name, 500)
                await oracle.produce_transaction(name, 100, commit=commit)
            await whole(oracle, first, start=zero(name))
        async with oracle.open_transaction() as opened, AsyncExitStack() as stack:
            await opened.send_records(name, 50)
            clients = []
            for _ in range(50):
                n = random.randrange(len(first.events))
                start = zero(name)
                for record in records(first.events[: n + 1]):
                    start[record.tp or TopicPartition("", 0)] = (record.offset or 0) + 1
                clients.append(
                    (FastReconnectClient(url, last_event_id=first.events[n]["id"]), start)
                )
            began = time.monotonic()
            await stack.enter_async_context(listening(*(client for client, _ in clients)))
            await oracle.produce_records(name, 200)
            await opened.commit()
            for client, start in clients:
                await whole(oracle, client, start=start)
            taken = time.monotonic() - began
            count = sum(len(client.events) for client, _ in clients)
            print(f"50 clients, {count} events in {taken:.1f} s, {gateway.memory_bytes >> 20} MB")
            for client, _ in clients:
                assert client.open_count == 1
                assert "view" not in told(client, "begin")[0]
        assert "ERROR" not in gateway.log, gateway.read_log_tail()


async def test_a_position_kept_over_a_filter_a_format_and_a_topic_that_came_or_went(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    one, two = topic(partitions=12), topic(partitions=3)
    both = {"when": [{"path": "/both"}], "with": {"topics": [one, two], "format": "envelope"}}
    made = build_config(kafka.bootstrap_servers, [one, two], [*routes(one), both])
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(made) as gateway,
    ):
        base = gateway.base_url
        async with listening(FastReconnectClient(f"{base}/records/{one}")) as (client,):
            await oracle.produce_records(one, 100)
            await whole(oracle, client, start=zero(one))
        at = client.last_event_id
        here = oracle.get_start_offsets(one, 12)
        await oracle.produce_records(one, 100)
        await oracle.produce_records(two, 30)
        there = oracle.get_start_offsets(two, 3)

        same, filtered, plain, more = others = [
            FastReconnectClient(f"{base}{path}", last_event_id=at)
            for path in (f"/records/{one}", f"/keyed/{KEY.decode()}", f"/events/{one}", "/both")
        ]
        async with listening(*others):
            assert [told(c, "begin")[0].get("view") for c in others] == [None, *["changed"] * 3]
            await oracle.produce_records(two, 30)
            every = here | there
            await whole(oracle, same, start=every, view=lambda acked: acked.tp.topic == one)
            await whole(
                oracle, filtered, start=every, view=lambda a: a.tp.topic == one and keyed(a)
            )
            await plain.wait_for_events(
                lambda e: sum(each["event"] == "message" for each in e) == 100
            )
            oracle.check_events(
                plain.events, format="value", start=here, view=lambda acked: acked.tp.topic == one
            )
            await whole(oracle, more, start=every)

        async with listening(
            FastReconnectClient(f"{base}/records/{one}", last_event_id=more.last_event_id)
        ) as (fewer,):
            now = oracle.get_start_offsets(one, 12)
            await oracle.produce_records(one, 20)
            await wait_until(lambda: len(records(fewer.events)) == 20, fewer.describe_state)
            oracle.check_events(fewer.events, start=now)
            assert told(fewer, "begin")[0]["view"] == "changed"
            assert told(fewer, "begin")[0]["topics"] == [one]


async def test_starts_and_ends_are_what_the_query_says(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    now = int(time.time() * 1000)
    none, hour = (
        {
            "when": [{"path": f"/{word}"}],
            "with": {"topic": name, "format": "envelope", "history": word},
        }
        for word in ("none", "1h")
    )
    made = build_config(kafka.bootstrap_servers, [name], [*routes(name), none, hour])
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(made) as gateway,
    ):
        old = [
            await oracle.produce_records(name, 5, partition=p, timestamp=now - 7200_000)
            for p in (0, 1)
        ]
        late = [
            await oracle.produce_records(name, 4, partition=p, timestamp=now - 120_000)
            for p in (0, 2)
        ]
        recent = sum(map(len, late))
        all_ = recent + sum(map(len, old))
        url = f"{gateway.base_url}/records/{name}"

        async def got(path: str, **options: Any) -> list[ReceivedRecord]:
            async with listening(FastReconnectClient(gateway.base_url + path, **options)) as (
                client,
            ):
                await client.wait_for_events(lambda e: any(each["event"] == "end" for each in e))
                assert told(client, "end")[0] == {"reason": "until"}
                return records(client.events)

        records_ = f"/records/{name}"
        ago = datetime.fromtimestamp((now - 300_000) / 1000, UTC)
        iso = ago.isoformat().replace("+00:00", "Z")
        plain = ago.replace(tzinfo=None).isoformat(timespec="seconds")
        assert len(await got(f"{records_}?from=earliest&until=latest")) == all_
        assert len(await got(f"{records_}?from=live&until=latest")) == 0
        assert len(await got(f"{records_}?from=-5m&until=latest")) == recent
        assert len(await got(f"{records_}?from={iso}&until=latest")) == recent
        assert len(await got(f"{records_}?from={plain}&until=latest")) == recent
        assert len(await got(f"{records_}?from=earliest&until=-5m")) == all_ - recent
        assert len(await got(f"{records_}?from=earliest&until=7")) == 7
        assert len(await got("/1h?from=earliest&until=latest")) == recent
        assert len(await got("/none?from=earliest&until=latest")) == 0
        assert len(await got(f"/keyed/{KEY.decode()}?from=earliest&until=latest")) == sum(
            keyed(each) for each in oracle.list_acked()
        )

        for refused in ("/1h?from=-2h", "/none?from=-1s"):
            async with FastReconnectClient(gateway.base_url + refused) as client:
                await client.wait_for_events(lambda e: any(each["event"] == "end" for each in e))
                assert told(client, "end")[0] == {"reason": "refused"}

        async with listening(FastReconnectClient(f"{url}?from=earliest&until=latest")) as (reader,):
            await reader.wait_for_events(lambda e: e[-1]["event"] == "end")
        early, later = reader.events[3]["id"], reader.events[10]["id"]
        assert len(await got(f"{records_}?lastEventId={early}&until=latest")) == all_ - 3
        assert len(await got(f"{records_}?from=live&lastEventId={early}&until=latest")) == all_ - 3
        both = f"{records_}?from=live&lastEventId={early}&until=latest"
        assert len(await got(both, last_event_id=later)) == all_ - 10


async def test_after_a_restart_kafka_tells_how_far_back_a_token_goes(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    """A client of a route without history goes on exactly where it was cut off, within
    `tokens.resume` by the records' own time, and no further back."""
    name = topic(partitions=2)
    now = int(time.time() * 1000)
    public = {
        "when": [{"path": "/public"}],
        "with": {"topic": name, "format": "envelope", "history": "none"},
    }
    made = build_config(
        kafka.bootstrap_servers, [name], [*routes(name), public], tokens={"resume": "30m"}
    )
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(made) as gateway,
    ):
        url = f"{gateway.base_url}/public"
        async with listening(FastReconnectClient(url)) as (client,):
            before = client.last_event_id
        await oracle.produce_records(name, 3, partition=0, timestamp=now - 7200_000)
        async with listening(
            FastReconnectClient(f"{gateway.base_url}/records/{name}?from=earliest")
        ) as (wide,):
            await wide.wait_for_events(lambda events: len(records(events)) == 3)
        recent = wide.last_event_id
        missed = [
            await oracle.produce_records(name, 4, partition=p, timestamp=now - 1000) for p in (0, 1)
        ]
        await gateway.restart()
        async with listening(FastReconnectClient(url, last_event_id=recent)) as (again,):
            await again.wait_for_events(lambda events: len(records(events)) == 8)
            got = [(each.tp, each.offset) for each in records(again.events)]
            assert sorted(got) == sorted((each.tp, each.offset) for some in missed for each in some)
            assert not told(again, "gap")
        async with RawClient(url, last_event_id=before) as program:
            await program.wait_closed()
            assert program.responses[0].status == 403
        async with listening(FastReconnectClient(url, last_event_id=before)) as (browser,):
            assert told(browser, "gap")[0]["reason"] == "position-refused"
            await oracle.produce_records(name, 1)
            await browser.wait_for_events(lambda events: len(records(events)) == 1)


async def test_a_token_that_cannot_be_used_is_never_silently_replayed(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name, other = topic(partitions=12), topic(partitions=1)
    made = build_config(kafka.bootstrap_servers, [name, other])
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(made) as gateway,
    ):
        async with listening(
            FastReconnectClient(f"{gateway.base_url}/records/{name}"),
            FastReconnectClient(f"{gateway.base_url}/events/{other}"),
        ) as (mine, theirs):
            await oracle.produce_records(name, 20)
            await oracle.produce_records(other, 1)
            await mine.wait_for_events(21)
            await theirs.wait_for_events(2)
        good, foreign = mine.last_event_id, theirs.last_event_id
        flipped = good[:40] + ("A" if good[40] != "A" else "B") + good[41:]
        url = f"{gateway.base_url}/records/{name}"
        for bad in (flipped, good[:-9], good[:3], foreign, "x y", "7" + good[1:]):
            async with RawClient(url, last_event_id=bad) as program:
                await program.wait_closed()
                assert program.responses[0].status == 400
                kind = program.responses[0].headers["content-type"]
                assert kind == "application/problem+json"
            if " " not in bad:
                async with FastReconnectClient(f"{url}?lastEventId={bad}") as asked:
                    await asked.wait_for_events(2)
                    assert told(asked, "gap")[0]["reason"] == "position-refused"
            async with FastReconnectClient(url, last_event_id=bad) as browser:
                await browser.wait_for_events(2)
                assert [each["event"] for each in browser.events[:2]] == ["begin", "gap"]
                assert told(browser, "gap")[0]["reason"] == "position-refused"
                assert browser.events[0]["id"] == bad, "until the gap is told, nothing is moved"
                start = oracle.get_start_offsets(name, 12)
                await oracle.produce_records(name, 5)
                await browser.wait_for_events(7)
                oracle.check_items(records(browser.events), start=start)
        async with listening(FastReconnectClient(url, last_event_id=good)) as (fine,):
            assert not told(fine, "gap")


def measure_records_between_ids(wire: bytes) -> list[int]:
    """Bytes of records between one id of a stream and the next. How many partitions get ready in
    between, each with an event of its own, is up to the machine."""
    sizes = [0]
    for block in wire.split(b"\n\n"):
        if not block.startswith(b"event: "):
            sizes[-1] += len(block)
        if re.search(rb"^id: ", block, re.MULTILINE):
            sizes.append(0)
    return sizes


def kept(events: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[int]]:
    """What was not repeated: a connection begins again after the event that had the last id.
    And how many records each connection repeated."""
    stream: list[Mapping[str, Any]] = []
    repeated = []
    for event in events:
        if event["event"] == "begin" and stream:
            carrier = next(n for n, each in enumerate(stream) if each["id"] == stream[-1]["id"])
            repeated.append(len(records(stream[carrier + 1 :])))
            del stream[carrier + 1 :]
        stream.append(event)
    return stream, repeated


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(1, marks=pytest.mark.night), 12, pytest.param(75, marks=pytest.mark.night), 500],
)
async def test_tokens_of_few_and_many_partitions_resume_exactly(
    kafka: KafkaCluster, topic: Callable[..., str], partitions: int
) -> None:
    """Long ids come in batches: after a cut, what came since the last one comes again."""
    random = Random(partitions)
    name = await asyncio.to_thread(topic, partitions=partitions)
    config = build_config(kafka.bootstrap_servers, [settings(name)], routes(name))
    start = zero(name, partitions)
    async with (
        StreamOracle(kafka.bootstrap_servers) as oracle,
        running_gateway_process(config) as gateway,
    ):
        began = time.monotonic()
        async with listening(FastReconnectClient(f"{gateway.base_url}/records/{name}")) as (
            client,
        ):
            taken = time.monotonic() - began
            pending = len(told(client, "begin")[0]["pending"])
            await wait_until(lambda: len(told(client, "ready")) >= pending, client.describe_state)
            batch = partitions > 400
            assert told(client, "begin")[0]["resume"] == ("batch" if batch else "exact")
            assert (len(client.events[0]["id"]) > 512) == batch

            def unique(serial: int) -> bytes:
                return str(serial).encode()

            async def write() -> None:
                for _ in range(12):
                    await oracle.produce_records(name, 120, key=unique, fields={"pad": "x" * 300})
                    await asyncio.sleep(random.random() * 0.1)

            writing = asyncio.create_task(write())
            gaps_of_id = []
            while not writing.done():
                client.cut_after(random.randrange(40_000), reset=random.random() < 0.3)
                await asyncio.sleep(0.1)
                gaps_of_id += measure_records_between_ids(client.body)
            await writing
            await oracle.produce_records(name, 1500, key=unique, fields={"pad": "x" * 300})
            await wait_until(
                lambda: not oracle.list_missing(parse_events(client.events)),
                client.describe_state,
                30,
                0.1,
            )
            gaps_of_id += measure_records_between_ids(client.body)
            stream, repeated = kept(client.events)
            print(
                f"{partitions}: id of {len(client.last_event_id)}, BEGIN after {taken:.2f} s, "
                f"{client.open_count} connections repeated {repeated}, "
                f"at most {max(gaps_of_id, default=0)} bytes between ids"
            )
            oracle.check_events(stream, start=start)
            assert client.open_count > 3
            assert batch or not any(repeated)
            assert max(gaps_of_id) <= 64 * 1024 + len(client.last_event_id)

            (last,) = await oracle.produce_records(name, 1)

            def moved(events: Sequence[Mapping[str, Any]]) -> bool:
                places = tokens.parse_token(events[-1]["id"]).topics[0].offsets
                return places[last.tp.partition] == last.offset + 1

            await client.wait_for_events(moved)
        async with listening(
            FastReconnectClient(
                f"{gateway.base_url}/records/{name}", last_event_id=client.last_event_id
            )
        ) as (again,):
            after = oracle.get_start_offsets(name, partitions)
            await oracle.produce_records(name, 5, key=unique)
            await whole(oracle, again, start=after)


class Replica:
    """The core of a gateway, and the merged order as it came here."""

    def __init__(self, tps: Sequence[TopicPartition]) -> None:
        self.logs = {tp: PartitionLog(tp, 1 << 30, 1e9) for tp in tps}
        for log in self.logs.values():
            log.open(0, 0)
        self.tail = Tail("cluster", self.logs.values(), {"many": "id"})
        self.channel = Channel(self.tail, b"views", SseEncoder(create_format("envelope")))

    def hear(self, some: Sequence[Record]) -> None:
        for record in some:
            self.logs[record.tp].append(record, 0.0)
        self.channel.publish(self.tail.apply_entries(some, 1_700_000_000))

    def stream(self, last_event_id: str) -> Subscription:
        own = {}
        if last_event_id:
            found = position_resolver.build_position(tokens.parse_token(last_event_id), self.tail)
            own = {tp: place._replace(lineage=0) for tp, place in found.items()}
        return Subscription(self.channel, own)


def test_two_thousand_partitions_resume_at_replicas_of_different_progress() -> None:
    """On the core: a client is cut at random bytes and comes back at either replica."""
    random = Random(2000)
    tps = [TopicPartition("many", p) for p in range(2000)]
    written = dict.fromkeys(tps, 0)
    pad = b"x" * 200
    log = []
    for n in range(3000):
        tp = random.choice(tps)
        log.append(Record(tp, written[tp], 0, 0, b"%d" % n, pad))
        written[tp] += 1
    replicas = [Replica(tps), Replica(tps)]
    rest = [list(log), list(log)]
    parser, stream, repeated, cuts = SseParser(), list[Mapping[str, Any]](), [], 0
    carrier, subscription = 0, replicas[0].stream("")
    token = subscription.begin()[1].decode()
    began = time.perf_counter()
    while any(rest) or len(stream) < len(log):
        for replica, due in zip(replicas, rest, strict=True):
            size = random.randrange(1, 200)
            replica.hear(due[:size])
            del due[:size]
            if random.random() < 0.3:
                replica.channel.announce_position()
        data = subscription.take(64 * 1024, 0.0)
        cut = random.random() < 0.4
        if cut:
            data = data[: random.randrange(len(data) + 1)]
        for event in parser.feed(data):
            if event.event_type == "message":
                stream.append({"event": "message", "id": event.last_event_id, "data": event.data})
            if event.last_event_id != token:
                token, carrier = event.last_event_id, len(stream)
        if cut:
            cuts += 1
            repeated.append(len(stream) - carrier)
            del stream[carrier:]
            subscription.close()
            subscription, parser = random.choice(replicas).stream(token), SseParser(token)
    taken = time.perf_counter() - began
    print(
        f"2,000 partitions: id of {len(token)}, {cuts} cuts, at most {max(repeated)} records "
        f"again, {taken:.1f} s"
    )
    assert cuts > 5
    got = [(each.tp, each.offset) for each in records(stream)]
    assert len(got) == len(set(got)) == len(log)
    in_order = sorted(range(len(got)), key=lambda n: (got[n][0] or tps[0], n))
    assert [got[n] for n in in_order] == sorted(got), "order per partition"
