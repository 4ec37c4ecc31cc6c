"""The part `deadLetter`: what could not be processed, once more, or for a program to see to.

Nothing is remembered here between requests: how far a group is with its dead letters is committed
in Kafka, so any sidecar answers, and a program that was given letters gets them again until it has
said that it is through with them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.config.sections.sidecar import Consumer as ConsumerSettings
from gateway.config.sections.sidecar import Group
from gateway.core.delivery.batch import Dead
from gateway.core.delivery.verdict import UNEXPLAINED
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, Fenced, KafkaError, UnknownTopic
from gateway.formats.codec import Format
from gateway.kafka.fetch.piece import piece
from gateway.sidecar.backends import ext_of, group_named
from gateway.sidecar.consumer.record_json import shown, text_headers
from gateway.sidecar.context import Context
from gateway.sidecar.http.body import read
from gateway.sidecar.http.scope import READ, WRITE
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal, answer
from gateway.sidecar.reactive.backend import BackEnd
from gateway.sidecar.reactive.dead_letters import DeadLetters
from gateway.sidecar.reactive.letter import Letter
from gateway.sidecar.reactive.written import Writer
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .again import Again, Result, transactions_of
from .queue import Found, Queue

LARGEST = 4 << 20  # bytes of a request

Asked: TypeAlias = Mapping[str, Any]


class DeadLetterQueues:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._outcomes: Counter[str] = Counter()
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        # to a back end in the same pod, past any proxy
        self._client = httpx.AsyncClient(trust_env=False, timeout=None, follow_redirects=False)
        self.routes: Sequence[BaseRoute] = [
            Route("/consumers/deadLetter/reactive", self._again, methods=["GET"]),
            Route("/consumers/deadLetter/active", self._letters, methods=["GET"]),
            Route("/consumers/deadLetter/active", self._handed_in, methods=["POST"]),
            Route("/consumers/deadLetter/active/offsets", self._commit, methods=["POST"]),
        ]

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._client.aclose()

    async def check(self) -> None:
        """Always ready: nothing is begun before it is asked for."""

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        figures.count(catalog.DEAD_LETTERS, self._outcomes)

    # to the back end

    async def _again(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        asked = self._context.spec["retryDeadLetters"].parameters(request)
        group = group_named(self._context.section, asked.get("group"))
        queue = await self._queue(request, group.group, self._topic(asked, group))
        lock = self._locks.setdefault((queue.group, queue.topic), asyncio.Lock())
        async with lock:  # a twin waits: the letters that it wants are under way
            result = await self._batch(queue, group, asked)
        if result.away and not result.told:
            raise Refusal(
                503, f"the back end is away: {result.away}; nothing was changed, try again",
                code="BACKEND_UNAVAILABLE", retry_after=result.retry_after or None,
            )  # fmt: skip
        self._outcomes.update(result.counts)
        left = sum(map(len, (await queue.ranges()).values()))
        return answer(_told(queue, result, left))

    async def _batch(self, queue: Queue, group: Group, asked: Asked) -> Result:
        transactions = transactions_of(self._context.cluster, queue)
        await transactions.start()  # before anything is read: another's commit is done by now
        some, points = await queue.some(
            group.max_poll_records, group.request_max_bytes, asked["timeout"] / 1000
        )
        settings = self._context.section
        again = Again(
            queue,
            BackEnd(self._client, group.backend, accept_empty=group.accept_empty),
            Writer(self._context.codecs, settings, group),
            self._context.audit,
        )
        try:
            return await again.batch(transactions, some, points, last=asked["lastretry"])
        except Fenced:
            what = "another one retries the same dead letters by now; ask again"
            raise Refusal(409, what, code="RETRIED_ELSEWHERE") from None

    def _topic(self, asked: Asked, group: Group) -> str:
        """Whose dead letters."""
        if "topic" in asked:
            return str(asked["topic"])
        if len(group.topics) != 1:
            which = ", ".join(group.topics) or f"those of {group.pattern}"
            raise wrong("query topic", f"is missing; name one of {which}")
        return group.topics[0]

    # to a program

    async def _letters(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        asked = self._context.spec["getDeadLetters"].parameters(request)
        queue = await self._queue(request, asked["group"], asked["topic"])
        formats = self._formats(asked)
        settings = self._context.section.consumer or ConsumerSettings()
        some, _ = await queue.some(
            asked.get("maxRecords", settings.max_poll_records),
            asked.get("max_bytes", settings.request_max_bytes),
            asked["timeout"] / 1000,
        )
        records = await shown(
            self._context.codecs, [each.origin for each in some], formats, text_headers
        )
        told = zip(orjson.loads(records), some, strict=True)
        return answer([{**record, **_letter(found)} for record, found in told])

    def _formats(self, asked: Asked) -> Any:
        section = self._context.section
        consumer = section.consumer or ConsumerSettings()

        def formats(topic: str) -> tuple[Format, Format]:
            key = asked.get("keyFormat") or section.key_format(topic, consumer.key_format)
            value = asked.get("valueFormat") or section.value_format(topic, consumer.value_format)
            return Format.of(key), Format.of(value)

        return formats

    async def _commit(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        operation = self._context.spec["commitDeadLetters"]
        body = operation.body(*await self._body(request))
        queue = await self._queue(request, body["group"], body["topic"])
        known = await self._context.topic(queue.topic)
        points: dict[TopicPartition, int] = {}
        for place, each in enumerate(body["offsets"]):
            if each["partition"] not in known.partitions:
                what = f"{each['partition']} is none of {queue.topic}"
                raise wrong(f"offsets[{place}].partition", f"{what}; give `deadLetter` as it came")
            tp = TopicPartition(queue.topic, int(each["partition"]))
            points[tp] = max(points.get(tp, 0), int(each["offset"]) + 1)
        await queue.commit(points)
        return Response(status_code=204)

    # from a program

    async def _handed_in(self, request: Request) -> Response:
        await self._context.scope(request, WRITE)
        operation = self._context.spec["writeDeadLetters"]
        given = operation.body(*await self._body(request))
        asked = operation.parameters(request)
        items = [each for each in given if not each.get("processed", False)]
        topics = sorted({each["record"]["topic"] for each in items})
        group = asked["group"]
        await self._context.scope(request, WRITE, topics, group)
        for topic in topics:
            await self._context.topic(topic)
        letters = _HandedIn(self._context, group, ext_of(self._context.section, group))
        dead = [
            letters.dead(await self._record(each, place), each) for place, each in enumerate(items)
        ]
        left, why = await letters.write(dead)
        if left:
            what = f"{len(left)} of {len(dead)} are not written: {why}"
            raise BrokerUnavailable(what) if len(left) == len(dead) else _partly(what)
        self._outcomes["written"] += len(dead)
        for each in dead:
            self._context.audit.consumed(
                each.record.tp.topic, each.record.tp.partition, each.record.offset,
                each.record.key, error=each.reason,
            )  # fmt: skip
        return answer({"written": len(dead), "processed": len(given) - len(items)})

    async def _record(self, item: Asked, place: int) -> Record:
        """As Kafka has it, where it still does; otherwise as it was handed in."""
        given = item["record"]
        tp = TopicPartition(given["topic"], int(given["partition"]))  # 1.0 is an integer in JSON
        known = await self._context.topic(tp.topic)
        if tp.partition not in known.partitions:
            raise wrong(f"[{place}].record.partition", f"{tp.partition} is none of {tp.topic}")
        record = await self._read(tp, int(given["offset"]))
        if record is None:
            if "value" not in given:
                what = "is not in Kafka any more; hand in its value, too"
                raise wrong(f"[{place}].record", what)
            return await self._encoded(tp, given)
        return record

    async def _read(self, tp: TopicPartition, offset: int) -> Record | None:
        try:
            got = await piece(self._context.cluster, tp, offset, max_wait=0.0, max_bytes=1)
        except KafkaError as error:
            if getattr(error, "code", None) != 1:  # behind the end: it is not there
                raise
            return None
        return next((each for each in got.records if each.offset == offset), None)

    async def _encoded(self, tp: TopicPartition, given: Asked) -> Record:
        key, value = self._formats({})(tp.topic)
        codecs = self._context.codecs
        headers = [
            (name, None if text is None else str(text).encode())
            for name, some in (given.get("headers") or {}).items()
            for text in (some if isinstance(some, list) else [some])
        ]
        return Record(
            tp,
            int(given["offset"]),
            -1,
            int(given.get("timestamp") or 0),
            (await codecs.encode(key, tp.topic, True, given.get("key"))).data,
            (await codecs.encode(value, tp.topic, False, given["value"])).data,
            headers,
        )

    # both

    async def _queue(self, request: Request, group: str, topic: str) -> Queue:
        """topic: of the records, or of their dead letters. Raises UnknownTopic."""
        ext = ext_of(self._context.section, group)
        origin = topic.removesuffix(ext) or topic
        await self._context.scope(request, READ, [origin], group)
        name = origin + ext
        try:
            await self._context.topic(name)
        except UnknownTopic:
            if origin in (await self._context.cluster.topics()):
                what = f"{origin} has no dead letters; {name} is made with the first of them"
                raise UnknownTopic(what, topic=name) from None
            raise
        return Queue(self._context.cluster, name, group, ext)

    @staticmethod
    async def _body(request: Request) -> tuple[bytes, str | None]:
        return await read(request, LARGEST), request.headers.get("content-type")


def _told(queue: Queue, result: Result, left: int) -> dict[str, Any]:
    counts = result.counts
    return {
        "group": queue.group,
        "topic": queue.topic,
        "processed": counts["processed"],
        "returned": counts["returned"],
        "parked": counts["parked"],
        "left": left,
        "error": result.away or None,
        "records": [
            {
                "record": {
                    "topic": each.found.letter.origin.topic,
                    "partition": each.found.letter.origin.partition,
                    "offset": each.found.letter.offset,
                },
                "processed": each.outcome == "processed",
                "outcome": each.outcome,
                "retries": each.found.letter.retries + 1,
                "stacktrace": each.reason or None,
            }
            for each in result.told
        ],
    }


def _letter(found: Found) -> dict[str, Any]:
    letter, record = found.letter, found.record
    return {
        "correlationId": letter.correlation_id,
        "traceabilityId": letter.traceability_id or None,
        "group": letter.group or None,
        "retries": letter.retries,
        "stacktrace": letter.stacktrace,
        "deadLetter": {
            "topic": record.tp.topic,
            "partition": record.tp.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
        },
    }


class _HandedIn(DeadLetters):
    """With the ids that they are handed in with, where they are."""

    def dead(self, record: Record, item: Asked) -> Dead:
        self._items[id(record)] = item
        return Dead(record, item.get("stacktrace") or item.get("error") or UNEXPLAINED)

    @cached_property
    def _items(self) -> dict[int, Asked]:
        return {}

    def letter(self, dead: Dead) -> Letter:
        letter, item = super().letter(dead), self._items[id(dead.record)]
        given = item["record"]
        correlation = item.get("correlationId") or given.get("correlationId")
        traceability = item.get("traceabilityId") or given.get("traceabilityId")
        return replace(
            letter,
            correlation_id=correlation or letter.correlation_id,
            traceability_id=traceability or letter.traceability_id,
        )


def _partly(what: str) -> Refusal:
    return Refusal(503, f"{what}; those may be handed in again", code="PARTLY_WRITTEN")
