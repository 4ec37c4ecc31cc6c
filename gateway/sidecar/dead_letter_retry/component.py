"""Serve dead letters: deliver them again, or let a program read and write them.

A group's position in its dead letters is committed in Kafka, so any sidecar answers, and a program
gets dead letters again until it has committed them. Between requests only a `RetryPass` is kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.client_memory import GrowingReservation, HeldPart
from gateway.config.sections.sidecar import Consumer as ConsumerSettings
from gateway.config.sections.sidecar import Group
from gateway.core.backoff import BackoffPolicy, ContentionBackoff
from gateway.core.delivery.delivery_queue import DeadLetterRecord
from gateway.core.delivery.verdict import UNEXPLAINED_REASON
from gateway.core.group.partition_state import prefetched_size
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, Fenced, GatewayError, UnknownTopic
from gateway.formats.codec import SerializationFormat
from gateway.formats.exact_values import keep_exact_numbers
from gateway.kafka.fetch.bounded_read import iter_records_at
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.sidecar.consumer.record_json import (
    hold_records,
    parse_headers,
    render_records,
    text_headers,
)
from gateway.sidecar.context import AuditEvent, Component, Context
from gateway.sidecar.http.middleware import READ_SCOPE, WRITE_SCOPE, TrailingSlashRoute, has_place
from gateway.sidecar.http.requests import check_lifetime, read_body, run_for_client
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.sidecar.lookups import (
    Formats,
    check_not_dead_letters,
    check_offsets,
    check_writable,
    get_dead_letter_ext,
    get_formats,
    get_group,
    parse_tp,
)
from gateway.sidecar.reactive.backend import BackendClient, BatchEncoder, create_http_client
from gateway.sidecar.reactive.dead_letters import DeadLetterWriter
from gateway.sidecar.turns import SharedPlaces, Turns, take_turns
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .queue import (
    PARKED,
    PROCESSED,
    RETURNED,
    DeadLetterQueue,
    DeadLetterRetry,
    NextOffsets,
    QueuedDeadLetter,
    RetryPass,
    RetryResult,
)
from .watches import DeadLetterWatches

MAX_BODY_BYTES = 4 << 20
MAX_COMMIT_BYTES = 1 << 20
MAX_LISTED_BYTES = 4 << 20  # of dead letters in one response, unless `requestMaxBytes` is more
MAX_PARALLEL_READS = 4  # of portions, for all requests: what they take is in no account
MAX_ACCEPTED_BYTES = 32 << 20  # of the records of one request, as Kafka has them
RETRY_DELAY_S = 2.0  # before dead letters are retried that another sidecar retries; it grows
MAX_RETRY_DELAY_S = 60.0
KEEP_INTERVAL_S = 3600.0  # Kafka forgets positions 7 days after their commit, by default
MAX_KEPT_GROUPS = 1000
OUTCOMES = (PROCESSED, RETURNED, PARKED, "written")

Parameters: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[TopicPartition, int]
"""The partition and the offset of a record."""

log = logging.getLogger(__name__)


class DeadLetterComponent(Component):
    """Serve `/consumers/deadLetter`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._outcomes: Counter[str] = Counter()
        self._retried_now: set[tuple[str, str]] = set()  # groups and topics
        self._passes: defaultdict[tuple[str, str], RetryPass] = defaultdict(RetryPass)
        self._lost_retries: ContentionBackoff[tuple[str, str]] = ContentionBackoff(
            BackoffPolicy(RETRY_DELAY_S, MAX_RETRY_DELAY_S), random.random
        )
        reactive = context.section.reactive
        self._kept_groups = {  # with the client that uses it
            group.group: "" for group in (reactive.groups if reactive is not None else ())
        }
        self._is_full_logged = False  # that a group had no place among these
        self._failing_names: set[str] = set()  # whose positions could not be kept
        self._lines: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._reads = SharedPlaces(MAX_PARALLEL_READS)
        self._watches = DeadLetterWatches(context.cluster, context.client_memory)
        self._client = create_http_client()
        self.routes = [
            # Without HEAD, which is to change nothing.
            TrailingSlashRoute("/consumers/deadLetter/reactive", self._retry, "GET"),
            Route("/consumers/deadLetter/active", self._list_letters, methods=["GET"]),
            Route("/consumers/deadLetter/active", self._accept_letters, methods=["POST"]),
            Route("/consumers/deadLetter/active/offsets", self._commit, methods=["POST"]),
        ]

    async def run(self) -> None:
        async with aclosing(self._client):
            while True:
                await asyncio.sleep(KEEP_INTERVAL_S)
                for group in sorted(self._kept_groups):
                    with self._noting_failure(group):
                        await self._keep_positions(group)

    @contextmanager
    def _noting_failure(self, name: str) -> Iterator[None]:
        """Log a failure to keep positions once, and go on with others."""
        try:
            yield
        except Exception as error:
            if name not in self._failing_names:
                is_unexpected = not isinstance(error, GatewayError)
                text = "Kafka may forget the positions of %s: %s"
                log.warning(text, name, error, exc_info=is_unexpected)
            self._failing_names.add(name)
        else:
            self._failing_names.discard(name)

    async def _keep_positions(self, group: str) -> None:
        """Commit a group's positions again.

        The group has no members, so Kafka deletes the offset of a partition some days after its
        commit.
        """
        cluster, ext = self._context.cluster, get_dead_letter_ext(self._context.section, group)
        committed = await GroupOffsets(cluster.coordinators, group + ext).committed(None)
        if not committed:  # its place is for others until it is used again
            del self._kept_groups[group]
        for topic in sorted({tp.topic for tp in committed if tp.topic.endswith(ext)}):
            # StatusError: a retry is under way, which commits.
            with (
                self._noting_failure(f"{group} in {topic}"),
                suppress(StatusError, UnknownTopic),
            ):
                await self._context.get_topic(topic)
                queue = DeadLetterQueue(cluster, topic, group, ext, self._reads)
                await self._commit_positions(queue)

    async def _commit_positions(
        self, queue: DeadLetterQueue, offsets: NextOffsets | None = None
    ) -> list[TopicPartition]:
        """Commit next offsets, by default the group's positions, and return those left out.

        They are behind a position. What a retry has changed must not be set back.
        """
        if offsets is not None:
            starts = await queue.fetch_starts(offsets)
            if all(offsets[tp] <= start for tp, start in starts.items()):
                return [tp for tp, start in starts.items() if offsets[tp] < start]
        if (queue.group, queue.topic) in self._retried_now:  # a retry may take minutes
            raise _create_retried_elsewhere(RETRY_DELAY_S)
        async with self._changing_positions(queue.group, queue.topic) as transactions:
            starts = await queue.fetch_starts(offsets)
            wanted = {tp: (offsets or starts)[tp] for tp in starts}
            kept = {tp: offset for tp, offset in wanted.items() if offset >= starts[tp]}
            if kept:
                marked = queue.mark_offsets(kept)
                await transactions.commit(group=queue.offsets_group, offsets=marked)
        return [tp for tp in wanted if tp not in kept]

    @asynccontextmanager
    async def _changing_positions(
        self, group: str, topic: str
    ) -> AsyncIterator[TransactionalProducer]:
        """Let nobody else change the positions of a group in a topic of dead letters.

        Requests wait for each other. This completes or aborts what another sidecar has begun, and
        fences it: what is read within the context is what its transaction may change. Raises
        StatusError 409 if another sidecar has fenced this one.
        """
        key, now = (group, topic), time.monotonic()
        if (delay_s := self._lost_retries.get_remaining(key, now)) > 0:
            raise _create_retried_elsewhere(delay_s)
        transactions = self._context.create_transactions(f"dead-letters-{group}-{topic}")
        try:
            async with self._lines.setdefault(key, asyncio.Lock()):
                await transactions.start()
                yield transactions
        except Fenced:
            # The back end has a retry's batch, and gets it from the other sidecar, too.
            now = time.monotonic()
            self._lost_retries.note_loss(key, now)
            raise _create_retried_elsewhere(self._lost_retries.get_remaining(key, now)) from None
        self._lost_retries.note_success(key)

    def collect_metrics(self, samples: MetricSamples) -> None:
        samples.add_counts(catalog.DEAD_LETTERS, self._outcomes)
        samples.add_zeros(catalog.DEAD_LETTERS, OUTCOMES)

    # To the back end

    async def _retry(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        identity = await self._context.authorize(request, WRITE_SCOPE)
        parameters = self._context.spec["retryDeadLetters"].parse_parameters(request)
        group = get_group(self._context.section, parameters.get("group"))
        self._note_use(group.group, identity)
        queue = await self._open_queue(request, group.group, self._resolve_topic(parameters, group))
        result = await self._retry_batch(queue, group, parameters)
        timeout_s = parameters["timeout"] / 1000
        if timeout_s and not (result.letters or result.backend_failure):
            # Others may retry meanwhile.
            waiting = self._watches.fetch_dead_letters(queue, 1, 1, timeout_s)
            if await run_for_client(request, self._context.draining, waiting):
                result = await self._retry_batch(queue, group, parameters)
        if result.backend_failure and not result.letters:
            raise StatusError(
                503,
                f"the back end is away: {result.backend_failure}; nothing was changed, try again",
                code="BACKEND_UNAVAILABLE",
                retry_after=result.retry_after or None,
            )
        self._outcomes.update(result.counts)
        ranges = await queue.fetch_ranges()
        in_pass = self._passes[queue.group, queue.topic].limit_ranges(ranges)
        left, untried = (sum(map(len, each.values())) for each in (ranges, in_pass))
        return build_json_response(
            {**_format_result(queue, result), "left": left, "untried": untried}
        )

    async def _retry_batch(
        self, queue: DeadLetterQueue, group: Group, parameters: Parameters
    ) -> RetryResult:
        settings = self._context.section
        retry = DeadLetterRetry(
            queue,
            BackendClient(self._client, group.backend, accept_empty=group.accept_empty),
            BatchEncoder(self._context.codecs, settings, group, missing_schema_timeout_s=0.0),
            self._context.auditor,
        )
        key = queue.group, queue.topic
        # A request that waited here would send the back end the next batch, or the same one again,
        # after its client has gone.
        if key in self._retried_now:
            raise _create_retried_elsewhere(RETRY_DELAY_S)
        self._retried_now.add(key)
        try:
            async with self._changing_positions(*key) as transactions:
                retry_pass, most = self._passes[key], group.max_poll_records
                dead_letters, offsets = await queue.fetch_dead_letters(
                    retry_pass.max_records or most, group.request_max_bytes, retry_pass=retry_pass
                )
                result = await retry.retry_batch(
                    transactions, dead_letters, offsets, last=parameters["lastretry"]
                )
                retry_pass.adapt_batches(len(dead_letters), result, most)
        finally:
            self._retried_now.remove(key)
        return result

    def _resolve_topic(self, parameters: Parameters, group: Group) -> str:
        if "topic" in parameters:
            return str(parameters["topic"])
        if len(group.topics) != 1:
            topics = ", ".join(group.topics) or f"those of {group.pattern}"
            raise create_invalid_request("query topic", f"is missing; name one of {topics}")
        return group.topics[0]

    # To a program

    async def _list_letters(self, request: Request) -> Response:
        identity = await self._context.authorize(request, READ_SCOPE)
        parameters = self._context.spec["getDeadLetters"].parse_parameters(request)
        queue = await self._open_queue(request, parameters["group"], parameters["topic"])
        self._note_use(queue.group, identity)
        formats = self._build_formats(parameters)
        settings = self._context.section.consumer or ConsumerSettings()
        waiting = self._watches.fetch_dead_letters(
            queue,
            parameters.get("maxRecords", settings.max_poll_records),
            min(
                parameters.get("max_bytes", settings.request_max_bytes),
                max(MAX_LISTED_BYTES, settings.request_max_bytes),
            ),
            parameters["timeout"] / 1000,
        )
        dead_letters = await run_for_client(request, self._context.draining, waiting) or ()
        origins = [dead_letter.origin for dead_letter in dead_letters]
        sizes = [prefetched_size(origin) for origin in origins]
        with hold_records(self._context.client_memory, sizes) as held:
            records, _ = await render_records(
                self._context.codecs, held, origins, formats, text_headers,
                more_members=map(_format_letter, dead_letters),
            )  # fmt: skip
        check_lifetime(request.scope)
        return build_json_response(records)

    def _note_use(self, group: str, identity: str) -> None:
        """Keep the positions of a group from now on, if the client has a place for it."""
        if group in self._kept_groups:
            return
        if has_place(identity, list(self._kept_groups.values()), MAX_KEPT_GROUPS):
            self._kept_groups[group] = identity
        elif not self._is_full_logged:
            self._is_full_logged = True
            log.warning(
                "Kafka may forget the positions of %s: too many groups of programs are in use",
                group,
            )

    def _build_formats(self, parameters: Parameters) -> Callable[[str], Formats]:
        """Return a function from a topic to its formats; those of the request take precedence."""
        section = self._context.section
        named = [
            name and SerializationFormat.parse(name)
            for name in (parameters.get("keyFormat"), parameters.get("valueFormat"))
        ]

        def choose_formats(topic: str) -> Formats:
            key, value = get_formats(section, topic, section.consumer or ConsumerSettings())
            return named[0] or key, named[1] or value

        return choose_formats

    async def _commit(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        identity = await self._context.authorize(request, WRITE_SCOPE)
        data = await read_body(request, MAX_COMMIT_BYTES)
        async with take_turns():
            operation = self._context.spec["commitDeadLetters"]
            wanted = operation.parse_body(data, request.headers.get("content-type"))
        queue = await self._open_queue(request, wanted["group"], wanted["topic"])
        topic = await self._context.get_topic(queue.topic)
        offsets: dict[TopicPartition, int] = {}
        for index, entry in enumerate(wanted["offsets"]):
            if entry["partition"] not in topic.partitions:
                problem = f"{entry['partition']} is no partition of {queue.topic}"
                raise create_invalid_request(
                    f"offsets[{index}].partition", f"{problem}; give `deadLetter` as it came"
                )
            tp = TopicPartition(queue.topic, int(entry["partition"]))
            offsets[tp] = max(offsets.get(tp, 0), int(entry["offset"]) + 1)
        await check_offsets(self._context, offsets)
        behind = await self._commit_positions(queue, offsets)
        self._note_use(queue.group, identity)
        if behind:
            names = ", ".join(map(str, behind[:10]))
            problem = f"others have seen to dead letters of {names} meanwhile"
            advice = "list them again; offsets ahead of theirs are committed"
            raise StatusError(409, f"{problem}; {advice}")
        return Response(status_code=204)

    # From a program

    async def _accept_letters(self, request: Request) -> Response:
        await self._context.authorize(request, WRITE_SCOPE)
        operation = self._context.spec["writeDeadLetters"]
        data = await read_body(request, MAX_BODY_BYTES)
        parameters = operation.parse_parameters(request)
        async with take_turns() as turns:
            entries = operation.parse_body(data, request.headers.get("content-type"))
            items = [entry for entry in entries if not entry.get("processed", False)]
            topics = sorted({item["record"]["topic"] for item in items})
            formats = {topic: self._build_formats({})(topic) for topic in topics}
            for pair in set(formats.values()):
                _keep_exact_numbers(data, entries, formats, pair)
                await turns.pass_on()
        group = parameters["group"]
        await self._context.authorize(request, WRITE_SCOPE, topics, group)
        for topic in topics:
            check_writable(self._context, topic)
            check_not_dead_letters(self._context, topic)
            await self._context.get_topic(topic)
        writer = DeadLetterWriter(
            self._context, group, get_dead_letter_ext(self._context.section, group)
        )
        places = [await self._check_place(item, index) for index, item in enumerate(items)]
        dead: list[DeadLetterRecord] = []
        size = 0
        with GrowingReservation(self._context.client_memory, HeldPart.PARSED) as held:
            reading = self._read_records(places, held)
            found = await run_for_client(request, self._context.draining, reading)
            if found is None:
                raise StatusError(503, "the sidecar ends, and none is written; hand them in again")
            async with take_turns() as turns:
                for index, (item, place) in enumerate(zip(items, places, strict=True)):
                    if turns.is_over():
                        await turns.pass_on()
                    if (record := found.get(place)) is None:
                        pair = formats[place[0].topic]
                        record = await self._encode_record(turns, item, index, pair)
                        held.grow(prefetched_size(record))
                    size += record if isinstance(record, int) else prefetched_size(record)
                    if size > MAX_ACCEPTED_BYTES and index:
                        problem = f"{index + 1} records have over {MAX_ACCEPTED_BYTES} bytes"
                        advice = f"none is written, hand in {index} of them at once"
                        raise StatusError(413, f"{problem} in Kafka; {advice}")
                    if isinstance(record, Record):
                        dead.append(_build_dead_letter(record, item))
            unwritten, reason, refused = await writer.write(dead)
        if unwritten:
            problem = f"{len(unwritten)} of {len(dead)} are not known to be written: {reason}"
            if len(unwritten) == len(dead):
                raise BrokerUnavailable(problem)
            raise create_partly_written(problem)
        refused_ids = set(map(id, refused))
        written = [dead_letter for dead_letter in dead if id(dead_letter) not in refused_ids]
        self._outcomes["written"] += len(written)
        if (auditor := self._context.auditor) is not None:
            for dead_letter in written:
                record = dead_letter.record
                origin = record.tp, record.offset, record.key
                auditor.record(AuditEvent("ACTIVE_CONSUMER", *origin, error=dead_letter.reason))
        if refused:
            raise create_too_large(refused, len(written))
        return build_json_response({"written": len(dead), "processed": len(entries) - len(items)})

    async def _check_place(self, item: Parameters, index: int) -> Place:
        """Return where Kafka has a record; raises StatusError 400 for an unknown partition."""
        tp = parse_tp(item["record"])
        topic = await self._context.get_topic(tp.topic)
        if tp.partition not in topic.partitions:
            raise create_invalid_request(
                f"[{index}].record.partition", f"{tp.partition} is no partition of {tp.topic}"
            )
        return tp, int(item["record"]["offset"])

    async def _read_records(
        self, places: Sequence[Place], held: GrowingReservation
    ) -> dict[Place, Record | int]:
        """Read the records that Kafka still has, each batch once.

        Behind MAX_ACCEPTED_BYTES only their sizes are kept, to tell how many may be handed in.
        """
        offsets: dict[TopicPartition, list[int]] = {}
        for tp, offset in places:
            offsets.setdefault(tp, []).append(offset)
        found: dict[Place, Record | int] = {}
        size = 0
        for tp in offsets:
            records = iter_records_at(self._context.cluster, tp, offsets[tp], self._reads)
            async with aclosing(records):
                async for record in records:
                    size += prefetched_size(record)
                    is_kept = size <= MAX_ACCEPTED_BYTES or not found
                    held.grow(prefetched_size(record) if is_kept else 0)
                    found[tp, record.offset] = record if is_kept else prefetched_size(record)
        return found

    async def _encode_record(
        self, turns: Turns, item: Parameters, index: int, formats: Formats
    ) -> Record:
        """Return a record as it was sent here; raises StatusError 400 if it has no value."""
        fields = item["record"]
        if "value" not in fields:
            problem = "is not in Kafka any more; hand in its value, too"
            raise create_invalid_request(f"[{index}].record", problem)
        tp = parse_tp(fields)
        encode, codecs = turns.encode, self._context.codecs
        key, value = fields.get("key"), fields["value"]
        return Record(
            tp,
            int(fields["offset"]),
            -1,
            int(fields.get("timestamp") or 0),
            (await encode(codecs, formats[0], tp.topic, True, key)).data,
            (await encode(codecs, formats[1], tp.topic, False, value)).data,
            parse_headers(fields.get("headers") or {}),
        )

    # Both

    async def _open_queue(self, request: Request, group: str, topic: str) -> DeadLetterQueue:
        """Return the queue of a group in a topic, of records or of dead letters.

        The request is authorized for it. UnknownTopic is raised for a topic without dead letters,
        too.
        """
        ext = get_dead_letter_ext(self._context.section, group)
        origin = topic.removesuffix(ext) or topic
        await self._context.authorize(request, READ_SCOPE, [origin], group)
        name = origin + ext
        try:
            await self._context.get_topic(name)
        except UnknownTopic:
            if origin in (await self._context.cluster.list_topics()):
                problem = f"{origin} has no dead letters; {name} is created with the first of them"
                raise UnknownTopic(problem, topic=name) from None
            raise
        return DeadLetterQueue(self._context.cluster, name, group, ext, self._reads)


def _format_result(queue: DeadLetterQueue, result: RetryResult) -> dict[str, Any]:
    counts = result.counts
    return {
        "group": queue.group,
        "topic": queue.topic,
        "processed": counts["processed"],
        "returned": counts["returned"],
        "parked": counts["parked"],
        "error": result.backend_failure or None,
        "records": [
            {
                "record": {
                    "topic": retried.queued.message.origin.topic,
                    "partition": retried.queued.message.origin.partition,
                    "offset": retried.queued.message.offset,
                },
                "processed": retried.outcome == "processed",
                "outcome": retried.outcome,
                "retries": retried.queued.message.retries + 1,
                "stacktrace": retried.reason or None,
            }
            for retried in result.letters
        ],
    }


def _format_letter(queued: QueuedDeadLetter) -> dict[str, Any]:
    message, record = queued.message, queued.record
    return {
        "correlationId": message.correlation_id,
        "traceabilityId": message.traceability_id or None,
        "group": message.group or None,
        "retries": message.retries,
        "stacktrace": message.stacktrace,
        "deadLetter": {
            "topic": record.tp.topic,
            "partition": record.tp.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
        },
    }


def _keep_exact_numbers(
    data: bytes, entries: Sequence[Any], formats: Mapping[str, Formats], pair: Formats
) -> None:
    """Keep them in the records of all topics of a pair of formats: it parses the whole body."""
    indexes = [
        index
        for index, entry in enumerate(entries)
        if not entry.get("processed", False) and formats[entry["record"]["topic"]] == pair
    ]

    def select_records(parsed: Sequence[Any]) -> list[Any]:
        return [parsed[index]["record"] for index in indexes]

    names = dict(zip(("key", "value"), pair, strict=True))
    keep_exact_numbers(data, entries, select_records(entries), names, select_records=select_records)


def _build_dead_letter(record: Record, item: Parameters) -> DeadLetterRecord:
    """Return a dead letter with the ids with which a program has sent it, if it has."""
    fields = item["record"]
    return DeadLetterRecord(
        record,
        item.get("stacktrace") or item.get("error") or UNEXPLAINED_REASON,
        item.get("correlationId") or fields.get("correlationId") or "",
        item.get("traceabilityId") or fields.get("traceabilityId") or "",
    )


def _create_retried_elsewhere(delay_s: float) -> StatusError:
    problem = "another request retries the same dead letters now; leave it to that, or try later"
    return StatusError(409, problem, code="RETRIED_ELSEWHERE", retry_after=delay_s)


def create_too_large(refused: Sequence[DeadLetterRecord], written: int) -> StatusError:
    """Return the error of records that their topic of dead letters refuses."""
    places = [f"{each.record.tp} offset {each.record.offset}" for each in refused[:10]]
    problem = f"{len(refused)} are too large for their topic of dead letters: {', '.join(places)}"
    advice = f"the other {written} are written; raise max.message.bytes of the topic, then hand in"
    return StatusError(413, f"{problem}; {advice} these alone", code="RECORDS_TOO_LARGE")


def create_partly_written(problem: str) -> StatusError:
    return StatusError(503, f"{problem}; those may be sent again", code="PARTLY_WRITTEN")
