"""A proxy per Kafka broker for tests: counts requests, and plays the network's faults.

Brokers are given a listener whose advertised addresses are the proxies' ports, so that only
the clients that are told to (the gateway) meet the faults while producers reach the brokers:

    proxy = KafkaProxy()
    await proxy.listen([1, 2, 3])                    # before the brokers start
    cluster = LocalKafka(3, advertised=proxy.advertised)
    proxy.target(1, "127.0.0.1", cluster.node(1).ports["VIA"])   # once each is known
    await proxy[1].hide()
    assert proxy.count(Api.LIST_OFFSETS, since=then) <= 1

Around a cluster that already runs, `KafkaProxy.around(servers)` changes host and port in the
answers to Metadata and FindCoordinator instead. Plain text listeners only: TLS hides the
frames (use `TcpProxy` there).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

from confluent_kafka.admin import AdminClient
from support.kafka_wire import ANSWERS, Api, decode, encode, request_header
from support.tcp_proxy import Link, TcpProxy

__all__ = ["Api", "BrokerProxy", "Injection", "KafkaProxy", "Request", "TcpProxy"]


class Request(NamedTuple):
    """One request seen. `at`: `time.monotonic()`; `frame`: its bytes without the size."""

    at: float
    node: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    frame: bytes


Answer: TypeAlias = dict[str, Any]
OnRequest: TypeAlias = Callable[[Request], bytes | None]
OnAnswer: TypeAlias = Callable[[Request, Answer], Answer | None]


@dataclass
class Injection:
    """An error code put into answers in place of success; see `KafkaProxy.inject`."""

    api_key: int
    error: int
    topic: str | None = None
    partition: int | None = None
    node: int | None = None
    times: int | None = None
    hits: int = 0

    def applies(self, request: Request) -> bool:
        spent = self.times is not None and self.hits >= self.times
        return not spent and request.api_key == self.api_key and self.node in (None, request.node)


class BrokerProxy(TcpProxy):
    """The way to one broker. All verbs of `TcpProxy`; cuts fall inside frames, too."""

    def __init__(self, node: int, proxy: KafkaProxy) -> None:
        super().__init__()
        self.node = node
        self._proxy = proxy

    async def requests(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        async for frame in _frames(reader):
            request = Request(time.monotonic(), self.node, *request_header(frame), frame)
            self._proxy.seen.append(request._replace(frame=b""))
            answer = self._proxy.on_request and self._proxy.on_request(request)
            if not answer:
                link.pending[request.correlation_id] = request
                yield _framed(frame)
                continue
            link.pending[request.correlation_id] = _framed(frame[4:8] + answer)
            for ready in _answered(link.pending):
                await self.send(link, ready)

    async def responses(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        async for frame in _frames(reader):
            (correlation,) = struct.unpack_from(">i", frame)
            while link.pending and correlation in link.pending:
                oldest = next(iter(link.pending))
                request = link.pending.pop(oldest)
                if oldest == correlation:
                    frame = self._proxy.altered(request, frame)
            yield _framed(frame)
            for ready in _answered(link.pending):
                yield ready


class KafkaProxy:
    """A proxy for a cluster: one `BrokerProxy` per node, by node id.

    on_request: answers a request itself with the bytes that follow the correlation id (None
        passes it on); the broker never sees it.
    on_answer: may return a changed answer (of the apis in `kafka_wire.ANSWERS`), decoded.
    """

    def __init__(self, *, rewrite: bool = False) -> None:
        self.seen: list[Request] = []
        self.on_request: OnRequest | None = None
        self.on_answer: OnAnswer | None = None
        self._rewrite = rewrite
        self._injections: list[Injection] = []
        self._topics: dict[bytes, str] = {}
        self._brokers: dict[int, BrokerProxy] = {}

    @classmethod
    @asynccontextmanager
    async def around(cls, servers: str) -> AsyncIterator[Self]:
        """Every broker of a running cluster behind a proxy: use `bootstrap` of what this gives."""
        proxy = cls(rewrite=True)
        try:
            found = await asyncio.to_thread(_brokers, servers)
            await proxy.listen(found)
            for node, address in found.items():
                proxy.target(node, *address)
            yield proxy
        finally:
            await proxy.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getitem__(self, node: int) -> BrokerProxy:
        return self._brokers[node]

    @property
    def brokers(self) -> Iterable[BrokerProxy]:
        return self._brokers.values()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self._brokers.values())

    async def listen(self, node_ids: Iterable[int]) -> dict[int, int]:
        """Take a port for each node; they are this proxy's until `close`. Node id -> port."""
        for node in node_ids:
            self._brokers[node] = BrokerProxy(node, self)
            await self._brokers[node].listen()
        return {node: broker.port for node, broker in self._brokers.items()}

    def advertised(self, node_id: int) -> tuple[str, int]:
        """What that broker is to say of itself: `LocalKafka(advertised=proxy.advertised)`."""
        return "127.0.0.1", self._brokers[node_id].port

    def target(self, node_id: int, host: str, port: int) -> None:
        self._brokers[node_id].target(host, port)

    async def close(self) -> None:
        results = await asyncio.gather(*(b.close() for b in self.brokers), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def restore(self) -> None:
        """Lift every fault and injection of every broker."""
        self._injections.clear()
        for broker in self.brokers:
            await broker.restore()

    def requests(
        self,
        api_key: int | None = None,
        *,
        node: int | None = None,
        since: float = 0.0,
        client_id: str | None = None,
    ) -> list[Request]:
        """What was asked since a time of `time.monotonic()` (headers only)."""
        return [
            seen
            for seen in self.seen
            if seen.at >= since
            and api_key in (None, seen.api_key)
            and node in (None, seen.node)
            and client_id in (None, seen.client_id)
        ]

    def count(
        self,
        api_key: int | None = None,
        *,
        node: int | None = None,
        since: float = 0.0,
        client_id: str | None = None,
    ) -> int:
        return len(self.requests(api_key, node=node, since=since, client_id=client_id))

    def connects(self, node: int | None = None, since: float = 0.0) -> int:
        """Connections accepted; a hidden or refusing broker accepts none (see `hang_up`)."""
        nodes = self.brokers if node is None else [self[node]]
        return sum(at >= since for broker in nodes for at in broker.connects)

    def inject(
        self,
        api_key: int,
        error: int,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node: int | None = None,
        times: int | None = None,
    ) -> Injection:
        """Put `error` into the partitions of answers, `times` answers long (None: until `heal`).

        A fetch answer loses the records of those partitions; answers without topics get it as
        their own error code. Topics named by id are known once a Metadata answer told them.
        """
        if api_key not in ANSWERS:
            raise ValueError(f"api {api_key} is not in kafka_wire.ANSWERS; add its layout there")
        injection = Injection(api_key, error, topic, partition, node, times)
        self._injections.append(injection)
        return injection

    def heal(self, injection: Injection) -> None:
        self._injections.remove(injection)

    def altered(self, request: Request, frame: bytes) -> bytes:
        """The answer to `request` as the client gets it."""
        due = [injection for injection in self._injections if injection.applies(request)]
        redirects = self._rewrite and request.api_key in (Api.METADATA, Api.FIND_COORDINATOR)
        if not (due or redirects or self.on_answer or request.api_key == Api.METADATA):
            return frame
        answer = decode(request.api_key, request.api_version, frame)
        if answer is None:
            return frame
        self._learn(answer)
        if redirects:
            self._redirect(answer)
        for injection in due:
            injection.hits += self._inject(injection, answer)
        if self.on_answer is not None:
            answer = self.on_answer(request, answer) or answer
        return encode(request.api_key, request.api_version, answer)

    def _learn(self, answer: Answer) -> None:
        for topic in answer.get("topics") or ():
            if topic.get("name") and topic.get("topic_id"):
                self._topics[topic["topic_id"]] = topic["name"]

    def _redirect(self, answer: Answer) -> None:
        entries = answer.get("brokers") or answer.get("coordinators") or [answer]
        for entry in entries:
            if entry.get("node_id") in self._brokers:
                entry["host"] = "127.0.0.1"
                entry["port"] = self._brokers[entry["node_id"]].port

    def _inject(self, injection: Injection, answer: Answer) -> bool:
        """True if the answer held what the injection is for."""
        if "topics" not in answer:
            entries = answer.get("coordinators") or [answer]
            for entry in entries:
                entry["error_code"] = injection.error
            return True
        hit = False
        for topic in answer["topics"] or ():
            name = topic.get("name") or self._topics.get(topic.get("topic_id", b""))
            if injection.topic not in (None, name):
                continue
            for entry in topic["partitions"]:
                if injection.partition in (None, entry["partition"]):
                    entry["error_code"] = injection.error
                    if "records" in entry:
                        entry["records"] = b""
                    hit = True
        return hit


def _brokers(servers: str) -> dict[int, tuple[str, int]]:
    """Where the brokers of a cluster say that they are, by node id."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    brokers = admin.list_topics(timeout=30).brokers.values()
    return {broker.id: (str(broker.host), broker.port) for broker in brokers}


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Messages without their sizes, until the connection ends."""
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            yield await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return


def _answered(pending: dict[int, Any]) -> Iterator[bytes]:
    """Answers given here whose turn it is: Kafka answers in the order of the requests."""
    while pending and isinstance(oldest := next(iter(pending.values())), bytes):
        del pending[next(iter(pending))]
        yield oldest


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame
