"""What was read before a reload is not shown as the topic was configured then."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
from support.clients.client import Event
from support.clients.raw import RawClient
from support.gateways import Gateway, browsing, config_for, running_gateway
from support.records import Sent, produce
from support.sse import parse
from support.until import until

from gateway.kafka.embedded import EmbeddedKafka

RELOADED = "configuration reloaded"
VALUE = {"owner": "ada", "tenant": "bob", "secret": 1}
RECORD = Sent(json.dumps(VALUE).encode())


async def history(http: httpx.AsyncClient, who: str) -> list[object]:
    """All that somebody is shown of what there is."""
    answer = await http.get(f"/own/{who}", params={"from": "earliest", "until": "latest"})
    return [json.loads(event.data) for event in parse(answer.content) if event.type == "message"]


def named(events: Sequence[Event], name: str) -> list[object]:
    return [json.loads(each["data"]) for each in events if each["event"] == name]


async def reload(gateway: Gateway, config: dict[str, object]) -> None:
    before = gateway.log.count(RELOADED)
    gateway.write(config)
    gateway.signal(signal.SIGHUP)
    await until(lambda: gateway.log.count(RELOADED) > before, gateway.tail)


def keyed(kafka: EmbeddedKafka, field: str) -> dict[str, object]:
    """Records are theirs whom a field of the value names."""
    topic = {"name": "orders", "transforms": [{"extract-key": f"${{message.value.{field}}}"}]}
    own = {"topic": "orders", "filters": [{"key": "${params.who}"}]}
    return config_for(kafka.bootstrap, [topic], [{"when": [{"path": "/own/{who}"}], "with": own}])


async def test_history_goes_by_the_transforms_of_the_new_configuration(embedded: EmbeddedKafka):
    """For two seconds what had been read from Kafka was held with the keys of the transforms before
    the reload: whose key it was then was sent the record, and whose it is now was not."""
    embedded.create_topic("orders")
    await produce(embedded.bootstrap, "orders", [RECORD])
    async with running_gateway(keyed(embedded, "owner")) as gateway, browsing(gateway) as http:
        assert [await history(http, who) for who in ("ada", "bob")] == [[VALUE], []]
        await reload(gateway, keyed(embedded, "tenant"))
        assert [await history(http, who) for who in ("ada", "bob")] == [[], [VALUE]]


async def test_live_records_go_by_the_transforms_of_the_new_configuration(embedded: EmbeddedKafka):
    """The transforms that a topic was first read with were applied until the process ended."""
    embedded.create_topic("orders")
    async with running_gateway(keyed(embedded, "owner")) as gateway, AsyncExitStack() as stack:
        clients = [RawClient(f"{gateway.base_url}/own/{who}") for who in ("ada", "bob")]
        for client in clients:
            await stack.enter_async_context(client)
            await client.wait(1)
        await reload(gateway, keyed(embedded, "tenant"))
        for client in clients:
            await client.wait(lambda events: len(named(events, "begin")) == 2)
        await produce(embedded.bootstrap, "orders", [RECORD])
        await until(lambda: any(named(client.events, "message") for client in clients))
        ada, bob = (named(client.events, "message") for client in clients)
        assert (ada, bob) == ([], [VALUE])
