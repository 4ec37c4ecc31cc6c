"""List and end the streams of all workers that an operator selects, with how far each one is.

A worker looks at no more than MAX_SCANNED_STREAMS streams, and returns no more than
MAX_LISTED_STREAMS of them, per request on the bus, so that the event loop serves clients in
between: 10,000 streams are listed in 100 slices of 1 ms.

Nothing is asked of Kafka: a stream's position and the last response of each partition's shared read
say it all, so the answer is as quick while a broker is away.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gateway.core.channel.tail import Tail
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason
from gateway.core.log.partition_reader import PartitionReader
from gateway.core.log.record import PartitionPosition, Position, TopicPartition
from gateway.core.log.recovery import Cause
from gateway.errors import RequestError
from gateway.hub.fanout.lag_scan import LagScan
from gateway.hub.reads.shared_reads import STALE_S, SharedRead
from gateway.telemetry.logs import redact_url
from gateway.web.access import Granted
from gateway.web.routing.open_streams import OpenStream
from gateway.web.routing.routes import Routes
from gateway.web.workers.bus import Bus


class StreamFilter(NamedTuple):
    """Selects the streams that match all of its members that are not None."""

    route: str | None = None
    identity: str | None = None
    guard: str | None = None
    address: str | None = None

    def matches(self, stream: OpenStream) -> bool:
        return (
            (self.route is None or any(m.route.name == self.route for m in stream.matches))
            and (self.address is None or stream.address == self.address)
            and any(has_grant(match.granted, self.guard, self.identity) for match in stream.matches)
        )


def has_grant(granted: Granted, guard: str | None, identity: str | None) -> bool:
    """Return whether a guard knows the client as this identity; None stands for any."""
    if guard is None and identity is None:
        return True
    return any(
        guard in (None, name) and identity in (None, grant.identity)
        for name, grant in granted.items()
    )


MAX_SCANNED_STREAMS, MAX_LISTED_STREAMS = 2000, 100  # streams per request on the bus
BUS_TIMEOUT_S = 2.0  # seconds for a worker to answer
LIVE_STATE, STARTING_STATE = "live", "starting"


class ListCursor(NamedTuple):
    """A position in the list: a worker, and its last stream that was looked at."""

    worker: int = 1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.worker}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> ListCursor:
        worker, _, number = text.partition("-")
        if not (_is_number(worker) and _is_number(number)):
            raise RequestError(400, "Bad request", "?after= is none of ours; take it from `next`")
        return cls(int(worker), int(number))


class StreamListPage(NamedTuple):
    streams: list[dict[str, Any]]
    next_cursor: ListCursor | None
    missing: list[int]


class StreamListing:
    """The streams of all processes on a bus. Owned by `AdminApi`."""

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.add_handler("admin-streams", self._handle_list)
        bus.add_handler("admin-stream", self._handle_get)
        bus.add_handler("admin-end", self._handle_end)
        bus.add_handler("admin-end-one", self._handle_end_one)

    async def list_streams(
        self, stream_filter: StreamFilter, cursor: ListCursor, limit: int
    ) -> StreamListPage:
        streams: list[dict[str, Any]] = []
        missing: list[int] = []
        while cursor.worker <= self._bus.worker_count:
            request = [
                cursor.worker,
                cursor.number,
                min(MAX_LISTED_STREAMS, limit - len(streams)),
                stream_filter,
            ]
            slice_ = (await self._ask_worker("admin-streams", request, cursor.worker)).get(
                cursor.worker
            )
            if slice_ is None:
                missing.append(cursor.worker)
            else:
                streams += slice_["streams"]
            if slice_ is None or slice_["next"] is None:
                cursor = ListCursor(cursor.worker + 1)
            else:
                cursor = ListCursor(cursor.worker, slice_["next"])
            if len(streams) >= limit and cursor.worker <= self._bus.worker_count:
                return StreamListPage(streams, cursor, missing)
            # This worker answers itself without waiting: let the event loop serve clients.
            await asyncio.sleep(0)
        return StreamListPage(streams, None, missing)

    async def get_stream(self, id: str) -> dict[str, Any]:
        """Return a stream as JSON; 404 if there is none, 503 if its worker does not answer."""
        stream: dict[str, Any] = await self._ask_owner("admin-stream", id)
        return stream

    async def end_stream(self, id: str, reason: EndReason) -> None:
        await self._ask_owner("admin-end-one", id, reason)

    async def end_streams(
        self, stream_filter: StreamFilter, reason: EndReason
    ) -> tuple[int, Sequence[int]]:
        responses = await self._bus.request(
            "admin-end", [stream_filter, reason], timeout_s=BUS_TIMEOUT_S
        )
        return sum(responses.by_worker.values()), sorted(responses.missing)

    async def _ask_worker(self, topic: str, data: Any, worker: int) -> dict[int, Any]:
        responses = await self._bus.request(
            topic, data, timeout_s=BUS_TIMEOUT_S, only_worker=worker
        )
        return dict(responses.by_worker)

    async def _ask_owner(self, topic: str, id: str, *args: Any) -> Any:
        """Return the answer of the worker of a stream.

        The id consists of the worker's number, the instance of its stream registry, and the number
        of the stream. After a restart of the worker the instance differs, so that an old id never
        means another stream.
        """
        worker, _, rest = id.partition("-")
        instance_id, _, number = rest.partition("-")
        if not (_is_number(worker) and _is_number(number)) or int(worker) > self._bus.worker_count:
            raise build_unknown_stream(id)
        responses = await self._ask_worker(topic, [instance_id, int(number), *args], int(worker))
        if int(worker) not in responses:
            detail = f"worker {worker} does not answer; try again"
            raise RequestError(503, "Busy", detail, retry_after=1.0)
        if responses[int(worker)] is None:
            raise build_unknown_stream(id)
        return responses[int(worker)]

    # handlers of this worker

    def _handle_list(
        self, worker: int, data: tuple[int, int, int, Sequence[Any]]
    ) -> dict[str, Any] | None:
        listed_worker, number, limit, fields = data
        if listed_worker != self._bus.worker:  # every worker gets the request
            return None
        matches, lag_scan = StreamFilter(*fields).matches, LagScan()
        describe_error = cache(self._describe_error)  # many streams have the same tail
        rows: list[dict[str, Any]] = []
        for n, stream in enumerate(self._routes.stream_registry.iter_after(number), 1):
            number = stream.number
            if matches(stream):
                rows.append(self._build_row(stream, lag_scan.measure_lag, describe_error))
            if n >= MAX_SCANNED_STREAMS or len(rows) >= limit or lag_scan.should_yield:
                return {"streams": rows, "next": number}
        return {"streams": rows, "next": None}

    def _handle_get(self, worker: int, data: tuple[str, int]) -> dict[str, Any] | None:
        stream = self._find_stream(*data)
        if stream is None:
            return None
        row = self._build_row(stream, LagScan().measure_lag, self._describe_error)
        client = stream.client
        if client is not None:
            subscription, position = client.subscription, client.get_position().position
            row["topics"] = sorted(subscription.channel.tail.topic_ids)
            row["position"] = _build_token(subscription, position).decode()
            hub = None if client.view is None else self._routes.hubs.get_hub(client.view.cluster)
            row["partitions"] = describe_partitions(
                position,
                {} if hub is None else hub.shared_reads.by_partition,
                subscription.end_offsets,
                asyncio.get_running_loop().time(),
            )
        return row

    def _handle_end(self, worker: int, data: tuple[Sequence[Any], str]) -> int:
        fields, reason = data
        matches = StreamFilter(*fields).matches
        return self._routes.stream_registry.end_matching(matches, EndReason(reason))

    def _handle_end_one(self, worker: int, data: tuple[str, int, str]) -> bool | None:
        instance_id, number, reason = data
        stream = self._find_stream(instance_id, number)
        if stream is None:
            return None
        stream.end(EndReason(reason))
        return True

    def _find_stream(self, instance_id: str, number: int) -> OpenStream | None:
        registry = self._routes.stream_registry
        return registry.get(number) if instance_id == registry.instance_id else None

    def _describe_error(self, cluster: str, tail: Tail) -> dict[str, str] | None:
        """Return why a partition of a tail cannot be read now; None if all can."""
        feeds = self._routes.hubs.get_hub(cluster).shared_reads.by_partition
        for tp in tail.logs:
            feed = feeds.get(tp)
            if feed is not None and feed.reader.cause is not None:
                return {"partition": f"{tp.topic}-{tp.partition}", "cause": feed.reader.cause}
        return None

    def _build_row(
        self,
        stream: OpenStream,
        measure_lag: Callable[[Any], int],
        describe_error: Callable[[str, Tail], dict[str, str] | None],
    ) -> dict[str, Any]:
        match, client = stream.match, stream.client
        id = f"{self._bus.worker}-{self._routes.stream_registry.instance_id}-{stream.number}"
        url = match.path + (f"?{urlencode(stream.query, safe='/,:')}" if stream.query else "")
        row: dict[str, Any] = {
            "id": id,
            "route": match.route.name,
            "url": redact_url(url),
            "identity": match.granted.identities,
            "address": stream.address,
            "since": format_time(stream.opened_at),
            "expires": None
            if match.granted.expires is None
            else format_time(match.granted.expires),
            "state": STARTING_STATE,
            "behind": 0,
            "bytes": get_acknowledged_bytes(stream.transport),
            "error": None,
            "worker": self._bus.worker,
        }
        if client is None:
            return row
        row["wire"] = client.subscription.traffic.wire
        row["stream"] = client.number  # the number that the log has
        if client.view is not None:
            row["error"] = describe_error(client.view.cluster, client.subscription.channel.tail)
        state = client.state
        row["behind"] = 0 if state is None else measure_lag(client.subscription)
        # A client that catches up with nothing left to read is as good as live.
        row["state"] = LIVE_STATE if state in (None, "catching-up") and not row["behind"] else state
        return row


def _build_token(subscription: Subscription, position: Position) -> bytes:
    """Return the id of a subscription that stands at a position."""
    writer = subscription.channel.tail.create_token_writer(position)
    if subscription.resolve_since is not None and any(
        place.is_pending for place in position.values()
    ):
        writer.set_issued(subscription.resolve_since)
    return subscription.channel.build_token(writer.to_text())


def build_unknown_stream(id: str) -> RequestError:
    return RequestError(404, "Unknown stream", f"no stream that runs is called {id!r}; list them")


def _is_number(text: str) -> bool:
    """Return whether text is a number that `int` reads in no time."""
    return text.isascii() and text.isdigit() and len(text) < 16


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


class PartitionState(StrEnum):
    """How a stream fares in one partition; the first that applies.

    Attributes:
        ENDED: The stream has all up to its own end in the partition.
        FAILING: The partition cannot be read; its cause says why.
        PENDING: The partition cannot be read yet, or the start of the stream is still to be found.
        BEHIND: The partition has records that the stream was not sent yet.
    """

    ENDED = "ended"
    LEADERLESS = "leaderless"
    FAILING = "failing"
    PENDING = "pending"
    BEHIND = "behind"
    LIVE = "live"


def describe_partitions(
    position: Mapping[TopicPartition, PartitionPosition],
    shared_reads: Mapping[TopicPartition, SharedRead],
    stop_offsets: Mapping[TopicPartition, int] | None,
    now: float,
) -> list[dict[str, Any]]:
    """Return the partitions of a stream as JSON, in order; `now` is by the loop's clock."""
    return [
        _describe_partition(
            tp, position[tp], shared_reads.get(tp), (stop_offsets or {}).get(tp), now
        )
        for tp in sorted(position)
    ]


