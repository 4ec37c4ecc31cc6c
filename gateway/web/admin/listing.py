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
from gateway.hub.fanout.distances import Distances
from gateway.telemetry.redact import redacted
from gateway.web.http.acknowledged import acknowledged
from gateway.web.routing.routes import Routes, name_of
from gateway.web.streams.open_streams import Opened
from gateway.web.workers.bus import Bus

from .wanted import Wanted

LOOKED, TOLD = 2000, 100
WITHIN = 2.0  # seconds for a worker to answer
LIVE, STARTING = "live", "starting"


class Place(NamedTuple):
    """In the list of all: behind so many streams of this worker."""

    worker: int = 1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.worker}-{self.number}"

    @classmethod
    def of(cls, text: str) -> Place:
        """Raises RequestError."""
        worker, _, number = text.partition("-")
        if not (_is_number(worker) and _is_number(number)):
            raise RequestError(400, "Bad request", "?after= is none of ours; take it from `next`")
        return cls(int(worker), int(number))


class Listed(NamedTuple):
    """next: where the list goes on. missing: workers that did not answer."""

    streams: list[dict[str, Any]]
    next: Place | None
    missing: list[int]


class Listing:
    """The streams of all processes on a bus."""

    def __init__(self, routes: Routes, bus: Bus) -> None:
        self._routes = routes
        self._bus = bus
        bus.on("admin-streams", self._slice)
        bus.on("admin-stream", self._one)
        bus.on("admin-end", self._end)
        bus.on("admin-end-one", self._end_one)

    async def list(self, wanted: Wanted, after: Place, limit: int) -> Listed:
        """So many of them, behind a place."""
        found: list[dict[str, Any]] = []
        missing: list[int] = []
        while after.worker <= self._bus.workers:
            asked = [after.worker, after.number, min(TOLD, limit - len(found)), wanted]
            said = (await self._ask("admin-streams", asked, after.worker)).get(after.worker)
            if said is None:
                missing.append(after.worker)
            else:
                found += said["streams"]
            if said is None or said["next"] is None:
                after = Place(after.worker + 1)
            else:
                after = Place(after.worker, said["next"])
            if len(found) >= limit and after.worker <= self._bus.workers:
                return Listed(found, after, missing)
            await asyncio.sleep(0)  # where this worker itself was asked, nothing else waits
        return Listed(found, None, missing)

    async def one(self, id: str) -> dict[str, Any]:
        """With its position. Raises RequestError 404 and 503."""
        told: dict[str, Any] = await self._of_one("admin-stream", id)
        return told

    async def end_one(self, id: str, reason: str) -> None:
        """Raises RequestError 404 and 503."""
        await self._of_one("admin-end-one", id, reason)

    async def end(self, wanted: Wanted, reason: str) -> tuple[int, Sequence[int]]:
        """How many were told to, and which workers did not answer."""
        answers = await self._bus.ask("admin-end", [wanted, reason], within=WITHIN)
        return sum(answers.said.values()), sorted(answers.missing)

    async def _ask(self, topic: str, data: Any, worker: int) -> dict[int, Any]:
        answers = await self._bus.ask(topic, data, within=WITHIN, of=worker)
        return dict(answers.said)

    async def _of_one(self, topic: str, id: str, *more: Any) -> Any:
        worker, _, rest = id.partition("-")
        mark, _, number = rest.partition("-")
        if not (_is_number(worker) and _is_number(number)) or int(worker) > self._bus.workers:
            raise gone(id)
        said = await self._ask(topic, [mark, int(number), *more], int(worker))
        if int(worker) not in said:
            what = f"worker {worker} does not answer; try again"
            raise RequestError(503, "Busy", what, retry_after=1.0)
        if said[int(worker)] is None:
            raise gone(id)
        return said[int(worker)]

    # of this worker

    def _slice(
        self, worker: int, asked: tuple[int, int, int, Sequence[Any]]
    ) -> dict[str, Any] | None:
        of, number, limit, wanted = asked
        if of != self._bus.worker:
            return None
        fits, behind, errors = Wanted(*wanted).fits, Distances(), cache(self._error)
        told: list[dict[str, Any]] = []
        for n, stream in enumerate(self._routes.openings.after(number), 1):
            number = stream.number
            if fits(stream):
                told.append(self._row(stream, behind.of, errors))
            if n >= LOOKED or len(told) >= limit or behind.costly:
                return {"streams": told, "next": number}
        return {"streams": told, "next": None}

    def _one(self, worker: int, asked: tuple[str, int]) -> dict[str, Any] | None:
        stream = self._find(*asked)
        if stream is None:
            return None
        told = self._row(stream, Distances().of, self._error)
        client = stream.client
        if client is not None:
            told["topics"] = sorted(client.subscription.channel.tail.ids)
            told["position"] = client.subscription.position.decode()
        return told

    def _end(self, worker: int, asked: tuple[Sequence[Any], str]) -> int:
        wanted, reason = asked
        return self._routes.openings.end(Wanted(*wanted).fits, reason)

    def _end_one(self, worker: int, asked: tuple[str, int, str]) -> bool | None:
        mark, number, reason = asked
        stream = self._find(mark, number)
        if stream is None:
            return None
        stream.end(reason)
        return True

    def _find(self, mark: str, number: int) -> Opened | None:
        openings = self._routes.openings
        return openings.get(number) if mark == openings.mark else None

    def _error(self, cluster: str, tail: Tail) -> dict[str, str] | None:
        """Why a partition of it cannot be read now; None while all can."""
        feeds = self._routes.hubs.of(cluster).feeds.by_partition
        for tp in tail.logs:
            feed = feeds.get(tp)
            if feed is not None and feed.reading.cause is not None:
                return {"partition": f"{tp.topic}-{tp.partition}", "cause": feed.reading.cause}
        return None

    def _row(
        self,
        stream: Opened,
        behind: Callable[[Any], int],
        error: Callable[[str, Tail], dict[str, str] | None],
    ) -> dict[str, Any]:
        """behind: records between where a subscription stands and what was published."""
        match, client = stream.match, stream.client
        id = f"{self._bus.worker}-{self._routes.openings.mark}-{stream.number}"
        url = match.path + (f"?{urlencode(stream.query, safe='/,:')}" if stream.query else "")
        told: dict[str, Any] = {
            "id": id,
            "route": name_of(match.route),
            "url": redacted(url),
            "identity": match.granted.identities,
            "address": stream.address,
            "since": moment(stream.since),
            "expires": None if match.granted.expires is None else moment(match.granted.expires),
            "state": STARTING,
            "behind": 0,
            "bytes": acknowledged(stream.transport),
            "error": None,
            "worker": self._bus.worker,
        }
        if client is None:
            return told
        told["wire"] = client.subscription.traffic.wire
        told["stream"] = client.number  # as the log calls it
        if client.view is not None:
            told["error"] = error(client.view.cluster, client.subscription.channel.tail)
        state = client.state
        told["behind"] = 0 if state is None else behind(client.subscription)
        told["state"] = LIVE if state in (None, "catching-up") and not told["behind"] else state
        return told


def gone(id: str) -> RequestError:
    return RequestError(404, "Unknown stream", f"no stream that runs is called {id!r}; list them")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def moment(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
