"""What the sidecar is built on, without HTTP: bytes to Kafka, and from it.

    python -m bench.peers.library_server produce|consume SERVERS TOPIC CLIENTS BATCH

Told `N` and a line's end, it carries N records and says so; told `rewind`, it reads from the start.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import uvloop
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.produce.pending_records import Item
from gateway.kafka.produce.producer import Producer
from gateway.sidecar.http.ids import Ids

from .. import orders

Carry = Callable[[int], Awaitable[None]]


async def producing(cluster: Cluster, topic: str, clients: int, batch: int) -> Carry:
    """Several callers at once, each of whom waits for what became of its batch."""
    producer = Producer(cluster)
    known = await cluster.describe(topic)
    cluster.metadata.watch(topic, known)
    count = len(known.partitions)
    await until(lambda: cluster.leader(TopicPartition(topic, 0)) is not None, "a leader")
    records = [(orders.key(n).encode(), orders.written(n)) for n in range(orders.KEYS)]
    tps = [TopicPartition(topic, number) for number in range(count)]
    at = 0

    async def carry(wanted: int) -> None:
        left = wanted

        async def caller() -> None:
            nonlocal left, at
            while left > 0:
                size = min(batch, left)
                left, at = left - size, at + size
                some = [records[n % len(records)] for n in range(at - size, at)]
                headers = Ids.made().headers()  # the same records, then, as over HTTP
                items = [
                    Item(tps[partition_of(key, count)], key, each, headers) for key, each in some
                ]
                told = await producer.put_many(items, within=30.0)
                assert all(type(each) is int for each in told), told[0]

        await asyncio.gather(*(caller() for _ in range(clients)))

    return carry


async def consuming(cluster: Cluster, topic: str, clients: int, batch: int) -> Carry:
    """Members of one group, each of which has its share of the partitions."""
    some = [GroupConsumer(cluster, "library", auto_offset_reset="earliest") for _ in range(clients)]
    for each in some:
        each.subscribe([topic])
    count = len((await cluster.describe(topic)).partitions)
    shares = {count // clients, -(-count // clients)}
    await until(lambda: {len(each.assignment) for each in some} <= shares, "shares", 60.0)

    async def carry(wanted: int) -> None:
        if not wanted:
            for each in some:
                await each.seek_to_beginning(each.assignment)
            return
        left, done = wanted, asyncio.Event()

        async def reader(consumer: GroupConsumer) -> None:
            nonlocal left
            while left > 0:
                records = await consumer.poll(1.0, max_records=batch)
                assert all(type(record.value) is bytes for record in records)
                left -= len(records)
            done.set()

        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(reader(each)) for each in some]
            await done.wait()
            for task in reading:
                task.cancel()
        assert left == 0, f"{-left} came more than once"
        for each in some:
            await each.commit()

    return carry


async def main(work: str, servers: str, topic: str, clients: int, batch: int) -> None:
    async with Cluster(ClusterSettings(servers.split(","))) as cluster:
        made = producing if work == "produce" else consuming
        carry = await made(cluster, topic, clients, batch)

        async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                await carry(0 if line == b"rewind\n" else int(line))
                writer.write(line)

        server = await asyncio.start_server(told, "127.0.0.1")
        # As the gateway does it where it begins to serve.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    what, where, name, callers, each = sys.argv[1:]
    uvloop.run(main(what, where, name, int(callers), int(each)))