def _describe_partition(
    tp: TopicPartition,
    position: PartitionPosition,
    shared_read: SharedRead | None,
    stop_offset: int | None,
    now: float,
) -> dict[str, Any]:
    reader = None if shared_read is None else shared_read.reader
    end_offset = None
    if reader is not None and reader.position.offset is not None:
        # Before the first fetch only the start is known, and what precedes it is there.
        end_offset = max(reader.position.offset, reader.last_stable_offset)
    lag = None
    # Offsets of different lineages, before and after the log went back, cannot be compared.
    if (
        end_offset is not None
        and position.offset is not None
        and shared_read is not None
        and position.lineage == shared_read.log.lineage
    ):
        lag = max(0, end_offset - position.offset)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "nextOffset": position.offset,
        "endOffset": end_offset,
        "lag": lag,
        "state": _get_state(position, reader, stop_offset, lag, now),
        "cause": None if reader is None else reader.cause,
    }


def _get_state(
    position: PartitionPosition,
    reader: PartitionReader | None,
    stop_offset: int | None,
    lag: int | None,
    now: float,
) -> PartitionState:
    if stop_offset is not None and position.offset is not None and position.offset >= stop_offset:
        return PartitionState.ENDED
    if reader is None:
        return PartitionState.PENDING
    if reader.cause is Cause.NO_LEADER or (reader.cause is None and reader.leader is None):
        return PartitionState.LEADERLESS
    # An offset out of range is no failure: the reader finds another one at once.
    if reader.cause not in (None, Cause.OUT_OF_RANGE):
        return PartitionState.FAILING
    # A leader that froze reports nothing, it only does not answer.
    is_readable = reader.is_ready and now - reader.last_response_at <= STALE_S
    if not is_readable or position.is_pending:
        return PartitionState.PENDING
    return PartitionState.LIVE if lag == 0 else PartitionState.BEHIND


_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux only
_BYTES_ACKED_STRUCT = struct.Struct("=Q")
# Where struct tcp_info (linux/tcp.h) has tcpi_bytes_acked. Kernels before 4.1 return a shorter
# structure without it.
_BYTES_ACKED_OFFSET = 120


def get_acknowledged_bytes(transport: asyncio.BaseTransport | None) -> int | None:
    """Return how many bytes of a connection the peer has acknowledged since it began.

    These include HTTP heads and TLS records. It is None where the kernel does not tell, or if
    another server owns the connection.
    """
    connection = None if transport is None else transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return None
    try:
        info: bytes = connection.getsockopt(
            socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        )
    except OSError:  # it is no TCP connection, or it was closed in the meantime
        return None
    return (
        int(_BYTES_ACKED_STRUCT.unpack_from(info, _BYTES_ACKED_OFFSET)[0])
        if len(info) >= _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        else None
    )
