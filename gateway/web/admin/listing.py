"""Streams, as operators see them: those of all workers, a slice at a time.

A worker looks at no more than LOOKED streams, and tells no more than TOLD of them, before others
have their turn: 10,000 are listed in 100 slices of 1 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gateway.core.log.tail import Tail
from gateway.errors import RequestError
from gateway.hub.fanout.lag_scan import LagScan
from gateway.telemetry.redaction import redact_url
from gateway.web.http.tcp_info import get_acknowledged_bytes
from gateway.web.routing.routes import Routes, get_route_name
from gateway.web.streams.open_streams import OpenStream
from gateway.web.workers.bus import Bus

from .stream_filter import StreamFilter

MAX_SCANNED_STREAMS, MAX_LISTED_STREAMS = 2000, 100
BUS_TIMEOUT_S = 2.0  # seconds for a worker to answer
LIVE_STATE, STARTING_STATE = "live", "starting"


class ListCursor(NamedTuple):
    """In the list of all: behind so many streams of this worker."""

    worker: int = 1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.worker}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> ListCursor:
        """Raises RequestError."""
        worker, _, number = text.partition("-")
        if not (_is_number(worker) and _is_number(number)):
            raise RequestError(400, "Bad request", "?after= is none of ours; take it from `next`")
        return cls(int(worker), int(number))


class StreamListPage(NamedTuple):
    """next: where the list goes on. missing: workers that did not answer."""

    streams: list[dict[str, Any]]
    next_cursor: ListCursor | None
    missing: list[int]


class StreamListing:
    """The streams of all processes on a bus."""

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
        """So many of them, behind a place."""
        found: list[dict[str, Any]] = []
        missing: list[int] = []
        while cursor.worker <= self._bus.worker_count:
            asked = [
                cursor.worker,
                cursor.number,
                min(MAX_LISTED_STREAMS, limit - len(found)),
                stream_filter,
            ]
            said = (await self._ask_worker("admin-streams", asked, cursor.worker)).get(
                cursor.worker
            )
            if said is None:
                missing.append(cursor.worker)
            else:
                found += said["streams"]
            if said is None or said["next"] is None:
                cursor = ListCursor(cursor.worker + 1)
            else:
                cursor = ListCursor(cursor.worker, said["next"])
            if len(found) >= limit and cursor.worker <= self._bus.worker_count:
                return StreamListPage(found, cursor, missing)
            await asyncio.sleep(0)  # where this worker itself was asked, nothing else waits
        return StreamListPage(found, None, missing)

    async def get_stream(self, id: str) -> dict[str, Any]:
        """With its position. Raises RequestError 404 and 503."""
        told: dict[str, Any] = await self._ask_owner("admin-stream", id)
        return told

    async def end_stream(self, id: str, reason: str) -> None:
        """Raises RequestError 404 and 503."""
        await self._ask_owner("admin-end-one", id, reason)

    async def end_streams(
        self, stream_filter: StreamFilter, reason: str
    ) -> tuple[int, Sequence[int]]:
        """How many were told to, and which workers did not answer."""
        answers = await self._bus.request(
            "admin-end", [stream_filter, reason], timeout_s=BUS_TIMEOUT_S
        )
        return sum(answers.by_worker.values()), sorted(answers.missing)

    async def _ask_worker(self, topic: str, data: Any, worker: int) -> dict[int, Any]:
        answers = await self._bus.request(topic, data, timeout_s=BUS_TIMEOUT_S, only_worker=worker)
        return dict(answers.by_worker)

    async def _ask_owner(self, topic: str, id: str, *args: Any) -> Any:
        worker, _, rest = id.partition("-")
        mark, _, number = rest.partition("-")
        if not (_is_number(worker) and _is_number(number)) or int(worker) > self._bus.worker_count:
            raise build_unknown_stream(id)
        said = await self._ask_worker(topic, [mark, int(number), *args], int(worker))
        if int(worker) not in said:
            what = f"worker {worker} does not answer; try again"
            raise RequestError(503, "Busy", what, retry_after=1.0)
        if said[int(worker)] is None:
            raise build_unknown_stream(id)
        return said[int(worker)]

    # of this worker

    def _handle_list(
        self, worker: int, data: tuple[int, int, int, Sequence[Any]]
    ) -> dict[str, Any] | None:
        of, number, limit, wanted = data
        if of != self._bus.worker:
            return None
        fits, behind, errors = StreamFilter(*wanted).matches, LagScan(), cache(self._describe_error)
        told: list[dict[str, Any]] = []
        for n, stream in enumerate(self._routes.stream_registry.iter_after(number), 1):
            number = stream.number
            if fits(stream):
                told.append(self._build_row(stream, behind.measure_lag, errors))
            if n >= MAX_SCANNED_STREAMS or len(told) >= limit or behind.should_yield:
                return {"streams": told, "next": number}
        return {"streams": told, "next": None}

    def _handle_get(self, worker: int, data: tuple[str, int]) -> dict[str, Any] | None:
        stream = self._find_stream(*data)
        if stream is None:
            return None
        told = self._build_row(stream, LagScan().measure_lag, self._describe_error)
        client = stream.client
        if client is not None:
            told["topics"] = sorted(client.subscription.channel.tail.topic_ids)
            told["position"] = client.subscription.token.decode()
        return told

    def _handle_end(self, worker: int, data: tuple[Sequence[Any], str]) -> int:
        wanted, reason = data
        return self._routes.stream_registry.end_matching(StreamFilter(*wanted).matches, reason)

    def _handle_end_one(self, worker: int, data: tuple[str, int, str]) -> bool | None:
        mark, number, reason = data
        stream = self._find_stream(mark, number)
        if stream is None:
            return None
        stream.end(reason)
        return True

    def _find_stream(self, mark: str, number: int) -> OpenStream | None:
        openings = self._routes.stream_registry
        return openings.get(number) if mark == openings.instance_id else None

    def _describe_error(self, cluster: str, tail: Tail) -> dict[str, str] | None:
        """Why a partition of it cannot be read now; None while all can."""
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
        """behind: records between where a subscription stands and what was published."""
        match, client = stream.match, stream.client
        id = f"{self._bus.worker}-{self._routes.stream_registry.instance_id}-{stream.number}"
        url = match.path + (f"?{urlencode(stream.query, safe='/,:')}" if stream.query else "")
        told: dict[str, Any] = {
            "id": id,
            "route": get_route_name(match.route),
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
            return told
        told["wire"] = client.subscription.traffic.wire
        told["stream"] = client.number  # as the log calls it
        if client.view is not None:
            told["error"] = describe_error(client.view.cluster, client.subscription.channel.tail)
        state = client.state
        told["behind"] = 0 if state is None else measure_lag(client.subscription)
        told["state"] = (
            LIVE_STATE if state in (None, "catching-up") and not told["behind"] else state
        )
        return told


def build_unknown_stream(id: str) -> RequestError:
    return RequestError(404, "Unknown stream", f"no stream that runs is called {id!r}; list them")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def format_time(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
