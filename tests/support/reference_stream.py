"""Another client's stream, with records written all the time: was it harmed?

A module whose every case must harm nobody has `pytestmark = mark.usefixtures("unharmed")`, and
the topics `CALM` in its `kafka` and its `gateway`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer
from support.gateways import GatewayProcess, GatewayThread, find_failures
from support.raw_http import RawConnection, build_request, send_request
from support.sse import SseParser
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

REFERENCE_TOPICS = {"calm": 3}
WRITE_INTERVAL_S = 0.02  # s


class ReferenceStream:
    """One stream over one connection. The records are numbers, in turn to each partition."""

    def __init__(self, servers: str, port: int, topic: str, partition_count: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._connection = RawConnection(port)
        self._topic, self._partition_count = topic, partition_count
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._written_count = 0
        self._received_numbers: list[int] = []
        self._failure = ""
        self._connection.send_bytes(build_request(f"/events/{topic}"))
        head = self._connection.read_head()
        assert head.status == 200, head
        self._parser = SseParser()
        self._first_events = [
            event.event_type for event in self._parser.feed(self._connection.read_chunk())
        ]
        assert self._first_events == ["begin"], self._first_events
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._write_forever, self._read_forever)
        ]
        for thread in self._threads:
            thread.start()

    def check_unharmed(self) -> None:
        """All written by now is heard: once, in the order of its partition, and not refused."""
        with self._lock:
            until = self._written_count
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while len(self._received_numbers) < until and not self._failure:
            assert time.monotonic() < deadline, (
                f"heard {len(self._received_numbers)} of {until} records"
            )
            time.sleep(0.005)
        assert not self._failure, self._failure
        heard = list(self._received_numbers)
        twice = [n for n, count in Counter(heard).items() if count > 1]
        assert not twice, f"heard twice: {twice[:10]}"
        for partition in range(self._partition_count):
            of_it = [n for n in heard if n % self._partition_count == partition]
            assert of_it == list(
                range(partition, partition + len(of_it) * self._partition_count)[
                    :: self._partition_count
                ]
            )

    def close(self) -> None:
        self._stop_event.set()
        with suppress(OSError):
            self._connection.socket.shutdown(
                socket.SHUT_RDWR
            )  # ends the reading; close() would not
        for thread in self._threads:
            thread.join(WAIT_TIMEOUT_S)
        self._connection.socket.close()
        self._producer.flush(WAIT_TIMEOUT_S)

    def _write_forever(self) -> None:
        while not self._stop_event.wait(WRITE_INTERVAL_S):
            with self._lock:
                n = self._written_count
                where: Any = {"partition": n % self._partition_count}
                self._producer.produce(self._topic, str(n).encode(), **where)
                self._written_count += 1
            self._producer.poll(0)

    def _read_forever(self) -> None:
        try:
            while True:
                for event in self._parser.feed(self._connection.read_chunk()):
                    if event.event_type == "message":
                        self._received_numbers.append(int(event.data))
                    elif event.event_type != "position":
                        self._failure = f"told {event}"
        except Exception as error:
            if not self._stop_event.is_set():
                self._failure = f"the stream was cut: {error!r}"


@pytest.fixture(scope="module")
def calm(
    kafka: EmbeddedKafka, gateway: GatewayThread | GatewayProcess
) -> Iterator[ReferenceStream]:
    """A stream of another client, open all the time."""
    listening = ReferenceStream(
        ",".join(kafka.bootstrap), gateway.port, "calm", REFERENCE_TOPICS["calm"]
    )
    try:
        yield listening
    finally:
        listening.close()


@pytest.fixture
def unharmed(
    gateway: GatewayThread | GatewayProcess, calm: ReferenceStream, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """After every case: the same gateway, in good health, quiet, and the other stream whole."""
    process = gateway if isinstance(gateway, GatewayProcess) else None
    pid, logged = (process.pid, len(process.log)) if process else (0, 0)
    yield
    if process:
        assert process.pid == pid, process.read_log_tail()
    request = build_request("/health/live", b"Connection: close")
    assert send_request(gateway.port, request).status == 200
    assert not find_failures(caplog)
    assert not process or "Traceback" not in process.log[logged:], process.read_log_tail()
    calm.check_unharmed()
