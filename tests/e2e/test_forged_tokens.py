"""What a token that a client made up does to others: nothing; and to itself: no more than it may.

On the embedded Kafka, as everything here is decided before a broker is asked for records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from support.brokers import embedded_kafka
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.forged_tokens import MAX_TOKEN_PARTITIONS, forge_token
from support.gateways import (
    GatewayThread,
    build_config,
    build_route,
    create_http_client,
    running_gateway,
)
from support.multiplex import MultiplexClient
from support.records import produce_records
from support.waiting import wait_until

from gateway.core.token import resume_token as tokens
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 1, "payments": 2}, scope="function")

BOTH = {"when": [{"path": "/both"}], "with": {"topics": ["orders", "payments"]}}
PUBLIC = {"when": [{"path": "/public"}], "with": {"topic": "orders", "history": "none"}}
ROUTES = [build_route("orders", "value"), build_route("payments", "value"), BOTH, PUBLIC]
SECRET = "one secret of more than 32 characters"


def config(kafka: EmbeddedKafka, **sections: Any) -> dict[str, Any]:
    return build_config(kafka.bootstrap, ["orders", "payments"], ROUTES, **sections)


async def first_of(gateway: GatewayThread, path: str, last_event_id: str = "") -> Mapping[str, Any]:
    """The first event that a browser is sent, with its id."""
    async with FastReconnectClient(gateway.base_url + path, last_event_id=last_event_id) as client:
        await client.wait_for_events(1)
        return client.events[0]


async def refusal(gateway: GatewayThread, path: str, last_event_id: str) -> tuple[int, str]:
    """How a program is answered that brings a token: the status, and the detail of a problem."""
    headers = {"Last-Event-ID": last_event_id, "Accept": "text/event-stream"}
    async with (
        create_http_client(gateway) as program,
        program.stream("GET", path, headers=headers) as answer,
    ):
        problem = await answer.aread() if answer.is_error else b'{"detail": ""}'
        return answer.status_code, json.loads(problem)["detail"]


def values(client: RawClient) -> list[str]:
    return [each["data"] for each in client.events if each["event"] == "message"]


def told(client: RawClient, name: str) -> list[dict[str, Any]]:
    return [json.loads(each["data"]) for each in client.events if each["event"] == name]


async def test_a_token_of_forty_thousand_partitions_is_refused_and_changes_nothing_for_others(
    kafka: EmbeddedKafka,
):
    """The first client of a topic set decided how many partitions it had for everybody: other
    clients were told of 40,000, and their ids had 40,032 characters."""
    async with running_gateway(config(kafka)) as gateway:
        sent = (await first_of(gateway, "/events/orders"))["id"]
        made_up = forge_token(sent, {"orders": 40_000})
        status, detail = await refusal(gateway, "/both", made_up)
        assert (status, "40000 partitions of orders" in detail) == (400, True)
        begin = await first_of(gateway, "/both")
        data = json.loads(begin["data"])
        assert data["partitions"] == {"orders": 1, "payments": 2}
        assert data["pending"] == []
        assert len(begin["id"]) < 100


async def test_a_browser_with_such_a_token_is_told_and_then_served(kafka: EmbeddedKafka):
    """Any other status would end its EventSource for good."""
    async with running_gateway(config(kafka)) as gateway:
        sent = (await first_of(gateway, "/events/orders"))["id"]
        made_up = forge_token(sent, {"orders": 40_000})
        async with FastReconnectClient(f"{gateway.base_url}/both", last_event_id=made_up) as client:
            await client.wait_for_events(2)
            assert json.loads(client.events[0]["data"])["partitions"]["orders"] == 1
            assert told(client, "gap")[0]["reason"] == "position-refused"
            await produce_records(kafka.bootstrap, "orders", [b"new"])
            await client.wait_for_events(lambda events: "new" in [each["data"] for each in events])
            assert len(client.last_event_id) < 100


async def test_partitions_that_metadata_may_not_know_yet_are_told_to_their_own_client_alone(
    kafka: EmbeddedKafka,
):
    """Those of a token that was believed were opened in the shared reads, for all."""
    async with running_gateway(config(kafka)) as gateway:
        sent = (await first_of(gateway, "/events/orders"))["id"]
        made_up = forge_token(sent, {"orders": 20})
        async with FastReconnectClient(f"{gateway.base_url}/both", last_event_id=made_up) as client:
            await client.wait_for_events(1)
            mine = told(client, "begin")[0]
            assert mine["partitions"] == {"orders": 1, "payments": 2}
            assert [each["partition"] for each in mine["pending"]] == list(range(1, 20))
            begin = await first_of(gateway, "/both")
            assert json.loads(begin["data"])["pending"] == []
            assert len(begin["id"]) < 100
            await produce_records(kafka.bootstrap, "orders", [b"new"])
            await client.wait_for_events(lambda events: "new" in [each["data"] for each in events])
            places = (
                tokens.parse_token(client.last_event_id).match_topics(["orders"])["orders"].offsets
            )
            assert places == [1, *[0] * 19]  # kept for itself, until they are there


async def test_the_longest_token_on_a_socket_gives_nobody_an_id_that_headers_cannot_hold(
    kafka: EmbeddedKafka,
):
    """The `lastEventId` of a message is longer than a header may be: an EventSource beside it was
    sent an id of 65,475 characters, and its reconnect was answered 431."""
    async with running_gateway(config(kafka)) as gateway:
        sent = (await first_of(gateway, "/events/orders"))["id"]
        made_up = forge_token(sent, {"orders": MAX_TOKEN_PARTITIONS})
        assert len(made_up) > 65_000
        async with MultiplexClient(gateway.base_url) as socket:
            await socket.send_message("subscribe", id="a", path="/both", lastEventId=made_up)
            error = await socket.wait_for_message("a", "error")
            assert error["code"] == "position-refused"
            begin = await first_of(gateway, "/both")
            assert len(begin["id"]) < 100
            again = await first_of(gateway, "/both", begin["id"])
            assert again["event"] == "begin"


async def test_a_route_without_history_gives_none_to_a_token_of_another_route(
    kafka: EmbeddedKafka,
):
    """An id of a route that goes back, or one that was made up, was sent everything."""
    await produce_records(kafka.bootstrap, "orders", [b"old %d" % n for n in range(5)])
    async with running_gateway(config(kafka)) as gateway:
        wide = f"{gateway.base_url}/events/orders?from=earliest"
        async with FastReconnectClient(wide) as client:
            await client.wait_for_events(3)
        early = client.events[1]["id"]
        for token in (early, forge_token(early, {"orders": 1}), forge_token(early, {"orders": 0})):
            status, detail = await refusal(gateway, "/public", token)
            assert (status, "goes back further than this route" in detail) == (403, True)
            async with FastReconnectClient(
                f"{gateway.base_url}/public?lastEventId={token}"
            ) as asked:
                await asked.wait_for_events(2)
                assert told(asked, "gap")[0]["reason"] == "position-refused"
            async with FastReconnectClient(
                f"{gateway.base_url}/public", last_event_id=token
            ) as browser:
                await browser.wait_for_events(2)
                assert told(browser, "gap")[0]["reason"] == "position-refused"
                await produce_records(kafka.bootstrap, "orders", [b"new"])
                # On a busy machine it may also be told first that the partition is ready.
                await wait_until(lambda browser=browser: values(browser), "the record")  # type: ignore[misc]
                assert values(browser) == ["new"]
        async with MultiplexClient(gateway.base_url) as socket:
            await socket.send_message("subscribe", id="a", path="/public", lastEventId=early)
            assert (await socket.wait_for_message("a", "error"))["code"] == "history-is-limited"


async def test_a_stream_that_is_changed_to_a_route_without_history_takes_none_along(
    kafka: EmbeddedKafka,
):
    """A client that took nothing of one route stood at its first record on the next."""
    await produce_records(kafka.bootstrap, "orders", [b"old %d" % n for n in range(5)])
    async with (
        running_gateway(config(kafka)) as gateway,
        MultiplexClient(gateway.base_url) as socket,
    ):
        await socket.subscribe("a", "/events/orders?from=earliest", credit=1)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 1)
        await socket.send_message("change", id="a", path="/public")
        assert (await socket.wait_for_message("a", "error"))["code"] == "history-is-limited"
        assert len(socket.get_records("a")) == 1


async def test_a_client_that_was_cut_off_goes_on_exactly_where_history_is_none(
    kafka: EmbeddedKafka,
):
    async with running_gateway(config(kafka)) as gateway:
        async with FastReconnectClient(f"{gateway.base_url}/public") as client:
            await client.wait_for_events(1)
            await produce_records(kafka.bootstrap, "orders", [b"1", b"2"])
            await client.wait_for_events(3)
        at = client.events[1]["id"]
        await produce_records(kafka.bootstrap, "orders", [b"3"])
        async with RawClient(f"{gateway.base_url}/public", last_event_id=at) as again:
            await again.wait_for_events(3)
            assert values(again) == ["2", "3"]


# with a secret


async def test_with_a_secret_a_token_that_was_made_up_is_refused_and_one_that_was_sent_is_not(
    kafka: EmbeddedKafka,
):
    await produce_records(kafka.bootstrap, "orders", [b"old %d" % n for n in range(5)])
    signing = config(kafka, tokens={"secret": SECRET})
    async with running_gateway(signing) as gateway:
        sent = (await first_of(gateway, "/events/orders?from=earliest"))["id"]
        status, detail = await refusal(gateway, "/events/orders", forge_token(sent, {"orders": 1}))
        assert (status, "was not made by this gateway" in detail) == (400, True)
        async with RawClient(f"{gateway.base_url}/events/orders", last_event_id=sent) as client:
            await client.wait_for_events(6)
            assert len(values(client)) == 5
        status, _ = await refusal(gateway, "/public", sent)
        assert status == 403  # another route's


async def test_with_a_secret_a_route_takes_back_what_it_sent_however_old(kafka: EmbeddedKafka):
    """Before the restart the gateway heard the records itself; after it nothing tells that they
    are recent, but that this route sent the token."""
    signing = config(kafka, tokens={"secret": SECRET})
    for secret, status in ((SECRET, 200), (None, 403)):
        settings = signing if secret else config(kafka)
        async with running_gateway(settings) as gateway:
            sent = (await first_of(gateway, "/public"))["id"]
            await produce_records(kafka.bootstrap, "orders", [b"missed"])
            await gateway.restart()
            async with RawClient(f"{gateway.base_url}/public", last_event_id=sent) as client:
                await client.wait_for_events(2) if secret else await client.wait_closed()
                assert client.responses[0].status == status
                assert values(client) == (["missed"] if secret else [])


# names with the same digest
