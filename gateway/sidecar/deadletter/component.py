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
from gateway.core.delivery.batch import DeadLetterRecord
from gateway.core.delivery.verdict import UNEXPLAINED_REASON
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, Fenced, KafkaError, UnknownTopic
from gateway.formats.codec import SerializationFormat
from gateway.kafka.fetch.committed_read import read_committed
from gateway.sidecar.backends import get_dead_letter_ext, get_group
from gateway.sidecar.consumer.record_json import render_records, text_headers
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import READ_SCOPE, WRITE_SCOPE
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.sidecar.reactive.backend import BackendClient
from gateway.sidecar.reactive.batch_encoder import BatchEncoder
from gateway.sidecar.reactive.dead_letters import DeadLetterWriter
from gateway.sidecar.reactive.message import DeadLetterMessage
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .queue import DeadLetterQueue, QueuedDeadLetter
from .retry import DeadLetterRetry, RetryResult, create_transactions

MAX_BODY_BYTES = 4 << 20  # bytes of a request

Parameters: TypeAlias = Mapping[str, Any]


class DeadLetterComponent:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._outcomes: Counter[str] = Counter()
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        # to a back end in the same pod, past any proxy
        self._client = httpx.AsyncClient(trust_env=False, timeout=None, follow_redirects=False)
        self.routes: Sequence[BaseRoute] = [
            Route("/consumers/deadLetter/reactive", self._retry, methods=["GET"]),
            Route("/consumers/deadLetter/active", self._list_letters, methods=["GET"]),
            Route("/consumers/deadLetter/active", self._accept_letters, methods=["POST"]),
            Route("/consumers/deadLetter/active/offsets", self._commit, methods=["POST"]),
        ]

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._client.aclose()

    async def check_ready(self) -> None:
        """Always ready: nothing is begun before it is asked for."""

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know."""
        samples.add_counts(catalog.DEAD_LETTERS, self._outcomes)

    # to the back end

    async def _retry(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        asked = self._context.spec["retryDeadLetters"].parse_parameters(request)
        group = get_group(self._context.section, asked.get("group"))
        queue = await self._open_queue(request, group.group, self._resolve_topic(asked, group))
        lock = self._locks.setdefault((queue.group, queue.topic), asyncio.Lock())
        async with lock:  # a twin waits: the letters that it wants are under way
            result = await self._retry_batch(queue, group, asked)
        if result.backend_failure and not result.letters:
            raise StatusError(
                503, f"the back end is away: {result.backend_failure}; nothing was changed, try again",
                code="BACKEND_UNAVAILABLE", retry_after=result.retry_after or None,
            )  # fmt: skip
        self._outcomes.update(result.counts)
        left = sum(map(len, (await queue.fetch_ranges()).values()))
        return build_json_response(_format_result(queue, result, left))

    async def _retry_batch(
        self, queue: DeadLetterQueue, group: Group, asked: Parameters
    ) -> RetryResult:
        transactions = create_transactions(self._context.cluster, queue)
        await transactions.start()  # before anything is read: another's commit is done by now
        some, points = await queue.fetch_letters(
            group.max_poll_records, group.request_max_bytes, asked["timeout"] / 1000
        )
        settings = self._context.section
        again = DeadLetterRetry(
            queue,
            BackendClient(self._client, group.backend, accept_empty=group.accept_empty),
            BatchEncoder(self._context.codecs, settings, group),
            self._context.auditor,
        )
        try:
            return await again.retry_batch(transactions, some, points, last=asked["lastretry"])
        except Fenced:
            what = "another one retries the same dead letters by now; ask again"
            raise StatusError(409, what, code="RETRIED_ELSEWHERE") from None

    def _resolve_topic(self, asked: Parameters, group: Group) -> str:
        """Whose dead letters."""
        if "topic" in asked:
            return str(asked["topic"])
        if len(group.topics) != 1:
            which = ", ".join(group.topics) or f"those of {group.pattern}"
            raise create_invalid_request("query topic", f"is missing; name one of {which}")
        return group.topics[0]

    # to a program

    async def _list_letters(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        asked = self._context.spec["getDeadLetters"].parse_parameters(request)
        queue = await self._open_queue(request, asked["group"], asked["topic"])
        formats = self._build_formats(asked)
        settings = self._context.section.consumer or ConsumerSettings()
        some, _ = await queue.fetch_letters(
            asked.get("maxRecords", settings.max_poll_records),
            asked.get("max_bytes", settings.request_max_bytes),
            asked["timeout"] / 1000,
        )
        records = await render_records(
            self._context.codecs, [each.origin for each in some], formats, text_headers
        )
        told = zip(orjson.loads(records), some, strict=True)
        return build_json_response([{**record, **_format_letter(found)} for record, found in told])

    def _build_formats(self, asked: Parameters) -> Any:
        section = self._context.section
        consumer = section.consumer or ConsumerSettings()

        def formats(topic: str) -> tuple[SerializationFormat, SerializationFormat]:
            key = asked.get("keyFormat") or section.get_key_format(topic, consumer.key_format)
            value = asked.get("valueFormat") or section.get_value_format(
                topic, consumer.value_format
            )
            return SerializationFormat.parse(key), SerializationFormat.parse(value)

        return formats

    async def _commit(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        operation = self._context.spec["commitDeadLetters"]
        body = operation.parse_body(*await self._read_body(request))
        queue = await self._open_queue(request, body["group"], body["topic"])
        known = await self._context.get_topic(queue.topic)
        points: dict[TopicPartition, int] = {}
        for place, each in enumerate(body["offsets"]):
            if each["partition"] not in known.partitions:
                what = f"{each['partition']} is none of {queue.topic}"
                raise create_invalid_request(
                    f"offsets[{place}].partition", f"{what}; give `deadLetter` as it came"
                )
            tp = TopicPartition(queue.topic, int(each["partition"]))
            points[tp] = max(points.get(tp, 0), int(each["offset"]) + 1)
        await queue.commit(points)
        return Response(status_code=204)

    # from a program

    async def _accept_letters(self, request: Request) -> Response:
        await self._context.authorize(request, WRITE_SCOPE)
        operation = self._context.spec["writeDeadLetters"]
        given = operation.parse_body(*await self._read_body(request))
        asked = operation.parse_parameters(request)
        items = [each for each in given if not each.get("processed", False)]
        topics = sorted({each["record"]["topic"] for each in items})
        group = asked["group"]
        await self._context.authorize(request, WRITE_SCOPE, topics, group)
        for topic in topics:
            await self._context.get_topic(topic)
        letters = _SubmittedDeadLetterWriter(
            self._context, group, get_dead_letter_ext(self._context.section, group)
        )
        dead = [
            letters.create_dead_letter(await self._resolve_record(each, place), each)
            for place, each in enumerate(items)
        ]
        left, why = await letters.write(dead)
        if left:
            what = f"{len(left)} of {len(dead)} are not written: {why}"
            raise BrokerUnavailable(what) if len(left) == len(dead) else create_partly_written(what)
        self._outcomes["written"] += len(dead)
        for each in dead:
            self._context.auditor.record_consumed(
                each.record.tp.topic, each.record.tp.partition, each.record.offset,
                each.record.key, error=each.reason,
            )  # fmt: skip
        return build_json_response({"written": len(dead), "processed": len(given) - len(items)})

    async def _resolve_record(self, item: Parameters, place: int) -> Record:
        """As Kafka has it, where it still does; otherwise as it was handed in."""
        given = item["record"]
        tp = TopicPartition(given["topic"], int(given["partition"]))  # 1.0 is an integer in JSON
        known = await self._context.get_topic(tp.topic)
        if tp.partition not in known.partitions:
            raise create_invalid_request(
                f"[{place}].record.partition", f"{tp.partition} is none of {tp.topic}"
            )
        record = await self._read_record(tp, int(given["offset"]))
        if record is None:
            if "value" not in given:
                what = "is not in Kafka any more; hand in its value, too"
                raise create_invalid_request(f"[{place}].record", what)
            return await self._encode_record(tp, given)
        return record

    async def _read_record(self, tp: TopicPartition, offset: int) -> Record | None:
        try:
            got = await read_committed(self._context.cluster, tp, offset, max_wait=0.0, max_bytes=1)
        except KafkaError as error:
            if getattr(error, "code", None) != 1:  # behind the end: it is not there
                raise
            return None
        return next((each for each in got.records if each.offset == offset), None)

    async def _encode_record(self, tp: TopicPartition, given: Parameters) -> Record:
        key, value = self._build_formats({})(tp.topic)
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

    async def _open_queue(self, request: Request, group: str, topic: str) -> DeadLetterQueue:
        """topic: of the records, or of their dead letters. Raises UnknownTopic."""
        ext = get_dead_letter_ext(self._context.section, group)
        origin = topic.removesuffix(ext) or topic
        await self._context.authorize(request, READ_SCOPE, [origin], group)
        name = origin + ext
        try:
            await self._context.get_topic(name)
        except UnknownTopic:
            if origin in (await self._context.cluster.list_topics()):
                what = f"{origin} has no dead letters; {name} is made with the first of them"
                raise UnknownTopic(what, topic=name) from None
            raise
        return DeadLetterQueue(self._context.cluster, name, group, ext)

    @staticmethod
    async def _read_body(request: Request) -> tuple[bytes, str | None]:
        return await read_body(request, MAX_BODY_BYTES), request.headers.get("content-type")


def _format_result(queue: DeadLetterQueue, result: RetryResult, left: int) -> dict[str, Any]:
    counts = result.counts
    return {
        "group": queue.group,
        "topic": queue.topic,
        "processed": counts["processed"],
        "returned": counts["returned"],
        "parked": counts["parked"],
        "left": left,
        "error": result.backend_failure or None,
        "records": [
            {
                "record": {
                    "topic": each.found.message.origin.topic,
                    "partition": each.found.message.origin.partition,
                    "offset": each.found.message.offset,
                },
                "processed": each.outcome == "processed",
                "outcome": each.outcome,
                "retries": each.found.message.retries + 1,
                "stacktrace": each.reason or None,
            }
            for each in result.letters
        ],
    }


def _format_letter(found: QueuedDeadLetter) -> dict[str, Any]:
    letter, record = found.message, found.record
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


class _SubmittedDeadLetterWriter(DeadLetterWriter):
    """With the ids that they are handed in with, where they are."""

    def create_dead_letter(self, record: Record, item: Parameters) -> DeadLetterRecord:
        self._items[id(record)] = item
        return DeadLetterRecord(
            record, item.get("stacktrace") or item.get("error") or UNEXPLAINED_REASON
        )

    @cached_property
    def _items(self) -> dict[int, Parameters]:
        return {}

    def build_message(self, dead: DeadLetterRecord) -> DeadLetterMessage:
        letter, item = super().build_message(dead), self._items[id(dead.record)]
        given = item["record"]
        correlation = item.get("correlationId") or given.get("correlationId")
        traceability = item.get("traceabilityId") or given.get("traceabilityId")
        return replace(
            letter,
            correlation_id=correlation or letter.correlation_id,
            traceability_id=traceability or letter.traceability_id,
        )


def create_partly_written(what: str) -> StatusError:
    return StatusError(503, f"{what}; those may be handed in again", code="PARTLY_WRITTEN")
