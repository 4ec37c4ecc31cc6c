"""Send events at an even rate, or receive rows, in a process beside Spark, to measure latency.

    python -m bench.pipeline.paced_client send SERVERS TOPIC PARTITIONS RATE SECONDS
    python -m bench.pipeline.paced_client receive SERVERS TOPIC SECONDS

The member `at` of a value is when it was sent (us since 1970, by this machine's clock); rows must
have it, too. At the end the receiver prints a list of [at, when the job sent the row, when it was
received].
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

KEY_COUNT = 10_000
"""In a window of 10 s at 1,000 a second each comes once: every event has a row of its own."""


@contextmanager
def run_client(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """One of the two, ended with the block."""
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def send_events(servers: str, topic: str, partitions: str, rate: str, seconds: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    start, every = time.time(), 1 / float(rate)
    for number in range(int(float(rate) * float(seconds))):
        if (ahead := start + number * every - time.time()) > 0:
            time.sleep(ahead)
        user = f"user-{number % KEY_COUNT}"
        value = {"user": user, "amount": number % 1000, "at": time.time_ns() // 1000}
        producer.produce(topic, orjson.dumps(value), user, number % int(partitions))
        producer.poll(0)
    producer.flush()


def receive_rows(servers: str, topic: str, seconds: str) -> None:
    reader = {"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer({**reader, "auto.offset.reset": "earliest"})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    until, rows = time.time() + float(seconds), []
    while time.time() < until:
        # One by one: who asks for many is answered late, when there are so many or time is up.
        if (message := consumer.poll(0.05)) is not None:
            at = orjson.loads(message.value() or b"")["at"]
            rows.append((at, 1000 * message.timestamp()[1], time.time_ns() // 1000))
    consumer.close()
    sys.stdout.buffer.write(orjson.dumps(rows))


if __name__ == "__main__":
    {"send": send_events, "receive": receive_rows}[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
