"""Run the sidecar's library without HTTP: write bytes to Kafka, and read them from it.

    python -m bench.peers.library_server produce|consume SERVERS TOPIC CLIENTS BATCH

For each line `N` that a connection sends it transfers N records and answers the line; 0 has it read
from the start.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import uvloop
from support.group_members import commit_positions
from support.waiting import wait_until

from gateway.core.group.partition_state import EARLIEST
from gateway.core.log.record import TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.produce.pending_records import ProducerRecord, compute_partition
from gateway.kafka.produce.producer import Producer
from gateway.sidecar.http.requests import RequestIds

from . import orders

Transfer = Callable[[int], Awaitable[None]]


async def prepare_producing(
    cluster: Cluster, topic: str, client_count: int, batch_records: int
) -> Transfer:
    """Several callers at once, each of whom waits for what became of its batch."""
    producer = Producer(cluster)
    known = await cluster.describe_topic(topic)
    cluster.metadata.watch(topic, known)
    count = len(known.partitions)
    await wait_until(
        lambda: cluster.leader_for_partition(TopicPartition(topic, 0)) is not None, "a leader"
    )
    records = [
        (orders.build_key(n).encode(), orders.encode_order(n)) for n in range(orders.KEY_COUNT)
    ]
    tps = [TopicPartition(topic, number) for number in range(count)]
    at = 0

    async def transfer(total: int) -> None:
        left = total

        async def produce_records() -> None:
            nonlocal left, at
            while left > 0:
                size = min(batch_records, left)
                left, at = left - size, at + size
                some = [records[n % len(records)] for n in range(at - size, at)]
                headers = (
                    RequestIds.create().to_record_headers()
                )  # the same records, then, as over HTTP
                items = [
                    ProducerRecord(tps[compute_partition(key, count)], key, each, headers)
                    for key, each in some
                ]
                told = await producer.send_many(items, timeout_s=30.0)
                assert all(type(each) is int for each in told), told[0]

        await asyncio.gather(*(produce_records() for _ in range(client_count)))

    return transfer


async def prepare_consuming(
    cluster: Cluster, topic: str, client_count: int, batch_records: int
) -> Transfer:
    """Members of one group, each of which has its share of the partitions."""
    some = [
        GroupConsumer(cluster, "library", ConsumerOptions(auto_offset_reset="earliest"))
        for _ in range(client_count)
    ]
    for each in some:
        each.subscribe([topic])
    count = len((await cluster.describe_topic(topic)).partitions)
    shares = {count // client_count, -(-count // client_count)}
    await wait_until(lambda: {len(each.assignment) for each in some} <= shares, "shares", 60.0)

    async def transfer(total: int) -> None:
        if not total:
            for each in some:
                await each.seek_to_specs(dict.fromkeys(each.assignment, EARLIEST))
            return
        left, done = total, asyncio.Event()

        async def consume_records(consumer: GroupConsumer) -> None:
            nonlocal left
            while left > 0:
                records = await consumer.poll(1.0, max_records=batch_records)
                assert all(type(record.value) is bytes for record in records)
                left -= len(records)
            done.set()

        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(consume_records(each)) for each in some]
            await done.wait()
            for task in reading:
                task.cancel()
        assert left == 0, f"{-left} came more than once"
        for each in some:
            await commit_positions(each)

    return transfer


async def main(work: str, servers: str, topic: str, client_count: int, batch_records: int) -> None:
    async with Cluster(ClusterSettings(servers.split(","))) as cluster:
        made = prepare_producing if work == "produce" else prepare_consuming
        carry = await made(cluster, topic, client_count, batch_records)

        async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                await carry(int(line))
                writer.write(line)

        server = await asyncio.start_server(serve_client, "127.0.0.1")
        # As the gateway does it where it begins to serve.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    what, where, name, callers, each = sys.argv[1:]
    uvloop.run(main(what, where, name, int(callers), int(each)))
