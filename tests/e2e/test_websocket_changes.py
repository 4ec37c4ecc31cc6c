"""A stream of a WebSocket that is changed in place, ended, and gone on with: nothing is lost and
nothing comes twice, and every position says from where the next view counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayThread, build_config
from support.grouped import ERROR_NAMES
from support.multiplex import MESSAGE_TIMEOUT_S, MultiplexClient
from support.oracle import AckedRecord, StreamOracle
from support.received import parse_events
from support.topic_gateway import run_gateway_sync
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.core.token import resume_token as tokens
from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 3, "stock": 2, "many": 500}
KEYS = [f"key-{n}" for n in range(7)]  # the oracle's, in turn

kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    routes = [
        {
            "when": [{"path": f"/{'+'.join(topics)}"}],
            "with": {
                "topics": topics,
                "format": "envelope",
                "clientFilters": True,
                "clientFields": True,
            },
        }
        for topics in (["orders"], ["stock"], ["many"], ["orders", "stock"])
    ]
    routes.append({"when": [{"path": "/fixed"}], "with": {"topic": "orders"}})
    with run_gateway_sync(build_config(kafka.bootstrap, TOPICS, routes)) as gateway:
        yield gateway


@asynccontextmanager
async def writing(oracle: StreamOracle, *topics: str) -> AsyncIterator[None]:
    """Records all the time; all are acknowledged at the end."""

    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            for topic in topics:
                await oracle.produce_records(topic, 20)
            await asyncio.sleep(0.002)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        over.set()
        await task


def of(keys: Sequence[str]) -> dict[str, Any]:
    return {"filter": {"key": {"in": list(keys)}}}


def offsets(position: str) -> dict[int, int]:
    """Of the only topic."""
    (topic,) = tokens.parse_token(position).topics
    return {p: offset or 0 for p, offset in enumerate(topic.offsets)}


def parse_timeless(position: str) -> tokens.ResumeToken:
    """All of a token but the second at which it was made."""
    return replace(tokens.parse_token(position), issued=0)


def keys_of(socket: MultiplexClient, label: str) -> list[str]:
    return [each["key"] for each in socket.get_records(label)]


def views(socket: MultiplexClient, label: str) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """From each begin on: its position, and the place and key of each record."""
    found: list[tuple[str, list[tuple[int, int, str]]]] = []
    for told in socket.get_messages(label):
        if told["type"] == "begin":
            found.append((told["position"], []))
        for each in told.get("records", ()):
            found[-1][1].append((each["partition"], each["offset"], each["key"]))
    return found


async def test_a_filter_changed_under_load_loses_and_repeats_nothing_and_says_where_it_counts(
    gateway: GatewayThread, oracle: StreamOracle
):
    """Forty changes of an `in` list; every record of each view between its two positions."""
    random = Random(7)
    async with MultiplexClient(gateway.base_url) as socket:
        chosen = [KEYS[:3]]
        await socket.subscribe("a", "/orders", **of(chosen[0]))
        async with writing(oracle, "orders"):
            for n in range(40):
                wanted = [*random.sample(KEYS[:-1], n % 5), KEYS[-1]][n % 2 :] or KEYS[:1]
                chosen.append(wanted)
                begin = await socket.change("a", **of(wanted))
                assert begin["changed"] is True
                if n % 3:
                    seen = len(socket.get_records("a"))
                    await socket.wait_until(lambda seen=seen: len(socket.get_records("a")) > seen)
        last = await oracle.produce_records("orders", 21)
        due = {each.value for each in last if (each.key or b"").decode() in chosen[-1]}
        await socket.wait_until(
            lambda: due <= {each["value"].encode() for each in socket.get_records("a")}
        )
        parts = views(socket, "a")
        assert len(parts) == 41
        ends = [offsets(position) for position, _ in parts[1:]]
        ends.append({tp.partition: end for tp, end in oracle.get_end_offsets().items()})
        everything = oracle.list_acked()
        for (position, got), end, wanted in zip(parts, ends, chosen, strict=True):
            start = offsets(position)
            assert sorted(got) == sorted(
                (each.tp.partition, each.offset, (each.key or b"").decode())
                for each in everything
                if start[each.tp.partition] <= each.offset < end[each.tp.partition]
                and (each.key or b"").decode() in wanted
            )
        assert sum(len(got) for _, got in parts) > 300


async def test_what_matches_both_filters_is_neither_lost_nor_repeated_and_others_do_not_notice(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with (
        MultiplexClient(gateway.base_url) as socket,
        MultiplexClient(gateway.base_url) as control,
    ):
        start = oracle.get_start_offsets("orders", 3)
        for n, each in enumerate((socket, control)):
            await each.subscribe("same", "/orders")
            await each.subscribe("a", "/orders", **of(KEYS[:2]))
            start = offsets(each.get_messages("same", "begin")[0]["position"]) if not n else start
        async with writing(oracle, "orders"):
            for n in range(30):
                await socket.change("a", **of([KEYS[1], KEYS[2 + n % 5]]))
        (last,) = await oracle.produce_records("orders", 1, key=KEYS[1].encode())

        def both(acked: AckedRecord) -> bool:
            return acked.key == KEYS[1].encode()

        for each in (socket, control):
            await each.wait_until(
                lambda each=each: not oracle.list_missing(parse_events(each.get_events("same")))
            )
            await each.wait_until(
                lambda each=each: (
                    last.value in {record["value"].encode() for record in each.get_records("a")}
                )
            )
            mine = [event for event in each.get_events("a") if KEYS[1] in event["data"]]
            oracle.check_events(
                mine, view=both, start={TopicPartition("orders", p): o for p, o in start.items()}
            )
            oracle.check_events(each.get_events("same"))


async def test_changes_in_quick_succession_add_up(gateway: GatewayThread, oracle: StreamOracle):
    """The second one spoke of the view before the first, and the new path was lost."""
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", "/orders", **of(KEYS[:1]))
        await socket.send_message("change", id="a", path="/orders+stock")
        await socket.send_message("change", id="a", **of(KEYS[:2]))
        await socket.send_message("change", id="a", fields=["/n"])
        await socket.wait_until(
            lambda: socket.get_messages("a", "begin")[-1]["topics"] == ["orders", "stock"]
        )
        await socket.wait_for_pong()
        written = await oracle.produce_records("stock", 14)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 4)
        assert {each["topic"] for each in socket.get_records("a")} == {"stock"}
        assert set(keys_of(socket, "a")) == set(KEYS[:2])
        values = [json.loads(each["value"]) for each in socket.get_records("a")]
        assert all(list(each) == ["n"] for each in values)
        assert len(written) == 14

        await socket.send_message("change", id="a", filter=None, fields=None)
        await socket.wait_for_message("a", "begin", len(socket.get_messages("a", "begin")) - 1)
        await socket.wait_for_pong()
        before = len(socket.get_records("a"))
        await oracle.produce_records("stock", 14)
        await socket.wait_until(lambda: len(socket.get_records("a")) == before + 14)
        assert "run" in json.loads(socket.get_records("a")[-1]["value"])


async def test_a_change_to_another_topic_begins_there_and_to_one_more_keeps_its_place(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", "/orders", credit=1000)
        await oracle.produce_records("orders", 10)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 10)
        at = oracle.get_start_offsets("orders", 3)
        begin = await socket.change("a", path="/orders+stock")
        assert begin["changed"] and begin["topics"] == ["orders", "stock"]
        places = tokens.parse_token(begin["position"]).match_topics(["orders"])
        assert places["orders"].offsets == [at[tp] for tp in sorted(at)]
        begin = await socket.change("a", path="/stock")
        assert begin["topics"] == ["stock"]
        await oracle.produce_records("orders", 10)
        await oracle.produce_records("stock", 5)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 15)
        begin = await socket.change("a", path="/orders")  # of which it knows nothing any more
        assert begin["changed"] and begin["topics"] == ["orders"]
        await oracle.produce_records("orders", 10)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 25)
        assert not socket.get_messages("a", "error") and not socket.get_messages("a", "end")
        assert [each["topic"] for each in socket.get_records("a")] == (
            ["orders"] * 10 + ["stock"] * 5 + ["orders"] * 10
        )


async def test_a_stream_to_the_latest_that_is_changed_to_another_topic_ends_behind_all_of_that(
    gateway: GatewayThread, oracle: StreamOracle
):
    """It ended at once, as if all had been sent: it knew where the earlier topic ended only."""
    await oracle.produce_records("orders", 10)
    await oracle.produce_records("stock", 20)
    ends = oracle.get_start_offsets("stock", 2)
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", "/orders?from=earliest&until=latest", credit=1)
        await socket.wait_until(lambda: len(socket.get_records("a")) == 1)
        await socket.change("a", path="/stock?from=earliest")
        await socket.send_message("credit", id="a", n=100_000)
        end = await socket.wait_for_message("a", "end")
        assert end["reason"] == "until"
        assert len(socket.get_records("a")) == 1 + sum(ends.values())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"path": "/nowhere"}, "unknown-path"),
    ({"path": "/fixed", "filter": {"key": "x"}}, "not-to-be-chosen"),
    ({"path": "/fixed", "fields": ["/n"]}, "not-to-be-chosen"),
    ({"filter": []}, "bad-request"),
    ({"filter": {}}, "bad-request"),
    ({"filter": {"kye": "x"}}, "bad-request"),
    ({"filter": {"key": {"gt": "x"}}}, "bad-request"),
    ({"fields": ["n"]}, "bad-request"),
    ({"filter": "key=x"}, "bad-message"),
    ({"paht": "/orders"}, "bad-message"),
]


async def test_a_change_that_is_refused_leaves_the_stream_as_it_was(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url) as socket:
        await socket.subscribe("a", "/orders", **of(KEYS[:3]))
        start = oracle.get_start_offsets("orders", 3)
        async with writing(oracle, "orders"):
            for n, (members, code) in enumerate(REFUSED):
                await socket.send_message("change", id="a", **members)
                error = await socket.wait_for_message("a", "error", n)
                assert error["code"] == code, error
        view = of_keys(KEYS[:3])
        await socket.wait_until(
            lambda: not oracle.list_missing(parse_events(told(socket, "a")), view)
        )
        oracle.check_events(told(socket, "a"), start=start or None, view=view)
        assert len(socket.get_messages("a", "begin")) == 1


def told(socket: MultiplexClient, label: str) -> list[Any]:
    """Without errors, which the oracle takes for the end."""
    return [event for event in socket.get_events(label) if event["event"] not in ERROR_NAMES]


def of_keys(keys: Sequence[str]) -> Callable[[AckedRecord], bool]:
    return lambda acked: (acked.key or b"").decode() in keys


async def test_a_stream_changed_or_ended_while_it_opens_does_so_once_it_has_begun(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url) as socket:
        for n in range(30):
            label = f"s{n}"
            await socket.send_message("subscribe", id=label, path="/orders", **of(KEYS[:1]))
            if n % 3:
                await socket.send_message("change", id=label, **of(KEYS[1:2]))
            if n % 2:
                await socket.send_message("unsubscribe", id=label)
            if n % 5 == 4:
                await socket.send_message("change", id=label, path="/stock")
        await socket.wait_for_pong()
        ended = [f"s{n}" for n in range(1, 30, 2)]
        for label in ended:
            assert (await socket.wait_for_message(label, "end"))["reason"] == "unsubscribed"
            told = [each["type"] for each in socket.get_messages(label)]
            assert [kind for kind in told if kind not in ERROR_NAMES][-1] == "end"
        alive = range(0, 30, 2)
        await socket.wait_until(
            lambda: all(
                len(socket.get_messages(f"s{n}", "begin")) >= (2 if n % 3 else 1) for n in alive
            )
        )
        await socket.wait_until(
            lambda: all(
                socket.get_messages(f"s{n}", "begin")[-1]["topics"] == topics(n) for n in alive
            )
        )
        (first, second) = await oracle.produce_records(
            "orders", 2, key=lambda n: KEYS[n % 2].encode()
        )
        for n in alive:
            if topics(n) == ["orders"]:
                await socket.wait_until(lambda n=n: len(socket.get_records(f"s{n}")) == 1)
                assert keys_of(socket, f"s{n}") == [KEYS[1] if n % 3 else KEYS[0]]
        assert first.value != second.value
        codes = {each["code"] for each in socket.messages if each["type"] == "error"}
        assert codes <= {"unknown-subscription"}, "a change that came behind the end"


def topics(n: int) -> list[str]:
    return ["stock"] if n % 5 == 4 else ["orders"]


async def test_after_unsubscribe_another_stream_goes_on_from_the_position_on_either_wire(
    gateway: GatewayThread, oracle: StreamOracle
):
    """From `/ws` to `/ws`, to server-sent events, and back, while records are written."""
    async with MultiplexClient(gateway.base_url) as socket:
        begin = await socket.subscribe("a", "/orders")
        start = {TopicPartition("orders", p): o for p, o in offsets(begin["position"]).items()}
        events: list[Any] = []
        async with writing(oracle, "orders"):
            await socket.wait_until(lambda: len(socket.get_records("a")) > 100)
            position = (await socket.unsubscribe("a"))["position"]
            events += socket.get_events("a")
            for n in range(3):
                label = f"b{n}"
                begin = await socket.subscribe(label, "/orders", lastEventId=position)
                assert parse_timeless(begin["position"]) == parse_timeless(position)
                assert "view" not in begin
                await socket.wait_until(lambda label=label: len(socket.get_records(label)) > 50)
                position = (await socket.unsubscribe(label))["position"]
                events += socket.get_events(label)
                async with RawClient(
                    f"{gateway.base_url}/orders", last_event_id=position
                ) as client:
                    await client.wait_for_events(lambda e: len(e) > 50, MESSAGE_TIMEOUT_S)
                    await client.stop()
                    assert "view" not in json.loads(client.events[0]["data"])
                    position = client.last_event_id
                    events += client.events
        begin = await socket.subscribe("c", "/orders", lastEventId=position)
        await oracle.produce_records("orders", 3)
        await wait_until(
            lambda: not oracle.list_missing(parse_events([*events, *socket.get_events("c")])),
            socket.describe_state,
            MESSAGE_TIMEOUT_S,
        )
        oracle.check_events([*events, *socket.get_events("c")], start=start)


async def test_long_positions_come_in_batches_and_repeat_no_more_than_since_the_last(
    gateway: GatewayThread, oracle: StreamOracle
):
    async with MultiplexClient(gateway.base_url) as socket:
        begin = await socket.subscribe("a", "/many")
        assert begin["resume"] == "batch" and len(begin["position"]) > 512
        for _ in range(5):
            await oracle.produce_records(
                "many", 300, key=lambda n: b"%d" % n, fields={"pad": "x" * 300}
            )
        await socket.wait_until(lambda: len(socket.get_records("a")) == 1500)
        messages = socket.get_messages("a", "records")
        carrying = [n for n, each in enumerate(messages) if "position" in each]
        assert 0 < len(carrying) < len(messages)
        for n in carrying[:-1]:
            have = [record for each in messages[: n + 1] for record in each["records"]]
            place = offsets(messages[n]["position"])
            begun = offsets(begin["position"])
            counted = {p: place[p] - begun[p] for p in place}
            assert sum(counted.values()) == len(have), "the position is that after the last of it"
        cut = carrying[-1]
        have = [record for each in messages[: cut + 1] for record in each["records"]]
        await socket.subscribe("b", "/many", lastEventId=messages[cut]["position"])
        await oracle.produce_records("many", 10)
        await socket.wait_until(lambda: len(socket.get_records("b")) == 1500 - len(have) + 10)
        events = [event for event in socket.get_events("a") if event["event"] == "message"][
            : len(have)
        ] + socket.get_events("b")
        oracle.check_events(events)
