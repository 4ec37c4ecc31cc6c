"""The part `audit`: who wrote and read what, for auditors, in a topic, a file or the log.

Nobody who writes or reads waits for it: a record is an entry of a bounded queue, and one task hands
on what is there. Where Kafka is away for longer than the queue lasts, the newest are dropped, which
is counted and said. Records may come twice, with the same `id`: what may have been written is
written again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, UnknownTopic
from gateway.kafka.admin.topics import make_topic
from gateway.kafka.produce.partitioner import partition_of
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.http.body import read
from gateway.sidecar.http.ids import current
from gateway.sidecar.http.scope import WRITE
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal, answer
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .context import Context

log = logging.getLogger(__name__)

MOST = 10_000  # records that wait; 600 bytes each
BATCH = 500
WITHIN = 30.0  # seconds for Kafka to take one
RETRY = 1.0  # seconds before what could not be written is tried again
GRACE = 3.0  # seconds for what is left when the sidecar ends
AGAIN = 10.0  # seconds between two lines about dropped records
LARGEST = 1 << 20  # bytes of a request

Told: TypeAlias = Mapping[str, Any]


class Entry(NamedTuple):
    """A record to be; made where somebody waits, so it is written out later."""

    type: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    correlation: str
    traceability: str
    error: str | None
    at: float


class Audits:
    """See the module, and `part.Part`; it is the context's `audit` from here on.

    outcomes: records by what became of them (`written`, `dropped`, `failed`).
    """

    def __init__(self, context: Context) -> None:
        settings = context.section.audit
        assert settings is not None
        self.outcomes: Counter[str] = Counter()
        self._context = context
        self._settings = settings
        self._service = context.settings.name
        self._waiting: deque[Entry | Told] = deque()
        self._some = asyncio.Event()
        self._said = float("-inf")
        self._trouble: str | None = None
        self._operation = context.spec["auditActive"]
        self.routes: Sequence[BaseRoute] = [
            Route("/consumers/active/audit", self._handed_in, methods=["POST"], name="auditActive")
        ]
        if settings.to != "off":
            context.audit = self

    def produced(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        correlation: str = "", traceability: str = "", error: str | None = None,
    ) -> None:  # fmt: skip
        ids = (correlation, traceability, error, time.time())
        self._put(Entry("PRODUCER", topic, partition, offset, key, *ids))

    def consumed(
        self, topic: str, partition: int, offset: int, key: bytes | None = None, *,
        reactive: bool = False, correlation: str = "", traceability: str = "",
        error: str | None = None,
    ) -> None:  # fmt: skip
        kind = "REACTIVE_CONSUMER" if reactive else "ACTIVE_CONSUMER"
        ids = (correlation, traceability, error, time.time())
        self._put(Entry(kind, topic, partition, offset, key, *ids))

    async def run(self) -> None:
        try:
            while self._settings.to != "off":
                await self._some.wait()
                self._some.clear()
                while self._waiting:
                    await self._turn()
        finally:
            await self._last()

    async def check(self) -> None:
        """Always ready: nobody waits for it."""

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        figures.count(catalog.AUDITED, self.outcomes)

    def _put(self, entry: Entry | Told) -> bool:
        if len(self._waiting) >= MOST:
            self.outcomes["dropped"] += 1
            self._say_dropped()
            return False
        self._waiting.append(entry)
        self._some.set()
        return True

    def _say_dropped(self) -> None:
        now = time.monotonic()
        if now - self._said >= AGAIN:
            self._said = now
            count, why = self.outcomes["dropped"], self._trouble or "too many at once"
            log.warning("audit: %d records were dropped so far: %s", count, why)

    async def _turn(self) -> None:
        """Some of what waits; what could not be had, again after a while."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        left = made = [self._made(each) for each in batch]
        try:
            left = await self._handed_on(made)
        finally:
            self._waiting.extendleft(reversed(left))
        if left:
            await asyncio.sleep(RETRY)

    async def _last(self) -> None:
        try:
            async with asyncio.timeout(GRACE):
                while self._waiting:
                    await self._turn()
        except TimeoutError:
            self.outcomes["dropped"] += len(self._waiting)
            log.warning("audit: %d records were dropped at the end", len(self._waiting))

    def _made(self, entry: Entry | Told) -> Told:
        return _record(entry, self._service) if isinstance(entry, Entry) else entry

    async def _handed_on(self, records: list[Told]) -> list[Told]:
        """Those that are to be tried again."""
        if self._settings.to == "topic":
            try:
                return await self._written(records)
            except KafkaError as error:
                self._troubled(str(error))
                return records
        try:
            if self._settings.file is None:
                for each in records:
                    log.info("audit %s", orjson.dumps(each).decode())
            else:
                await asyncio.to_thread(_append, self._settings.file, records)
        except OSError as error:
            self._troubled(f"{self._settings.file}: {error}")
            return records
        self._fine(len(records))
        return []

    async def _written(self, records: Sequence[Told]) -> list[Told]:
        """To Kafka; those that it may have next time."""
        known = await self._topic()
        under_way = []
        for each in records:
            key = str(each.get("correlationId") or each["id"]).encode()
            tp = TopicPartition(known.name, partition_of(key, len(known.partitions)))
            under_way.append(self._context.producer.put(tp, key, orjson.dumps(each), within=WITHIN))
        results = await asyncio.gather(*under_way, return_exceptions=True)
        again: list[Told] = []
        for each, result in zip(records, results, strict=True):
            if isinstance(result, BrokerUnavailable):
                self._troubled(str(result))
                again.append(each)
            elif isinstance(result, BaseException):
                self.outcomes["failed"] += 1
                self._troubled(str(result))
            else:
                self._fine(1)
        return again

    async def _topic(self) -> TopicAnswer:
        """Made where it is missing: what happens meanwhile waits."""
        try:
            return await self._context.topic(self._settings.topic)
        except UnknownTopic:
            if await make_topic(self._context.cluster, self._settings.topic):
                log.info("audit: the topic %s is made", self._settings.topic)
            return await self._context.topic(self._settings.topic)

    def _troubled(self, why: str) -> None:
        if self._trouble is None:
            log.warning("audit: records wait: %s", why)
        self._trouble = why

    def _fine(self, records: int) -> None:
        self.outcomes["written"] += records
        self._trouble = None

    async def _handed_in(self, request: Request) -> Response:
        """Those of a back end, which has read by itself."""
        await self._context.scope(request, WRITE)
        self._operation.parameters(request)
        data = await read(request, LARGEST)
        given = self._operation.body(data, request.headers.get("content-type"))
        records = [_of_back_end(each, self._service) for each in given]
        for place, each in enumerate(records):
            _writable(each, place)
        if self._settings.to != "off":
            if len(records) > MOST - len(self._waiting):
                what = f"{len(self._waiting)} audit records wait already; try again"
                raise Refusal(503, what, retry_after=RETRY)
            for each in records:
                self._put(each)
        return answer({"accepted": len(records)}, 202)


