"""Many streams on one WebSocket: one that is slow, by credit, costs itself alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.received import GapEvent, parse_events
from support.topic_gateway import run_gateway_sync

from gateway.kafka.embedded import EmbeddedKafka

TOPICS = {"orders": 3, "stock": 2, "large": 2, "one": 1, "two": 2}
PAD = {"pad": "x" * 10_000}  # 150 of these are more than a ring holds
RING = 150

kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    chosen = {"format": "envelope", "clientFilters": True, "clientFields": True}
    targets: dict[str, dict[str, Any]] = {name: {"topic": name} for name in TOPICS}
    targets |= {"both": {"topics": ["orders", "stock"]}, "values": {"topic": "orders"}}
    targets["values"]["format"] = "value"
    for policy in ("skip", "disconnect"):
        targets[policy] = {"topic": "large", "slowClient": policy}
    routes = [
        {"when": [{"path": f"/{path}"}], "with": {**chosen, **target}}
        for path, target in targets.items()
    ]
    small = [{"name": name, "cache": {"bytes": "64KiB"}} for name in TOPICS]
    with run_gateway_sync(build_config(kafka.bootstrap, small, routes)) as gateway:
        yield gateway


def key(n: int) -> dict[str, Any]:
    return {"filter": {"key": f"key-{n}"}}


VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "orders": ("/orders", {}),
    "stock": ("/stock", {}),
    "both": ("/both", {}),
    "values": ("/values", {}),
    "fields": ("/orders", {"fields": ["/n"]}),
    **{f"orders-{n}": ("/orders", key(n)) for n in range(7)},
    **{f"stock-{n}": ("/stock", key(n)) for n in range(6)},
    "again": ("/orders", {}),
}
SLOW = "slow"


class Grants:
    """Credit for one stream, and whether it kept to it at every instant."""

    def __init__(self, socket: MultiplexClient, first: int) -> None:
        self._socket = socket
        self._given = [(0.0, first)]

    async def give(self, records: int) -> None:
        self._given.append((time.monotonic(), records))
        await self._socket.send_message("credit", id=SLOW, n=records)

    @property
    def total(self) -> int:
        return sum(records for _, records in self._given)

    def kept(self) -> None:
        count = 0
        for message in self._socket.get_messages(SLOW, "records"):
            count += len(message["records"])
            assert count <= sum(n for at, n in self._given if at <= message["at"])


async def test_of_twenty_streams_on_one_socket_one_is_slow_by_credit_and_the_others_unaffected(
    gateway: GatewayThread, oracle: StreamOracle
):
    assert len(VIEWS) == 19
    async with (
        MultiplexClient(gateway.base_url) as socket,
        MultiplexClient(gateway.base_url) as control,
    ):
        for each in (socket, control):
            for label, (path, members) in VIEWS.items():
                await each.subscribe(label, path, **members)
        await socket.subscribe(SLOW, "/orders", credit=5)
        grants = Grants(socket, 5)
        for n in range(60):
            await oracle.produce_records("orders", 14)
            await oracle.produce_records("stock", 14)
            if n % 10 == 9:
                await grants.give(1 + n % 7)
        due = {record.value.decode() for record in oracle.list_acked() if record.value}
        for each in (socket, control):
            await each.wait_until(lambda each=each: set(values(each, "both")) == due)
            await each.wait_until(
                lambda each=each: (
                    min(each.record_counts[label] for label in ("orders", "values")) == 60 * 14
                )
            )
            await each.wait_until(
                lambda each=each: each.record_counts == control.record_counts | one(each)
            )
        await socket.wait_until(lambda: socket.record_counts[SLOW] == grants.total)
        for label in VIEWS:
            assert values(socket, label) == values(control, label), label
        assert len(socket.get_records("values")) == 60 * 14
        for label in ("orders", "both"):
            view = None if label == "both" else "orders"
            oracle.check_events(
                socket.get_events(label), view=lambda a, view=view: view in (None, a.tp.topic)
            )

        while socket.record_counts[SLOW] < 60 * 14:
            before = socket.record_counts[SLOW]
            await grants.give(100)
            enough = min(before + 100, 60 * 14)
            await socket.wait_until(lambda enough=enough: socket.record_counts[SLOW] == enough)
        grants.kept()
        oracle.check_events(socket.get_events(SLOW), view=lambda acked: acked.tp.topic == "orders")
        assert not [each for each in socket.messages if each["type"] in ("error", "gap", "end")]


def one(socket: MultiplexClient) -> dict[str | None, int]:
    """What only the socket with the slow stream counts."""
    return {SLOW: socket.record_counts[SLOW]} if SLOW in socket.record_counts else {}


def values(socket: MultiplexClient, label: str) -> list[Any]:
    return [
        each["value"] if "offset" in each and "value" in each else each
        for each in socket.get_records(label)
    ]


@pytest.mark.parametrize("credit", [0, 3])
async def test_a_slow_one_that_may_skip_is_told_what_and_goes_on_live(
    gateway: GatewayThread, oracle: StreamOracle, credit: int
):
    """Also one that has had a part of what was written at once."""
    async with MultiplexClient(gateway.base_url) as socket:
        begin = await socket.subscribe("other", "/large")
        await socket.subscribe(SLOW, "/skip", credit=credit)
        await socket.subscribe("ends", "/disconnect", credit=credit)
        grants = Grants(socket, credit)
        for _ in range(3):
            await oracle.produce_records("large", RING, fields=PAD)
        await socket.wait_until(lambda: socket.record_counts["other"] == 3 * RING)
        await socket.wait_for_message(SLOW, "gap")
        end = await socket.wait_for_message("ends", "end")
        assert end["reason"] == "slow"
        await grants.give(1000)
        last = await oracle.produce_records("large", 10)
        await socket.wait_until(
            lambda: (
                {each.value for each in last}
                <= {getattr(each, "value", None) for each in parse_events(socket.get_events(SLOW))}
            )
        )
        gaps = [
            each for each in parse_events(socket.get_events(SLOW)) if isinstance(each, GapEvent)
        ]
        assert {gap.reason for gap in gaps} == {"skipped"}
        skipped = sum(gap.end - gap.start for gap in gaps)
        assert skipped > RING and skipped + socket.record_counts[SLOW] == 3 * RING + 10
        grants.kept()
        oracle.check_events(socket.get_events(SLOW))
        assert begin["topics"] == ["large"]

        await socket.subscribe("again", "/large", lastEventId=end["position"])
        await socket.wait_until(
            lambda: (
                socket.record_counts["again"] + socket.record_counts.get("ends", 0) == 3 * RING + 10
            )
        )
        ends = [each for each in socket.get_events("ends") if each["event"] != "end"]
        oracle.check_events([*ends, *socket.get_events("again")])


async def test_streams_of_a_socket_that_is_read_slowly_share_it_fairly(
    gateway: GatewayThread, oracle: StreamOracle
):
    """When the first has got most of what it is due, the others have got much of theirs."""
    count = 200
    start = time.monotonic()
    await oracle.produce_records("large", count, fields=PAD)
    async with MultiplexClient(gateway.base_url, max_queue=1, write_limit=1) as socket:
        for label in "abcd":
            await socket.subscribe(label, "/large", credit=0, **{"from": "earliest"})
        socket.is_reading.clear()
        for label in "abcd":
            await socket.send_message("credit", id=label, n=10_000)
        shares: list[dict[str | None, int]] = []
        socket.is_reading.set()
        while min(map(len, map(socket.get_records, "abcd"))) < count:
            await asyncio.sleep(0.005)
            shares.append(dict(socket.record_counts))
            assert time.monotonic() < start + 60, socket.describe_state()
        half = next(each for each in shares if max(each.get(label, 0) for label in "abcd") > 150)
        assert min(half.get(label, 0) for label in "abcd") > 50, half
