"""Post records from Kafka to a server: `python -m bench.forwarder SERVERS TOPIC PORT`.

Each record is one POST of its value to /pub/all, or to /pub/KEY if it has a key; requests are
pipelined on one connection. It shares the clients' core, and is not part of what is measured.
"""

from __future__ import annotations

import select
import socket
import sys

import confluent_kafka


def build_post(record: confluent_kafka.Message) -> bytes:
    key, value = record.key(), record.value() or b""
    return b"POST /pub/%b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b" % (
        key or b"all",
        len(value),
        value,
    )


def main(servers: str, topic: str, port: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"forwarder-{topic}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 1,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
    server = socket.create_connection(("127.0.0.1", int(port)))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        if (first := consumer.poll(0.5)) is None:
            continue
        records = [r for r in (first, *consumer.consume(200, 0)) if r.error() is None]
        server.sendall(b"".join(map(build_post, records)))
        while select.select([server], [], [], 0)[0]:  # answers are of no interest
            if not server.recv(1 << 20):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
