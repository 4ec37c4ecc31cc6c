"""Start, list and cancel replays, and work on them.

Any sidecar answers about all replays. The one that got the request works on the replay; if that is
gone, another one takes it over within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.background_tasks import BackgroundTasks, run_supervised
from gateway.client_memory import GrowingReservation, HeldPart
from gateway.core.delivery.replay import Destination, Replay, ReplayState, Span
from gateway.core.log.record import TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.kafka.fetch.bounded_read import fetch_log_bounds, fetch_offsets
from gateway.kafka.produce.transactional_producer import TransactionalProducer
from gateway.kafka.protocol.requests import TopicMetadata
from gateway.sidecar.context import Component, Context
from gateway.sidecar.http.middleware import READ_SCOPE, WRITE_SCOPE, has_place
from gateway.sidecar.http.spec import create_invalid_request, parse_timestamp
from gateway.sidecar.http.status import NotReady, StatusError, build_json_response
from gateway.sidecar.lookups import check_not_dead_letters, check_writable, get_group
from gateway.sidecar.reactive.backend import create_http_client
from gateway.sidecar.turns import take_turns
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .job import BackendDelivery, ReplayJob, end_replay
from .store import ReplayStore, render_replay

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 10
MAX_RUNNING = 400  # replays, of all sidecars
MAX_JOBS = 16  # replays that one sidecar works on at a time
STOP_TIMEOUT_S = 3.0  # for the steps in progress when the sidecar ends
LOAD_TIMEOUT_S = 5.0  # for a request to wait until a sidecar that has just started is ready
TAKEOVER_INTERVAL_S = 0.5  # between two checks for replays that nobody works on


class ReplayComponent(Component):
    def __init__(self, context: Context) -> None:
        settings = context.section.replay
        assert settings is not None
        self._context = context
        self._store = ReplayStore(context, settings.topic)
        # Distinguishes processes, also those that a restart in the same container replaced.
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        # With the client that started the replay, by the replay's id.
        self._jobs: dict[str, tuple[str, ReplayJob]] = {}
        self._job_tasks = BackgroundTasks(log)
        self._stalled: dict[str, str] = {}  # why nobody works on a replay, by its id
        self._client = create_http_client()
        self.routes = [
            Route("/replays", self._create_replay, methods=["POST"]),
            Route("/replays", self._list, methods=["GET"]),
            Route("/replays/{id}", self._get_replay, methods=["GET"]),
            Route("/replays/{id}", self._cancel, methods=["DELETE"]),
        ]

    async def run(self) -> None:
        async with aclosing(self._client):  # not by a failure: jobs begin again after it
            await run_supervised(self._run_jobs, "replays")

    async def _run_jobs(self) -> None:
        store_task = asyncio.create_task(self._store.run())
        try:
            while True:
                await asyncio.sleep(TAKEOVER_INTERVAL_S)
                if store_task.done():
                    store_task.result()
                self._take_over_abandoned()
        finally:
            # Other sidecars continue those jobs that have time to release their replay.
            for _, job in self._jobs.values():
                job.stop()
            await self._job_tasks.close(STOP_TIMEOUT_S)
            store_task.cancel()
            await asyncio.gather(store_task, return_exceptions=True)

    async def check_ready(self) -> None:
        if self._store.failure is not None:
            raise NotReady("replay", self._store.failure)

    def collect_metrics(self, samples: MetricSamples) -> None:
        states = dict.fromkeys(ReplayState, 0)
        for replay in self._store.replays:
            states[replay.state] += 1
        for state, count in states.items():
            samples.add(catalog.REPLAYS, count, state)
        samples.add(catalog.REPLAYS_OWNED, len(self._jobs))

    # Jobs

    def _take_over_abandoned(self) -> None:
        """Start jobs for replays whose owner has released them, or has not been heard of."""
        if self._store.failure is not None:
            return
        stalled = {}
        for id in self._store.replays.list_abandoned(asyncio.get_running_loop().time()):
            replay = self._store.replays.get(id)
            if replay is not None and id not in self._jobs and self._has_place(replay):
                try:
                    self._start_job(replay)
                except StatusError as exc:  # a sidecar with another configuration may take it
                    stalled[id] = f"no sidecar works on it, and in this one {exc}"
                    if id not in self._stalled:
                        log.warning("replay %s waits: %s", id, stalled[id])
        self._stalled = stalled

    def _has_place(self, replay: Replay) -> bool:
        return has_place(replay.by, [client for client, _ in self._jobs.values()], MAX_JOBS)

    def _start_job(self, replay: Replay, transactions: TransactionalProducer | None = None) -> None:
        """Start the job of a replay; raises StatusError if its back end is not configured here."""
        delivery = None
        if replay.destination is Destination.BACKEND:
            group = get_group(self._context.section, replay.group)
            delivery = BackendDelivery(self._context, group, self._client, replay.id)
        job = ReplayJob(
            self._context, self._store, replay.id, self._owner, delivery, transactions=transactions
        )
        self._jobs[replay.id] = replay.by, job
        task = self._job_tasks.start(self._run_job(job, delivery), f"replay {replay.id}")
        task.add_done_callback(lambda _: self._jobs.pop(replay.id, None))

    async def _run_job(self, job: ReplayJob, delivery: BackendDelivery | None) -> None:
        log.info("replay %s runs in this process", job.id)
        try:
            await job.run()
        finally:
            if delivery is not None:
                delivery.close()

    # Requests

    async def _create_replay(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        identity = await self._context.authorize(request, WRITE_SCOPE)
        fields = await self._context.spec["startReplay"].read_body(request, MAX_BODY_BYTES)
        # 1.0 is an integer to JSON Schema, and a float to Python.
        body: dict[str, Any] = {
            name: int(value) if isinstance(value, float) else value
            for name, value in fields.items()
        }
        group = self._parse_group(body)
        await self._context.authorize(request, READ_SCOPE, [body["topic"]], group or None)
        target = self._parse_target(body)
        if target:
            await self._context.authorize(request, WRITE_SCOPE, [target])
            check_writable(self._context, target)
        else:  # what fails at the back end becomes a dead letter
            check_not_dead_letters(self._context, body["topic"])
        replay = await self._build_replay(body, target, group, identity)
        await self._wait_until_loaded()
        running = [each.by for each in self._store.replays if each.is_running]
        if not has_place(identity, running, MAX_RUNNING):
            problem = f"{len(running)} replays run, or too many of them are yours"
            advice = "wait until some are done, or cancel some"
            raise StatusError(429, f"{problem}; {advice}", code="TOO_MANY_REPLAYS", retry_after=5.0)
        transactions = self._store.create_transactions(replay.id)
        await transactions.start()
        if self._has_place(replay):  # otherwise a sidecar with capacity takes it
            replay = replay.with_owner(self._owner, replay.created)
        await self._write_new_replay(replay, transactions)
        if replay.owner:
            self._start_job(replay, transactions)
        log.info("replay %s: %s to %s", replay.id, replay.topic, target or "the back end")
        return build_json_response(
            render_replay(replay, 0.0), 202, {"Location": f"/replays/{replay.id}"}
        )

    async def _write_new_replay(self, replay: Replay, transactions: TransactionalProducer) -> None:
        """Write a new replay; raises StatusError 504 if Kafka may have it."""
        try:
            await transactions.commit([self._store.build_write(replay)])
        except BrokerUnavailable as exc:
            if not exc.timeout:
                raise
            log.info("replay %s may have been created: %s", replay.id, exc)
            problem = f"replay {replay.id} may have been created; GET /replays/{replay.id} says"
            raise StatusError(
                504, f"{problem} whether it was once Kafka answers again", code="REPLAY_IN_DOUBT"
            ) from exc

    def _parse_group(self, body: Mapping[str, Any]) -> str:
        """Return the group that a request names; for a back end, by default the only one."""
        group: str | None = body.get("consumerGroup")
        if body["destination"] == Destination.BACKEND:
            return get_group(self._context.section, group).group
        return group or ""

    @staticmethod
    def _parse_target(body: Mapping[str, Any]) -> str:
        """Return the topic that gets the records; empty for a back end. Raises StatusError 400."""
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
        self, body: Mapping[str, Any], target: str, group: str, identity: str
    ) -> Replay:
        topics = [await self._context.get_topic(name) for name in (body["topic"], target) if name]
        tps = _parse_partitions(body, topics[0])
        logs = await fetch_log_bounds(self._context.cluster, tps)
        starts = {tp: body.get("startOffset", log.start) for tp, log in logs.items()}
        if "startTime" in body:
            offsets = await fetch_offsets(
                self._context.cluster, tps, parse_timestamp(body["startTime"], "startTime")
            )
            # -1: no record is that late.
            starts = {tp: logs[tp].stop if offset < 0 else offset for tp, offset in offsets.items()}
        spans, missing = {}, []
        for tp, log_range in logs.items():
            stop = min(body.get("endOffset", log_range.stop), log_range.stop)
            start = min(starts[tp], stop)
            spans[tp.partition] = Span(start, stop, start)
            if start < log_range.start:  # deleted already: the replay says so
                missing.append((tp.partition, min(log_range.start, stop)))
        now = time.time_ns() // 1_000_000
        replay = Replay(
            uuid.uuid4().hex,
            topics[0].name,
            Destination(body["destination"]),
            target,
            group,
            spans,
            now,
            now,
            identity,
            topic_ids={topic.name: str(topic.topic_id or "") for topic in topics},
        )
        for partition, first in missing:
            replay = replay.with_missing(partition, first, now)
        return replay

    async def _list(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        await self._wait_until_loaded()
        rendered: list[bytes] = []
        with GrowingReservation(self._context.client_memory, HeldPart.RESPONSES) as held:
            async with take_turns() as turns:
                for replay in self._store.replays:
                    if turns.is_over():
                        await turns.pass_on()
                    rendered.append(orjson.dumps(self._render(replay)))
                    held.grow(2 * len(rendered[-1]))
            return build_json_response(b"[" + b",".join(rendered) + b"]")

    async def _get_replay(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        replay = await self._find_replay(request)
        await self._context.authorize(request, READ_SCOPE, [replay.topic])
        return build_json_response(self._render(replay))

    async def _cancel(self, request: Request) -> Response:
        """End a replay; a job that works on it anywhere is fenced."""
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
            problem = f"replay {replay.id} is {state} already; there is nothing to cancel"
            raise StatusError(409, problem, code="REPLAY_ENDED")
        log.info("replay %s is cancelled", replay.id)
        return build_json_response(render_replay(ended, 0.0))

    async def _find_replay(self, request: Request) -> Replay:
        await self._wait_until_loaded()
        id = request.path_params["id"]
        replay = self._store.replays.get(id)
        if replay is None:  # another sidecar may have created it a moment ago
            await self._store.wait_until_read()
            replay = self._store.replays.get(id)
        if replay is None:
            problem = f"there is no replay {id[:80]}; GET /replays lists them"
            raise StatusError(404, problem, code="REPLAY_NOT_FOUND")
        return replay

    async def _wait_until_loaded(self) -> None:
        """Wait a moment until the state of replays was read; raises NotReady."""
        self._context.require_kafka()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._store.loaded.wait()
        except TimeoutError:
            pass  # `check_ready` says why
        await self.check_ready()

    def _render(self, replay: Replay) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        if replay.is_running and (problem := self._stalled.get(replay.id)):
            replay = replace(replay, owner="", error=problem)
        return render_replay(replay, self._store.replays.get_rate(replay.id, now))


def _parse_partitions(body: Mapping[str, Any], topic: TopicMetadata) -> list[TopicPartition]:
    """Return the one partition that a request names, or all; raises StatusError 400."""
    number = body.get("partition")
    if number is not None and number not in topic.partitions:
        problem = f"{number} is no partition of {topic.name}, which has {len(topic.partitions)}"
        raise create_invalid_request("partition", problem)
    if number is None and len(topic.partitions) > 1:
        for name in ("startOffset", "endOffset"):
            if name in body:
                raise create_invalid_request(
                    name, "is of one partition; add partition, or use startTime"
                )
    if "startOffset" in body and "startTime" in body:
        raise create_invalid_request(
            "startTime", "is given together with startOffset; give one of them"
        )
    numbers = topic.partitions if number is None else [number]
    return [TopicPartition(topic.name, number) for number in sorted(numbers)]
