"""AlterPartitionReassignments (KIP-455), which confluent-kafka lacks, over a plain socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

_API_KEY, _API_VERSION = 45, 0
_TIMEOUT_MS = 20_000
_NO_TAGS = b"\0"


def reassign_partitions(
    bootstrap: Sequence[str], topic: str, replicas: Mapping[int, Sequence[int]]
) -> None:
    """Move partitions to these nodes, the preferred leader first. Kafka does it in its own time.

    The first server that answers passes it on to the controller. RuntimeError with Kafka's error.
    """
    body = _encode_request(topic, replicas)
    failures: list[str] = []
    for server in bootstrap:
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.settimeout(_TIMEOUT_MS / 1000)
                connection.sendall(struct.pack(">i", len(body)) + body)
                with connection.makefile("rb") as stream:
                    (size,) = struct.unpack(">i", stream.read(4))
                    _check_response(stream.read(size))
            return
        except (OSError, struct.error) as failure:
            failures.append(f"{server}: {failure!r}")
    raise RuntimeError(f"no broker took the reassignment: {failures}")


def _encode_request(topic: str, replicas: Mapping[int, Sequence[int]]) -> bytes:
    header = struct.pack(">hhih", _API_KEY, _API_VERSION, 0, -1) + _NO_TAGS
    partitions = b"".join(
        struct.pack(">i", number)
        + _encode_length(len(nodes))
        + b"".join(struct.pack(">i", node) for node in nodes)
        + _NO_TAGS
        for number, nodes in replicas.items()
    )
    name = topic.encode()
    named = _encode_length(len(name)) + name + _encode_length(len(replicas)) + partitions + _NO_TAGS
    return header + struct.pack(">i", _TIMEOUT_MS) + _encode_length(1) + named + _NO_TAGS


def _encode_length(length: int) -> bytes:
    """A compact length: one more, as an unsigned varint of one byte."""
    assert length < 127
    return bytes([length + 1])


def _check_response(response: bytes) -> None:
    """RuntimeError for the first error code: of the request, or of a partition."""
    at = 5 + 4  # correlation id, tags, throttle
    (code,) = struct.unpack_from(">h", response, at)
    at += 2 + max(0, response[at + 2] - 1) + 1
    codes = [code]
    topics, at = response[at] - 1, at + 1
    for _ in range(topics):
        at += response[at]
        partitions, at = response[at] - 1, at + 1
        for _ in range(partitions):
            codes.append(struct.unpack_from(">h", response, at + 4)[0])
            at += 6
            at += max(0, response[at] - 1) + 1 + 1
        at += 1
    if wrong := [each for each in codes if each]:
        raise RuntimeError(f"Kafka refused the reassignment with error code {wrong[0]}")
