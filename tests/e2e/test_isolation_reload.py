"""What was read before a reload is not shown as the topic was configured then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.gateways import (
    build_config,
    create_http_client,
    running_gateway,
)
from support.records import RecordToSend, produce_records
from support.sse import parse_stream
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

VALUE = {"owner": "ada", "tenant": "bob", "secret": 1}
RECORD = RecordToSend(json.dumps(VALUE).encode())


async def history(http: httpx.AsyncClient, who: str) -> list[object]:
    """All that somebody is shown of what there is."""
    answer = await http.get(f"/own/{who}", params={"from": "earliest", "until": "latest"})
    return [
        json.loads(event.data)
        for event in parse_stream(answer.content)
        if event.event_type == "message"
    ]


def named(events: Sequence[ReceivedEvent], name: str) -> list[object]:
    return [json.loads(each["data"]) for each in events if each["event"] == name]


def keyed(kafka: EmbeddedKafka, field: str) -> dict[str, object]:
    """Records are theirs whom a field of the value names."""
    topic = {"name": "orders", "transforms": [{"extract-key": f"${{message.value.{field}}}"}]}
    own = {"topic": "orders", "filters": [{"key": "${params.who}"}]}
    return build_config(kafka.bootstrap, [topic], [{"when": [{"path": "/own/{who}"}], "with": own}])


async def test_history_goes_by_the_transforms_of_the_new_configuration(embedded: EmbeddedKafka):
    """For two seconds what had been read from Kafka was held with the keys of the transforms before
    the reload: whose key it was then was sent the record, and whose it is now was not."""
    embedded.create_topic("orders")
    await produce_records(embedded.bootstrap, "orders", [RECORD])
    async with (
        running_gateway(keyed(embedded, "owner")) as gateway,
        create_http_client(gateway) as http,
    ):
        assert [await history(http, who) for who in ("ada", "bob")] == [[VALUE], []]
        await gateway.reload(keyed(embedded, "tenant"))
        assert [await history(http, who) for who in ("ada", "bob")] == [[], [VALUE]]


async def test_live_records_go_by_the_transforms_of_the_new_configuration(embedded: EmbeddedKafka):
    """The transforms that a topic was first read with were applied until the process ended."""
    embedded.create_topic("orders")
    async with (
        running_gateway(keyed(embedded, "owner")) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = [RawClient(f"{gateway.base_url}/own/{who}") for who in ("ada", "bob")]
        for client in clients:
            await stack.enter_async_context(client)
            await client.wait_for_events(1)
        await gateway.reload(keyed(embedded, "tenant"))
        for client in clients:
            await client.wait_for_events(lambda events: len(named(events, "begin")) == 2)
        await produce_records(embedded.bootstrap, "orders", [RECORD])
        await wait_until(lambda: any(named(client.events, "message") for client in clients))
        ada, bob = (named(client.events, "message") for client in clients)
        assert (ada, bob) == ([], [VALUE])
