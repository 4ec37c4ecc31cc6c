"""interval: of what comes within it a client gets the latest record of each key, in one flush."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from support.clients.hasty import Hasty
from support.clients.raw import RawClient
from support.clients.wires import Wire, every_wire, over
from support.gateways import Gateway, config_for, running_gateway
from support.latest import known, records, written
from support.records import Sent, produce
from support.until import until

from gateway.kafka.embedded import EmbeddedKafka

WITHIN = 60.0  # s
PARTITIONS = 2
KEYS = 5
ROUNDS = 40


@asynccontextmanager
async def serving(servers: Sequence[str], interval: str, **options: Any) -> AsyncIterator[Gateway]:
    def target(**more: Any) -> dict[str, Any]:
        return {"topic": "prices", "format": "envelope", **options, **more}

    routes = [
        {"when": [{"path": "/steps"}], "with": target(interval=interval)},
        {"when": [{"path": "/all"}], "with": target()},
    ]
    async with running_gateway(config_for(servers, ["prices"], routes)) as gateway:
        yield gateway


def row(key: int, value: int) -> Sent:
    return Sent(b"%d" % value, b"k%d" % key, key % PARTITIONS)


async def begun(*clients: RawClient) -> None:
    for client in clients:
        await client.wait(1, WITHIN)


def has_all(client: RawClient, sent: Sequence[Sent]) -> Any:
    """It knows the latest, and has every record without a key."""
    plain = sum(each.key is None for each in sent)

    def has() -> bool:
        got = {(r["partition"], r["offset"]) for r in records(client.events) if r["key"] is None}
        return known(client.events) == written(sent) and len(got) == plain

    return has


@every_wire
async def test_a_flush_has_the_latest_of_each_key_and_all_without_one(
    embedded: EmbeddedKafka, wire: Wire
):
    embedded.create_topic("prices", PARTITIONS)
    async with (
        serving(embedded.bootstrap, "1s") as gateway,
        over(wire, Hasty)(f"{gateway.base_url}/steps") as client,
        over(wire, Hasty)(f"{gateway.base_url}/all") as whole,
    ):
        await begun(client, whole)
        sent = [row(k, n) for n in range(ROUNDS) for k in range(KEYS)]
        sent += [Sent(b"%d" % n, None, n % PARTITIONS) for n in range(ROUNDS)]
        sent += [Sent(None, b"k0", 0)]
        await produce(embedded.bootstrap, "prices", sent)
        await until(has_all(client, sent), lambda: f"the latest: {client.state()}", WITHIN)
        await until(lambda: len(records(whole.events)) == len(sent), "all of it", WITHIN)
        # What was sent in less than some seconds is some flushes, not one for every record.
        assert len(records(client.events)) - ROUNDS < KEYS * ROUNDS / 2


async def test_only_the_last_event_of_a_flush_has_an_id(embedded: EmbeddedKafka):
    embedded.create_topic("prices", PARTITIONS)
    async with (
        serving(embedded.bootstrap, "2s") as gateway,
        RawClient(f"{gateway.base_url}/steps") as client,
    ):
        await begun(client)
        sent = [row(k, n) for n in range(3) for k in range(KEYS)]
        await produce(embedded.bootstrap, "prices", sent)
        await until(has_all(client, sent), "the latest", WITHIN)
        blocks = [b for b in client.wire.split(b"\n\n") if b.startswith(b"data:")]
        ids = [b"\nid:" in block for block in blocks]
        assert ids[-1]
        assert not all(ids), "those before it have none"
        assert client.events[0]["event"] == "begin"
        assert json.loads(client.events[0]["data"])["resume"] == "batch"


@every_wire
async def test_one_that_is_cut_anywhere_knows_the_latest_in_the_end(
    embedded: EmbeddedKafka, wire: Wire
):
    embedded.create_topic("prices", PARTITIONS)
    random = Random(7)
    async with (
        serving(embedded.bootstrap, "50ms") as gateway,
        over(wire, Hasty)(f"{gateway.base_url}/steps") as client,
    ):
        await begun(client)
        sent: list[Sent] = []
        for n in range(ROUNDS):
            more = [row(random.randrange(KEYS), n) for _ in range(20)]
            more += [Sent(b"%d" % n, None, n % PARTITIONS)]
            if n % 5 == 0:
                more += [Sent(None, b"k%d" % (n % KEYS), n % KEYS % PARTITIONS)]
            await produce(embedded.bootstrap, "prices", more)
            sent += more
            if n % 4 == 0:
                client.cut_after(random.randrange(1, 2000), reset=n % 8 == 0)
        client.cut()
        opened = client.opened
        await until(lambda: client.opened > opened, "it comes back", WITHIN)
        await until(has_all(client, sent), lambda: f"the latest: {client.state()}", WITHIN)


async def test_clients_of_the_same_topic_with_and_without_an_interval_do_not_disturb_each_other(
    embedded: EmbeddedKafka,
):
    """A long interval holds nobody up: not who comes, and not who has none."""
    embedded.create_topic("prices", PARTITIONS)
    async with (
        serving(embedded.bootstrap, "60s") as gateway,
        RawClient(f"{gateway.base_url}/steps") as first,
        RawClient(f"{gateway.base_url}/all") as whole,
    ):
        await begun(first, whole)
        sent = [row(1, n) for n in range(10)]
        for each in sent:
            await produce(embedded.bootstrap, "prices", [each])
        await until(lambda: len(records(whole.events)) == 10, "all of it", WITHIN)
        async with RawClient(f"{gateway.base_url}/steps") as late:
            await begun(late)
        assert len(records(first.events)) < 10
