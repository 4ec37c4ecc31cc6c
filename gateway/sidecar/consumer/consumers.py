"""The part `consumer`: instances that are created, subscribed and asked for records over HTTP.

Paths and bodies are the contract's; Confluent's dialect (`v2`) is served at the same paths, and at
those that it names otherwise. Offsets that a client commits are those of the last records it is
through with, as in Confluent's proxy: what the group goes on from is the next.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GatewayError
from gateway.kafka.protocol.group_messages import Committed
from gateway.sidecar.context import Context, Unaudited
from gateway.sidecar.http.body import read
from gateway.sidecar.http.ids import CORRELATION, TRACEABILITY
from gateway.sidecar.http.scope import READ, WRITE
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal
from gateway.sidecar.topics import described, exist
from gateway.sidecar.v2 import errors as v2_errors
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT, answered_as
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .base_uri import base_uri
from .delivery import Delivery
from .dialect import Contract, Dialect, Slashed, ambiguous, listed
from .instance import Instance, meant
from .instance_options import LONGEST_WAIT, Wishes, pattern_of
from .instances import NOT_FOUND, Instances
from .record_json import shown

log = logging.getLogger(__name__)

LARGEST = 1 << 20  # bytes of a body
LATEST_TIME = 253_402_300_799_999  # ms: the end of the year 9999
ROOT = "/consumers/{group}"
ONE = ROOT + "/instances/{instance}"

CONTRACT = Contract()

Handler = Callable[[Request, Dialect], Awaitable[Response]]
OfInstance = Callable[[Request, Dialect, Instance], Awaitable[Response]]


class Consumers:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.consumer
        assert settings is not None
        self._context = context
        self._settings = settings
        self._instances = Instances(context.cluster, settings)
        self._records: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._polls: Counter[str] = Counter()
        one = self._of_instance
        self.routes: Sequence[BaseRoute] = [
            Slashed(f"{ONE}/records", one(self._poll, READ), "GET"),
            Slashed(f"{ONE}/offsets", one(self._commit, WRITE), "POST"),
            Slashed(f"{ONE}/offsets", one(self._committed, WRITE), "PUT"),
            Slashed(f"{ONE}/offsets", one(self._committed, READ), "GET"),
            Slashed(ROOT, self._asked(self._create), "POST"),
            Slashed(ONE, one(self._delete, WRITE), "DELETE"),
            *self._subscriptions(f"{ONE}/subscriptions"),
            *self._subscriptions(f"{ONE}/subscription"),
            Slashed(f"{ONE}/assignments", one(self._assign, WRITE), "POST"),
            Slashed(f"{ONE}/assignments", one(self._assigned, READ), "GET"),
            Slashed(f"{ONE}/positions", one(self._seek, WRITE), "POST"),
            Slashed(f"{ONE}/positions/first", one(self._first, WRITE), "POST"),
            Slashed(f"{ONE}/positions/beginning", one(self._first, WRITE), "POST"),
            Slashed(f"{ONE}/positions/last", one(self._last, WRITE), "POST"),
            Slashed(f"{ONE}/positions/end", one(self._last, WRITE), "POST"),
        ]

    def _subscriptions(self, path: str) -> Sequence[BaseRoute]:
        one = self._of_instance
        return [
            Slashed(path, one(self._subscribe, WRITE), "POST"),
            Slashed(path, one(self._subscribed, READ), "GET"),
            Slashed(path, one(self._unsubscribe, WRITE), "DELETE"),
        ]

    async def run(self) -> None:
        await self._instances.run()

    async def check(self) -> None:
        """Kafka is checked for all parts; an instance that cannot join says so to who asks it."""

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        states: Counter[str] = Counter({"idle": 0, "subscribed": 0})
        states.update("subscribed" if each.subscribed else "idle" for each in self._instances)
        figures.count(catalog.CONSUMER_INSTANCES, states)
        figures.add(catalog.CONSUMER_CREATED, self._instances.created)
        figures.count(catalog.CONSUMER_ENDED, self._instances.ended)
        figures.add(catalog.CONSUMER_POLLING, sum(each.polling for each in self._instances))
        figures.count(catalog.CONSUMER_POLLS, self._polls)
        figures.count(catalog.CONSUMER_RECORDS, self._records)
        figures.count(catalog.CONSUMER_BYTES, self._bytes)

    # who asks, and in whose words

    def _asked(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            dialect: Dialect = CONFLUENT if media.speaks(request.headers) else CONTRACT
            try:
                return await handler(request, dialect)
            except Exception as exc:
                return self._refused(request, dialect, exc)

        return endpoint

    def _of_instance(
        self, handler: OfInstance, scope: str
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            of_v2 = media.speaks(request.headers)
            dialect: Dialect = CONFLUENT if of_v2 else CONTRACT
            group, name = request.path_params["group"], request.path_params["instance"]
            try:
                identity = await self._context.scope(request, scope, (), group)
                instance = self._instances.get(group, name, identity)
                dialect = CONFLUENT if of_v2 or instance.dialect == CONFLUENT.name else CONTRACT
                with self._instances.used(instance):
                    made = await handler(request, dialect, instance)
                    if isinstance(made, Delivery):  # made while it is sent: still in use
                        await made(request.scope, request.receive, request._send)
                        return Sent()
                    return made
            except Refusal as exc:
                if exc.code == NOT_FOUND and not of_v2 and dialect is CONTRACT:
                    return ambiguous(exc, v2_errors.INSTANCE)
                return self._refused(request, dialect, exc)
            except Exception as exc:
                return self._refused(request, dialect, exc)

        return endpoint

    def _refused(self, request: Request, dialect: Dialect, exc: Exception) -> Response:
        exc = meant(exc)
        if isinstance(exc, GatewayError):
            log.debug("%s %s: %s", request.method, request.url.path, exc)
            return dialect.refusal(request, exc)
        if dialect is CONTRACT:
            raise exc
        return dialect.refusal(request, exc)

    async def _body(self, request: Request, dialect: Dialect, operation: str) -> Any:
        data = await read(request, LARGEST)
        kind = request.headers.get("content-type")
        return dialect.body(self._context.spec[operation], data, kind)

    # instances

    async def _create(self, request: Request, dialect: Dialect) -> Response:
        group = request.path_params["group"]
        identity = await self._context.scope(request, WRITE, (), group)
        try:
            self._context.spec["createConsumerInstanceInGroup"].parameters(request)
            body = await self._body(request, dialect, "createConsumerInstanceInGroup")
            wishes = Wishes.of(body or {}, self._settings)
        except Refusal as exc:
            raise v2_errors.misconfigured(exc) if dialect is CONFLUENT else exc from None
        answered_as(request, strictly=dialect is CONFLUENT)
        made = self._instances.add(
            group, wishes, dialect=dialect.name, identity=identity, audit=self._context.audit
        )
        uri = base_uri(request, self._settings.base_uri, group, made.name)
        return dialect.answer(request, dialect.created(made.name, uri))

    async def _delete(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        await self._instances.remove(instance)
        return Response(status_code=204)

    # what is read

    async def _subscribe(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        body = await self._body(request, dialect, "subscribeTopics")
        topics, pattern = body.get("topics"), body.get("topic_pattern")
        if topics is not None and pattern is not None:
            what = "either topics or topic_pattern; leave out one of them"
            raise Refusal(409, f"a subscription has {what}", code="OTHER_SUBSCRIPTION")
        try:
            if not topics and not pattern:
                raise wrong("topics", "is empty; name topics, or give a topic_pattern")
            compiled = None if pattern is None else pattern_of(pattern)
        except Refusal as exc:
            raise v2_errors.invalid(exc) if dialect is CONFLUENT else exc from None
        for topic in topics or ():  # a name that is misspelt would give no records for ever
            await described(self._context, topic)
        await self._context.scope(request, WRITE, topics or (), instance.group)
        async with instance.turn():
            instance.subscribe(topics or (), compiled)
        return Response(status_code=204)

    async def _subscribed(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        topics: Sequence[str] = instance.topics
        pattern = instance.pattern
        if pattern is not None:
            names = await self._context.cluster.topics()
            topics = sorted(each for each in names if _matches(pattern, each))
        return dialect.answer(request, dialect.topics(instance, topics))

    async def _unsubscribe(
        self, request: Request, dialect: Dialect, instance: Instance
    ) -> Response:
        async with instance.turn():
            await instance.unsubscribe()
        return Response(status_code=204)

    async def _assign(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        body = await self._body(request, dialect, "assignPartitions")
        tps = _partitions(body, "partitions")
        await exist(self._context, tps)
        async with instance.turn():
            await instance.assign(tps)
        return Response(status_code=204)

    async def _assigned(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        return dialect.answer(request, dialect.partitions(instance.assignment))

    # positions

    async def _seek(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        body = await self._body(request, dialect, "overrideFetchOffset")
        offsets = {_tp(each): int(each["offset"]) for each in body.get("offsets") or ()}
        times: dict[TopicPartition, int | str] = {
            _tp(each): _milliseconds(each["timestamp"]) for each in body.get("timestamps") or ()
        }
        async with instance.turn():
            await instance.seek(offsets)
            await instance.seek_to(times)
        return Response(status_code=204)

    async def _first(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        return await self._seek_to(request, dialect, instance, "seekFirstOffset", "first")

    async def _last(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        return await self._seek_to(request, dialect, instance, "seekLastOffset", "last")

    async def _seek_to(
        self, request: Request, dialect: Dialect, instance: Instance, operation: str, where: str
    ) -> Response:
        body = await self._body(request, dialect, operation)
        tps = _partitions(body, "partitions")
        async with instance.turn():
            await instance.seek_to(dict.fromkeys(tps, where))
        return Response(status_code=204)

    # offsets

    async def _commit(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        body = await self._body(request, dialect, "commmitConsumerOffsets")
        given = (body or {}).get("offsets")
        offsets: Mapping[TopicPartition, Committed] | None = None
        if given:
            offsets = {
                _tp(each): Committed(int(each["offset"]) + 1, metadata=each.get("metadata") or "")
                for each in given
            }
            await exist(self._context, offsets)
        committed = await instance.commit(offsets)
        return dialect.answer(request, _offsets(committed))

    async def _committed(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        body = await self._body(request, dialect, "getCommittedOffsets")
        tps = _partitions(body or {}, "partitions") or _partitions(body or {}, "offsets")
        await exist(self._context, tps)
        return dialect.answer(request, _offsets(await instance.committed(tps)))

    # records

    async def _poll(self, request: Request, dialect: Dialect, instance: Instance) -> Response:
        answered_as(request, strictly=dialect is CONFLUENT)
        try:
            given = self._context.spec["fetchTopicData"].parameters(request)
        except Refusal as exc:
            raise v2_errors.invalid(exc) if dialect is CONFLUENT else exc from None
        formats = dialect.formats(request, instance, self._context)
        headers = dialect.headers(request)
        wait = min(given.get("timeout", instance.wishes.wait * 1000), LONGEST_WAIT) / 1000
        most = max(1, given.get("max_bytes", self._settings.request_max_bytes))
        least = max(1, given.get("responseMinBytes", instance.wishes.min_bytes))

        async def polled(left: float, gone: asyncio.Future[Any]) -> Sequence[Record]:
            records = await instance.poll(left, most, least, self._context.draining, gone)
            if not records:
                self._context.reachable()
            return records

        async def written(records: Sequence[Record]) -> Response:
            codecs = self._context.codecs
            body = await shown(codecs, records, formats, headers, bare=dialect.bare)
            return dialect.records(request, instance, body)

        return Delivery(
            instance, wait, polled, written, self._told,
            lambda exc: self._refused(request, dialect, exc),
        )  # fmt: skip

    def _told(self, records: Sequence[Record], arrived: bool) -> None:
        self._polls["left" if not arrived else "records" if records else "empty"] += 1
        if not arrived:
            return
        for topic in {record.tp.topic for record in records}:
            some = [each for each in records if each.tp.topic == topic]
            self._records[topic] += len(some)
            self._bytes[topic] += sum(len(r.key or b"") + len(r.value or b"") for r in some)
        if isinstance(self._context.audit, Unaudited):
            return
        for record in records:
            said = {name: (value or b"").decode("latin-1") for name, value in record.headers}
            self._context.audit.consumed(
                *record.tp, record.offset, record.key,
                correlation=said.get(CORRELATION, ""), traceability=said.get(TRACEABILITY, ""),
            )  # fmt: skip


class Sent(Response):
    """What was answered already."""

    async def __call__(self, *_: Any) -> None:
        return None


def _matches(pattern: re.Pattern[str], topic: str) -> bool:
    return pattern.fullmatch(topic) is not None and not topic.startswith("__")


def _tp(given: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(given["topic"], int(given["partition"]))


def _partitions(body: Mapping[str, Any], name: str) -> list[TopicPartition]:
    return list(dict.fromkeys(_tp(each) for each in body.get(name) or ()))


def _offsets(committed: Mapping[TopicPartition, Committed]) -> dict[str, Any]:
    return {
        "offsets": [
            {**each, "offset": one.offset, "metadata": one.metadata or ""}
            for each, one in zip(
                listed(committed), (committed[tp] for tp in sorted(committed)), strict=True
            )
        ]
    }


def _milliseconds(given: Any) -> int:
    """Of a time by RFC 3339, or milliseconds since 1970. Raises Refusal 400."""
    text = str(given).strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
        found = int(text)
    else:
        try:
            at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                at = at.replace(tzinfo=UTC)
            found = round(at.timestamp() * 1000)
        except (ValueError, OverflowError):
            what = "is no time; write such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
            raise wrong("timestamps", what) from None
    if not 0 <= found <= LATEST_TIME:
        raise wrong("timestamps", "is out of range; use a time from 1970 to 9999")
    return found
