"""The part `replay`: replays are ordered, watched, cancelled, and worked on.

Any sidecar answers for all of them; the one that was asked works on it, and where that is gone
another one does within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.core.delivery.replay import Destination, Replay, ReplayState, Span
from gateway.core.log.record import TopicPartition
from gateway.kafka.fetch.committed_read import fetch_log_bounds, fetch_offsets_for_time
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.backends import get_group
from gateway.sidecar.component import NotReady
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import READ_SCOPE, WRITE_SCOPE
from gateway.sidecar.http.body import read_body
from gateway.sidecar.http.spec import create_invalid_request
from gateway.sidecar.http.status import StatusError, build_json_response
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .delivery import BackendReplayDelivery
from .job import ReplayJob, end_replay
from .rendering import render_replay
from .store import ReplayStore

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 10  # bytes of a request
MAX_JOBS = 16  # replays that one sidecar works on at a time
STOP_TIMEOUT_S = 3.0  # seconds for the steps that are under way at the end
LOAD_TIMEOUT_S = 5.0  # seconds that a request waits for a sidecar that has just begun
TAKEOVER_INTERVAL_S = 0.5  # seconds between looks for those that nobody works on


class ReplayComponent:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.replay
        assert settings is not None
        self._context = context
        self._store = ReplayStore(context, settings.topic)
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._jobs: dict[str, tuple[ReplayJob, asyncio.Task[None]]] = {}
        # to a back end in the same pod, past any proxy
        self._client = httpx.AsyncClient(trust_env=False, timeout=None, follow_redirects=False)
        self.routes: Sequence[BaseRoute] = [
            Route("/replays", self._create_replay, methods=["POST"]),
            Route("/replays", self._list, methods=["GET"]),
            Route("/replays/{id}", self._get_replay, methods=["GET"]),
            Route("/replays/{id}", self._cancel, methods=["DELETE"]),
        ]

    async def run(self) -> None:
        reading = asyncio.create_task(self._store.run())
        try:
            while True:
                await asyncio.sleep(TAKEOVER_INTERVAL_S)
                if reading.done():
                    reading.result()
                self._take_over_abandoned()
        finally:
            await self._stop()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await self._client.aclose()

    async def _stop(self) -> None:
        """Others go on with what is given free here, without waiting."""
        for job, _ in self._jobs.values():
            job.stop()
        tasks = [task for _, task in self._jobs.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def check_ready(self) -> None:
        if self._store.failure is not None:
            raise NotReady("replay", self._store.failure)

    def collect_metrics(self, samples: MetricSamples) -> None:
        """Adds what a scrape wants to know."""
        states = dict.fromkeys(ReplayState, 0)
        for replay in self._store.replays:
            states[replay.state] += 1
        for state, count in states.items():
            samples.add(catalog.REPLAYS, count, state)
        samples.add(catalog.REPLAYS_OWNED, len(self._jobs))

    # work

    def _take_over_abandoned(self) -> None:
        if self._store.failure is not None:
            return
        for id in self._store.replays.list_abandoned(asyncio.get_running_loop().time()):
            replay = self._store.replays.get(id)
            if replay is not None and id not in self._jobs and len(self._jobs) < MAX_JOBS:
                self._start_job(replay)

    def _start_job(self, replay: Replay, transactions: TransactionalProducer | None = None) -> None:
        delivery = None
        if replay.destination is Destination.BACKEND:
            try:
                group = get_group(self._context.section, replay.group)
            except StatusError:
                return  # of another configuration
            delivery = BackendReplayDelivery(self._context, group, self._client, replay.id)
        job = ReplayJob(
            self._context, self._store, replay.id, self._owner, delivery, transactions=transactions
        )
        task = asyncio.create_task(self._run_job(job, delivery))
        self._jobs[replay.id] = job, task
        task.add_done_callback(lambda done: self._on_job_done(replay.id, done))

    async def _run_job(self, job: ReplayJob, delivery: BackendReplayDelivery | None) -> None:
        log.info("replay %s is worked on here", job.id)
        try:
            await job.run()
        finally:
            if delivery is not None:
                delivery.close()

    def _on_job_done(self, id: str, task: asyncio.Task[None]) -> None:
        self._jobs.pop(id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("replay %s failed unexpectedly", id, exc_info=task.exception())

    # over HTTP

    async def _create_replay(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        data = await read_body(request, MAX_BODY_BYTES)
        operation = self._context.spec["startReplay"]
        given = operation.parse_body(data, request.headers.get("content-type"))
        # 1.0 is an integer in JSON, and none to Kafka
        body: dict[str, Any] = {
            name: int(each) if isinstance(each, float) else each for name, each in given.items()
        }
        group = self._parse_group(body)
        await self._context.authorize(request, READ_SCOPE, [body["topic"]], group or None)
        target = self._parse_target(body)
        by = ""
        if target:
            by = await self._context.authorize(request, WRITE_SCOPE, [target])
            await self._context.get_topic(target)
        replay = await self._build_replay(body, target, group, by)
        await self._wait_until_loaded()
        transactions = self._store.create_transactions(replay.id)
        await transactions.start()
        if len(self._jobs) < MAX_JOBS:
            replay = replay.with_owner(self._owner, replay.created)
        await transactions.commit([self._store.build_write(replay)])
        if replay.owner:
            self._start_job(replay, transactions)
        log.info("replay %s: %s to %s", replay.id, replay.topic, target or "the back end")
        return build_json_response(
            render_replay(replay, 0.0), 202, {"Location": f"/replays/{replay.id}"}
        )

    def _parse_group(self, body: Mapping[str, Any]) -> str:
        group: str | None = body.get("consumerGroup")
        if body["destination"] == Destination.BACKEND:
            return get_group(self._context.section, group).group
        return group or ""

    @staticmethod
    def _parse_target(body: Mapping[str, Any]) -> str:
        target: str = body.get("destinationTopic") or ""
        if body["destination"] == Destination.TOPIC and not target:
            raise create_invalid_request(
                "destinationTopic", "is missing; name the topic that gets the copies"
            )
        if body["destination"] == Destination.BACKEND and target:
            raise create_invalid_request(
                "destinationTopic", "is given, and the destination is the back end"
            )
        return target

    async def _build_replay(
        self, body: Mapping[str, Any], target: str, group: str, by: str
    ) -> Replay:
        known = await self._context.get_topic(body["topic"])
        now = time.time_ns() // 1_000_000
        replay = Replay(
            uuid.uuid4().hex,
            known.name,
            Destination(body["destination"]),
            target,
            group,
            {},
            now,
            now,
            by,
        )
        return await self._add_spans(replay, body, known)

    async def _add_spans(
        self, replay: Replay, body: Mapping[str, Any], known: TopicMetadata
    ) -> Replay:
        """With what is to be read: up to what is there now, at most."""
        tps = _parse_partitions(body, known)
        logs = await fetch_log_bounds(self._context.cluster, tps)
        starts = {tp: body.get("startOffset", log.start) for tp, log in logs.items()}
        if "startTime" in body:
            found = await fetch_offsets_for_time(
                self._context.cluster, tps, _parse_timestamp(body["startTime"])
            )
            starts = {tp: logs[tp].stop if at < 0 else at for tp, at in found.items()}
        spans, late = {}, []
        for tp, log_range in logs.items():
            stop = min(body.get("endOffset", log_range.stop), log_range.stop)
            start = min(starts[tp], stop)
            spans[tp.partition] = Span(start, stop, start)
            if start < log_range.start:
                late.append((tp.partition, min(log_range.start, stop)))
        made = replace(replay, spans=spans)
        for partition, first in late:
            made = made.with_missing(partition, first, made.updated)
        return made

    async def _list(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        await self._wait_until_loaded()
        return build_json_response([self._render(each) for each in self._store.replays])

    async def _get_replay(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        replay = await self._find_replay(request)
        await self._context.authorize(request, READ_SCOPE, [replay.topic])
        return build_json_response(self._render(replay))

    async def _cancel(self, request: Request) -> Response:
        await self._context.authorize(request, WRITE_SCOPE)
        replay = await self._find_replay(request)
        await self._context.authorize(request, WRITE_SCOPE, [replay.target or replay.topic])
        ended = await end_replay(
            self._store,
            self._store.create_transactions(replay.id),
            replay.id,
            ReplayState.CANCELLED,
        )
        if ended is None:
            state = (self._store.replays.get(replay.id) or replay).state
            what = f"replay {replay.id} is {state} already; nothing is to be cancelled"
            raise StatusError(409, what, code="REPLAY_ENDED")
        log.info("replay %s is cancelled", replay.id)
        return build_json_response(render_replay(ended, 0.0))

    async def _find_replay(self, request: Request) -> Replay:
        """Raises Refusal 404."""
        await self._wait_until_loaded()
        id = request.path_params["id"]
        replay = self._store.replays.get(id)
        if replay is None:  # another one may have made it a moment ago
            await self._store.wait_until_read()
            replay = self._store.replays.get(id)
        if replay is None:
            what = f"there is no replay {id[:80]}; GET /replays lists them"
            raise StatusError(404, what, code="REPLAY_NOT_FOUND")
        return replay

    async def _wait_until_loaded(self) -> None:
        """Waits a moment for what there is to be read."""
        self._context.require_kafka()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._store.loaded.wait()
        except TimeoutError:
            pass  # the check says why
        await self.check_ready()

    def _render(self, replay: Replay) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        return render_replay(replay, self._store.replays.get_rate(replay.id, now))


def _parse_partitions(body: Mapping[str, Any], known: TopicMetadata) -> list[TopicPartition]:
    number = body.get("partition")
    if number is not None and number not in known.partitions:
        what = f"{number} is none of {known.name}, which has {len(known.partitions)}"
        raise create_invalid_request("partition", what)
    if number is None and len(known.partitions) > 1:
        for name in ("startOffset", "endOffset"):
            if name in body:
                raise create_invalid_request(
                    name, "is of one partition; add partition, or use startTime"
                )
    if "startOffset" in body and "startTime" in body:
        raise create_invalid_request(
            "startTime", "is given, and startOffset, too; give one of them"
        )
    numbers = known.partitions if number is None else [number]
    return [TopicPartition(known.name, each) for each in sorted(numbers)]


def _parse_timestamp(given: int | str) -> int:
    """Of milliseconds, or of a time as ISO 8601 has it; UTC where it has no zone."""
    if isinstance(given, int):
        return given
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        what = f"'{given[:80]}' is no time; write 2026-01-31T12:00:00Z, or milliseconds"
        raise create_invalid_request("startTime", what) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1000))
