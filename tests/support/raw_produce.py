"""Records written by a Produce request made byte by byte.

confluent_kafka and aiokafka take only text as the name of a header; Kafka takes any bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from support.record_sets import BatchRecord, build_batch

from gateway.core.error_code import ErrorCode

TIMEOUT_S = 60.0


def produce_raw(
    bootstrap: str, topic: str, partition: int, records: Sequence[BatchRecord], codec: int = 0
) -> int:
    """Write records as one batch; return the offset of the first.

    Args:
        servers: Of Kafka. The first one must lead the partition.
        topic: The topic's name.
        partition: The number of the partition.
        items: Their offsets must count from 0.
        codec: The codec id that they are compressed with.
    """
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    data = build_batch(records, codec=codec)
    name = struct.pack(">h", len(topic)) + topic.encode()
    # Produce, version 7, the first with zstd: no transactional id, acks of all replicas.
    head = struct.pack(">hhihhhi", 0, 7, 1, -1, -1, -1, 10_000)
    body = struct.pack(">i", 1) + name + struct.pack(">iii", 1, partition, len(data)) + data
    error, deadline = ErrorCode.NOT_LEADER_OR_FOLLOWER, time.monotonic() + TIMEOUT_S
    # A topic that is new may not have a leader yet.
    while error == ErrorCode.NOT_LEADER_OR_FOLLOWER and time.monotonic() < deadline:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(head + body)) + head + body)
            (size,) = struct.unpack(">i", _receive_exactly(connection, 4))
            answer = _receive_exactly(connection, size)
        # Correlation id, number of topics, name, number of partitions, partition.
        _, error, base = struct.unpack_from(">ihq", answer, 8 + len(name) + 4)
    assert error == 0, f"Kafka refuses records of {topic}: error {error}"
    return int(base)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        assert part, "Kafka closed the connection"
        found += part
    return found
