"""slowClient: conflate. One that stops reading gets the latest of each key of what it missed."""

from __future__ import annotations

from functools import partial

from support.clients.hasty import Hasty
from support.clients.raw import RawClient
from support.clients.wires import Wire, every_wire, over
from support.gateways import config_for, running_gateway
from support.latest import known, named, records, written
from support.records import Sent, produce
from support.until import until

from gateway.kafka.embedded import EmbeddedKafka

WITHIN = 60.0  # s
PARTITIONS = 2
KEYS = 10
SIZE = 12_000  # bytes
COUNT = 1200  # 14 MB: more than the kernel's buffers and the ring hold


@every_wire
async def test_a_slow_client_gets_the_latest_of_each_key_and_every_record_without_one(
    embedded: EmbeddedKafka, wire: Wire
):
    embedded.create_topic("prices", PARTITIONS)
    target = {"topic": "prices", "format": "envelope", "slowClient": "conflate"}
    routes = [{"when": [{"path": "/prices"}], "with": target}]
    async with running_gateway(config_for(embedded.bootstrap, ["prices"], routes)) as gateway:
        url = f"{gateway.base_url}/prices"
        slow, quick = over(wire, Hasty)(url, receive_buffer=16_384), over(wire, Hasty)(url)
        async with slow, quick:
            for client in (slow, quick):
                await client.wait(1, WITHIN)
            slow.hold()
            sent: list[Sent] = []
            for start in range(0, COUNT, 100):
                more = [_row(n) for n in range(start, start + 100)]
                await produce(embedded.bootstrap, "prices", more)
                sent += more
                await until(partial(_has, quick, len(sent)), "the other one", WITHIN)
            slow.release()
            plain = sum(each.key is None for each in sent)
            await until(
                lambda: (
                    known(slow.events) == written(sent)
                    and sum(r["key"] is None for r in records(slow.events)) == plain
                ),
                lambda: f"the latest: {slow.state()}",
                WITHIN,
            )
            assert len(records(slow.events)) < COUNT * 0.9, "it was not conflated"
            assert not named(slow.events, "gap")
            last = Sent(b"last", b"k1", 1)
            await produce(embedded.bootstrap, "prices", [last])
            await until(lambda: known(slow.events)["k1"] == "last", "live again", WITHIN)
            offsets = [(r["partition"], r["offset"]) for r in records(slow.events)]
            assert len(set(offsets)) == len(offsets), "nothing comes twice"
            assert (slow.opened, quick.opened) == (1, 1)


def _has(client: RawClient, count: int) -> bool:
    return len(records(client.events)) == count


def _row(n: int) -> Sent:
    key = n % (KEYS + 1)
    pad = b"x" * SIZE
    if key == KEYS:
        return Sent(b"%d %b" % (n, pad), None, n % PARTITIONS)
    return Sent(b"%d %b" % (n, pad), b"k%d" % key, key % PARTITIONS)
