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
from support.gateways import Gateway
from support.raw_http import Wire, exchange, get
from support.sse import Parser
from support.until import PATIENCE

from gateway.kafka.embedded import EmbeddedKafka

CALM = {"calm": 3}
EVERY = 0.02  # s


class Neighbour:
    """One stream over one connection. The records are numbers, in turn to each partition."""

    def __init__(self, servers: str, port: int, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._wire = Wire(port)
        self._topic, self._partitions = topic, partitions
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._written = 0
        self._heard: list[int] = []
        self._failure = ""
        self._wire.send(get(f"/events/{topic}"))
        head = self._wire.answer_head()
        assert head.status == 200, head
        self._parser = Parser()
        self._told = [event.type for event in self._parser.feed(self._wire.chunk())]
        assert self._told == ["begin"], self._told
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def unharmed(self) -> None:
        """All written by now is heard: once, in the order of its partition, and not refused."""
        with self._lock:
            until = self._written
        deadline = time.monotonic() + PATIENCE
        while len(self._heard) < until and not self._failure:
            assert time.monotonic() < deadline, f"heard {len(self._heard)} of {until} records"
            time.sleep(0.005)
        assert not self._failure, self._failure
        heard = list(self._heard)
        twice = [n for n, count in Counter(heard).items() if count > 1]
        assert not twice, f"heard twice: {twice[:10]}"
        for partition in range(self._partitions):
            of_it = [n for n in heard if n % self._partitions == partition]
            assert of_it == list(
                range(partition, partition + len(of_it) * self._partitions)[:: self._partitions]
            )

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_RDWR)  # ends the reading; close() would not
        for thread in self._threads:
            thread.join(PATIENCE)
        self._wire.socket.close()
        self._producer.flush(PATIENCE)

    def _write(self) -> None:
        while not self._ended.wait(EVERY):
            with self._lock:
                n = self._written
                where: Any = {"partition": n % self._partitions}
                self._producer.produce(self._topic, str(n).encode(), **where)
                self._written += 1
            self._producer.poll(0)

    def _read(self) -> None:
        try:
            while True:
                for event in self._parser.feed(self._wire.chunk()):
                    if event.type == "message":
                        self._heard.append(int(event.data))
                    elif event.type != "position":
                        self._failure = f"told {event}"
        except Exception as error:
            if not self._ended.is_set():
                self._failure = f"the stream was cut: {error!r}"


@pytest.fixture(scope="module")
def calm(kafka: EmbeddedKafka, gateway: Gateway) -> Iterator[Neighbour]:
    """A stream of another client, open all the time."""
    listening = Neighbour(",".join(kafka.bootstrap), gateway.port, "calm", CALM["calm"])
    try:
        yield listening
    finally:
        listening.close()


@pytest.fixture
def unharmed(gateway: Gateway, calm: Neighbour) -> Iterator[None]:
    """After every case: the same process, in good health, quiet, and the other stream whole."""
    pid, logged = gateway.pid, len(gateway.log)
    yield
    assert gateway.alive and gateway.pid == pid, gateway.tail()
    assert exchange(gateway.port, get("/health/live", b"Connection: close")).status == 200
    assert "Traceback" not in gateway.log[logged:], gateway.tail()
    calm.unharmed()
