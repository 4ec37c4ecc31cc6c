"""A proxy per Kafka broker for tests: counts requests, and plays the network's faults.

Brokers are given a listener whose advertised addresses are the proxies' ports, so that only
the clients that are told to (the gateway) meet the faults while producers reach the brokers:

    proxy = KafkaProxy()
    await proxy.listen([1, 2, 3])                    # before the brokers start
    cluster = RiggedKafka(3, advertised=proxy.advertised)
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
from support.kafka_wire import (
    RESPONSE_LAYOUTS,
    ApiKey,
    decode_response,
    encode_response,
    parse_request_header,
)
from support.tcp_proxy import ProxyConnection, TcpProxy

__all__ = ["ApiKey", "BrokerProxy", "ErrorInjection", "KafkaProxy", "SeenRequest", "TcpProxy"]


class SeenRequest(NamedTuple):
    """One request seen. `at`: `time.monotonic()`; `frame`: its bytes without the size."""

    received_at: float
    node_id: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    frame: bytes


DecodedResponse: TypeAlias = dict[str, Any]
RequestHook: TypeAlias = Callable[[SeenRequest], bytes | None]
ResponseHook: TypeAlias = Callable[[SeenRequest, DecodedResponse], DecodedResponse | None]


@dataclass
class ErrorInjection:
    """An error code put into answers in place of success; see `KafkaProxy.inject`."""

    api_key: int
    error_code: int
    topic: str | None = None
    partition: int | None = None
    node_id: int | None = None
    max_hits: int | None = None
    hit_count: int = 0

    def applies_to(self, request: SeenRequest) -> bool:
        spent = self.max_hits is not None and self.hit_count >= self.max_hits
        return (
            not spent
            and request.api_key == self.api_key
            and self.node_id in (None, request.node_id)
        )


class BrokerProxy(TcpProxy):
    """The way to one broker. All verbs of `TcpProxy`; cuts fall inside frames, too."""

    def __init__(self, node_id: int, kafka_proxy: KafkaProxy) -> None:
        super().__init__()
        self.node_id = node_id
        self._proxy = kafka_proxy

    async def iter_requests(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        async for frame in _iter_frames(reader):
            request = SeenRequest(
                time.monotonic(), self.node_id, *parse_request_header(frame), frame
            )
            self._proxy.seen_requests.append(request._replace(frame=b""))
            answer = self._proxy.on_request and self._proxy.on_request(request)
            if not answer:
                connection.pending_requests[request.correlation_id] = request
                yield _add_size(frame)
                continue
            connection.pending_requests[request.correlation_id] = _add_size(frame[4:8] + answer)
            for ready in _pop_ready(connection.pending_requests):
                await self.queue_piece(connection, ready)

    async def iter_responses(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        async for frame in _iter_frames(reader):
            (correlation,) = struct.unpack_from(">i", frame)
            while connection.pending_requests and correlation in connection.pending_requests:
                oldest = next(iter(connection.pending_requests))
                request = connection.pending_requests.pop(oldest)
                if oldest == correlation:
                    frame = self._proxy.alter_response(request, frame)
            yield _add_size(frame)
            for ready in _pop_ready(connection.pending_requests):
                yield ready


class KafkaProxy:
    """A proxy for a cluster: one `BrokerProxy` per node, by node id.

    on_request: answers a request itself with the bytes that follow the correlation id (None
        passes it on); the broker never sees it.
    on_answer: may return a changed answer (of the apis in `kafka_wire.ANSWERS`), decoded.
    """

    def __init__(self, *, rewrites_addresses: bool = False) -> None:
        self.seen_requests: list[SeenRequest] = []
        self.on_request: RequestHook | None = None
        self.on_response: ResponseHook | None = None
        self._rewrites_addresses = rewrites_addresses
        self._injections: list[ErrorInjection] = []
        self._topic_names: dict[bytes, str] = {}
        self._brokers: dict[int, BrokerProxy] = {}

    @classmethod
    @asynccontextmanager
    async def wrap_cluster(cls, bootstrap: str) -> AsyncIterator[Self]:
        """Every broker of a running cluster behind a proxy: use `bootstrap` of what this gives."""
        proxy = cls(rewrites_addresses=True)
        try:
            found = await asyncio.to_thread(_list_brokers, bootstrap)
            await proxy.listen_for(found)
            for node, address in found.items():
                proxy.set_target(node, *address)
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

    async def listen_for(self, node_ids: Iterable[int]) -> dict[int, int]:
        """Take a port for each node; they are this proxy's until `close`. Node id -> port."""
        for node in node_ids:
            self._brokers[node] = BrokerProxy(node, self)
            await self._brokers[node].listen()
        return {node: broker.port for node, broker in self._brokers.items()}

    def get_advertised(self, node_id: int) -> tuple[str, int]:
        """What that broker is to say of itself: `RiggedKafka(advertised=proxy.advertised)`."""
        return "127.0.0.1", self._brokers[node_id].port

    def set_target(self, node_id: int, host: str, port: int) -> None:
        self._brokers[node_id].set_target(host, port)

    async def close(self) -> None:
        results = await asyncio.gather(*(b.close() for b in self.brokers), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def restore_all(self) -> None:
        """Lift every fault and injection of every broker."""
        self._injections.clear()
        for broker in self.brokers:
            await broker.restore()

    def list_requests(
        self,
        api_key: int | None = None,
        *,
        node: int | None = None,
        since: float = 0.0,
        client_id: str | None = None,
    ) -> list[SeenRequest]:
        """What was asked since a time of `time.monotonic()` (headers only)."""
        return [
            seen
            for seen in self.seen_requests
            if seen.received_at >= since
            and api_key in (None, seen.api_key)
            and node in (None, seen.node_id)
            and client_id in (None, seen.client_id)
        ]

    def count_requests(
        self,
        api_key: int | None = None,
        *,
        node: int | None = None,
        since: float = 0.0,
        client_id: str | None = None,
    ) -> int:
        return len(self.list_requests(api_key, node=node, since=since, client_id=client_id))

    def count_connects(self, node: int | None = None, since: float = 0.0) -> int:
        """Connections accepted; a hidden or refusing broker accepts none (see `hang_up`)."""
        nodes = self.brokers if node is None else [self[node]]
        return sum(at >= since for broker in nodes for at in broker.accepted_at)

    def inject_error(
        self,
        api_key: int,
        error_code: int,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node: int | None = None,
        times: int | None = None,
    ) -> ErrorInjection:
        """Put `error` into the partitions of answers, `times` answers long (None: until `heal`).

        A fetch answer loses the records of those partitions; answers without topics get it as
        their own error code. Topics named by id are known once a Metadata answer told them.
        """
        if api_key not in RESPONSE_LAYOUTS:
            raise ValueError(f"api {api_key} is not in kafka_wire.ANSWERS; add its layout there")
        injection = ErrorInjection(api_key, error_code, topic, partition, node, times)
        self._injections.append(injection)
        return injection

    def remove_injection(self, injection: ErrorInjection) -> None:
        self._injections.remove(injection)

    def alter_response(self, request: SeenRequest, frame: bytes) -> bytes:
        """The answer to `request` as the client gets it."""
        due = [injection for injection in self._injections if injection.applies_to(request)]
        redirects = self._rewrites_addresses and request.api_key in (
            ApiKey.METADATA,
            ApiKey.FIND_COORDINATOR,
        )
        if not (due or redirects or self.on_response or request.api_key == ApiKey.METADATA):
            return frame
        answer = decode_response(request.api_key, request.api_version, frame)
        if answer is None:
            return frame
        self._learn_topics(answer)
        if redirects:
            self._redirect_addresses(answer)
        for injection in due:
            injection.hit_count += self._apply_injection(injection, answer)
        if self.on_response is not None:
            answer = self.on_response(request, answer) or answer
        return encode_response(request.api_key, request.api_version, answer)

    def _learn_topics(self, response: DecodedResponse) -> None:
        for topic in response.get("topics") or ():
            if topic.get("name") and topic.get("topic_id"):
                self._topic_names[topic["topic_id"]] = topic["name"]

    def _redirect_addresses(self, response: DecodedResponse) -> None:
        entries = response.get("brokers") or response.get("coordinators") or [response]
        for entry in entries:
            if entry.get("node_id") in self._brokers:
                entry["host"] = "127.0.0.1"
                entry["port"] = self._brokers[entry["node_id"]].port

    def _apply_injection(self, injection: ErrorInjection, response: DecodedResponse) -> bool:
        """True if the answer held what the injection is for."""
        if "topics" not in response:
            entries = response.get("coordinators") or [response]
            for entry in entries:
                entry["error_code"] = injection.error_code
            return True
        hit = False
        for topic in response["topics"] or ():
            name = topic.get("name") or self._topic_names.get(topic.get("topic_id", b""))
            if injection.topic not in (None, name):
                continue
            for entry in topic["partitions"]:
                if injection.partition in (None, entry["partition"]):
                    entry["error_code"] = injection.error_code
                    if "records" in entry:
                        entry["records"] = b""
                    hit = True
        return hit


def _list_brokers(servers: str) -> dict[int, tuple[str, int]]:
    """Where the brokers of a cluster say that they are, by node id."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    brokers = admin.list_topics(timeout=30).brokers.values()
    return {broker.id: (str(broker.host), broker.port) for broker in brokers}


async def _iter_frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Messages without their sizes, until the connection ends."""
    try:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            yield await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return


def _pop_ready(pending: dict[int, Any]) -> Iterator[bytes]:
    """Answers given here whose turn it is: Kafka answers in the order of the requests."""
    while pending and isinstance(oldest := next(iter(pending.values())), bytes):
        del pending[next(iter(pending))]
        yield oldest


def _add_size(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame
