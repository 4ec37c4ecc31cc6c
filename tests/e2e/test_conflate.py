"""slowClient: conflate. One that stops reading gets the latest of each key of what it missed."""

from __future__ import annotations

from functools import partial

from support.clients.fast_reconnect import FastReconnectClient
from support.clients.raw import RawClient
from support.clients.wires import WireName, client_for_wire, every_wire
from support.gateways import build_config, running_gateway
from support.latest_values import (
    build_known_table,
    build_written_table,
    get_event_data,
    parse_envelopes,
)
from support.records import RecordToSend, produce_records
from support.waiting import wait_until

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 2
KEYS = 10
SIZE = 12_000  # bytes
COUNT = 1200  # 14 MB: more than the kernel's buffers and the ring hold


@every_wire
async def test_a_slow_client_gets_the_latest_of_each_key_and_every_record_without_one(
    embedded: EmbeddedKafka, wire: WireName
):
    embedded.create_topic("prices", PARTITIONS)
    target = {"topic": "prices", "format": "envelope", "slowClient": "conflate"}
    routes = [{"when": [{"path": "/prices"}], "with": target}]
    async with running_gateway(build_config(embedded.bootstrap, ["prices"], routes)) as gateway:
        url = f"{gateway.base_url}/prices"
        slow, quick = (
            client_for_wire(wire, FastReconnectClient)(url, receive_buffer=16_384),
            client_for_wire(wire, FastReconnectClient)(url),
        )
        async with slow, quick:
            for client in (slow, quick):
                await client.wait_for_events(1)
            slow.stop_reading()
            sent: list[RecordToSend] = []
            for start in range(0, COUNT, 100):
                more = [_row(n) for n in range(start, start + 100)]
                await produce_records(embedded.bootstrap, "prices", more)
                sent += more
                await wait_until(partial(_has, quick, len(sent)), "the other one")
            slow.resume_reading()
            plain = sum(each.key is None for each in sent)
            await wait_until(
                lambda: (
                    build_known_table(slow.events) == build_written_table(sent)
                    and sum(r["key"] is None for r in parse_envelopes(slow.events)) == plain
                ),
                lambda: f"the latest: {slow.describe_state()}",
                interval_s=0.2,  # each look parses megabytes
            )
            assert len(parse_envelopes(slow.events)) < COUNT * 0.9, "it was not conflated"
            assert not get_event_data(slow.events, "gap")
            last = RecordToSend(b"last", b"k1", 1)
            await produce_records(embedded.bootstrap, "prices", [last])
            await wait_until(lambda: build_known_table(slow.events)["k1"] == "last", "live again")
            offsets = [(r["partition"], r["offset"]) for r in parse_envelopes(slow.events)]
            assert len(set(offsets)) == len(offsets), "nothing comes twice"
            assert (slow.open_count, quick.open_count) == (1, 1)


def _has(client: RawClient, count: int) -> bool:
    return sum(each["event"] == "message" for each in client.events) == count


def _row(n: int) -> RecordToSend:
    key = n % (KEYS + 1)
    pad = b"x" * SIZE
    if key == KEYS:
        return RecordToSend(b"%d %b" % (n, pad), None, n % PARTITIONS)
    return RecordToSend(b"%d %b" % (n, pad), b"k%d" % key, key % PARTITIONS)