def _record(entry: Entry, service: str) -> Told:
    """As the contract has it. A key that is no text is base64, and says so."""
    key, form = _key(entry.key)
    return {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": entry.type,
        "topic": entry.topic,
        "partition": entry.partition,
        "offset": entry.offset,
        "correlationId": entry.correlation,
        "traceabilityId": entry.traceability,
        "key": key,
        **form,
        "auditStatus": "SUCCESS" if entry.error is None else "FAILURE",
        "stacktrace": entry.error,
        "timestamp": _millis(entry.at),
    }


def _of_back_end(given: Mapping[str, Any], service: str) -> Told:
    """An audit record; or what a back end answers of a record: {"record", "processed", ...}."""
    record = given.get("record")
    read = record if isinstance(record, Mapping) else {}
    processed = given.get("processed", True)
    ids = current()
    made = {
        "id": str(uuid.uuid4()),
        "serviceId": service,
        "auditType": "ACTIVE_CONSUMER",
        **{name: read.get(name) for name in ("topic", "partition", "offset", "key")},
        "correlationId": ids.correlation,
        "traceabilityId": ids.traceability,
        "auditStatus": "SUCCESS" if processed else "FAILURE",
        "stacktrace": None,
        "timestamp": _millis(time.time()),
    }
    given = {name: value for name, value in given.items() if name not in ("record", "processed")}
    return made | {name: value for name, value in given.items() if value is not None}


def _writable(record: Told, place: int) -> None:
    """One that is not would be tried for ever, before all behind it. Raises Refusal 400."""
    try:
        orjson.dumps(record)
    except TypeError:
        raise wrong(f"[{place}]", "is nested too deep to be written; flatten it") from None


def _key(key: bytes | None) -> tuple[str | None, Told]:
    if key is None:
        return None, {}
    try:
        return key.decode(), {}
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), {"keyFormat": "binary"}


def _millis(at: float) -> str:
    """RFC 3339 in UTC."""
    told = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _append(file: str, records: Sequence[Told]) -> None:
    """A line each; opened anew each time, so that the file may be moved away."""
    with Path(file).open("ab") as out:
        out.write(b"".join(orjson.dumps(each) + b"\n" for each in records))
