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

from gateway.core.delivery.replay import Destination, Replay, Span, State
from gateway.core.log.record import TopicPartition
from gateway.kafka.fetch.piece import at_time, bounds
from gateway.kafka.produce.transactions import Transactions
from gateway.kafka.protocol.requests import TopicAnswer
from gateway.sidecar.backends import group_named
from gateway.sidecar.context import Context
from gateway.sidecar.http.body import read
from gateway.sidecar.http.scope import READ, WRITE
from gateway.sidecar.http.spec import wrong
from gateway.sidecar.http.status import Refusal, answer
from gateway.sidecar.part import Unready
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .delivery import Delivery
from .job import Job, end
from .shown import shown
from .state import States

log = logging.getLogger(__name__)

LARGEST = 64 << 10  # bytes of a request
MOST = 16  # replays that one sidecar works on at a time
STOP = 3.0  # seconds for the steps that are under way at the end
LOADED = 5.0  # seconds that a request waits for a sidecar that has just begun
LOOK = 0.5  # seconds between looks for those that nobody works on


class Replays:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.replay
        assert settings is not None
        self._context = context
        self._states = States(context, settings.topic)
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._jobs: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        # to a back end in the same pod, past any proxy
        self._client = httpx.AsyncClient(trust_env=False, timeout=None, follow_redirects=False)
        self.routes: Sequence[BaseRoute] = [
            Route("/replays", self._start, methods=["POST"]),
            Route("/replays", self._list, methods=["GET"]),
            Route("/replays/{id}", self._show, methods=["GET"]),
            Route("/replays/{id}", self._cancel, methods=["DELETE"]),
        ]

    async def run(self) -> None:
        reading = asyncio.create_task(self._states.run())
        try:
            while True:
                await asyncio.sleep(LOOK)
                if reading.done():
                    reading.result()
                self._take_over()
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
            await asyncio.wait(tasks, timeout=STOP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def check(self) -> None:
        if self._states.failure is not None:
            raise Unready("replay", self._states.failure)

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        states = dict.fromkeys(State, 0)
        for replay in self._states.replays:
            states[replay.state] += 1
        for state, count in states.items():
            figures.add(catalog.REPLAYS, count, state)
        figures.add(catalog.REPLAYS_OWNED, len(self._jobs))

    # work

    def _take_over(self) -> None:
        if self._states.failure is not None:
            return
        for id in self._states.replays.abandoned(asyncio.get_running_loop().time()):
            replay = self._states.replays.get(id)
            if replay is not None and id not in self._jobs and len(self._jobs) < MOST:
                self._begin(replay)

    def _begin(self, replay: Replay, transactions: Transactions | None = None) -> None:
        delivery = None
        if replay.destination is Destination.BACKEND:
            try:
                group = group_named(self._context.section, replay.group)
            except Refusal:
                return  # of another configuration
            delivery = Delivery(self._context, group, self._client, replay.id)
        job = Job(
            self._context, self._states, replay.id, self._owner, delivery, transactions=transactions
        )
        task = asyncio.create_task(self._work(job, delivery))
        self._jobs[replay.id] = job, task
        task.add_done_callback(lambda done: self._ended(replay.id, done))

    async def _work(self, job: Job, delivery: Delivery | None) -> None:
        log.info("replay %s is worked on here", job.id)
        try:
            await job.run()
        finally:
            if delivery is not None:
                delivery.close()

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        self._jobs.pop(id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("replay %s failed unexpectedly", id, exc_info=task.exception())

    # over HTTP

    async def _start(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        data = await read(request, LARGEST)
        operation = self._context.spec["startReplay"]
        given = operation.body(data, request.headers.get("content-type"))
        # 1.0 is an integer in JSON, and none to Kafka
        body: dict[str, Any] = {
            name: int(each) if isinstance(each, float) else each for name, each in given.items()
        }
        group = self._group(body)
        await self._context.scope(request, READ, [body["topic"]], group or None)
        target = self._target(body)
        by = ""
        if target:
            by = await self._context.scope(request, WRITE, [target])
            await self._context.topic(target)
        replay = await self._made(body, target, group, by)
        await self._ready()
        transactions = self._states.transactions(replay.id)
        await transactions.start()
        if len(self._jobs) < MOST:
            replay = replay.owned(self._owner, replay.created)
        await transactions.commit([self._states.write(replay)])
        if replay.owner:
            self._begin(replay, transactions)
        log.info("replay %s: %s to %s", replay.id, replay.topic, target or "the back end")
        return answer(shown(replay, 0.0), 202, {"Location": f"/replays/{replay.id}"})

    def _group(self, body: Mapping[str, Any]) -> str:
        group: str | None = body.get("consumerGroup")
        if body["destination"] == Destination.BACKEND:
            return group_named(self._context.section, group).group
        return group or ""

    @staticmethod
    def _target(body: Mapping[str, Any]) -> str:
        target: str = body.get("destinationTopic") or ""
        if body["destination"] == Destination.TOPIC and not target:
            raise wrong("destinationTopic", "is missing; name the topic that gets the copies")
        if body["destination"] == Destination.BACKEND and target:
            raise wrong("destinationTopic", "is given, and the destination is the back end")
        return target

    async def _made(self, body: Mapping[str, Any], target: str, group: str, by: str) -> Replay:
        known = await self._context.topic(body["topic"])
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
        return await self._spanned(replay, body, known)

    async def _spanned(self, replay: Replay, body: Mapping[str, Any], known: TopicAnswer) -> Replay:
        """With what is to be read: up to what is there now, at most."""
        tps = _partitions(body, known)
        logs = await bounds(self._context.cluster, tps)
        starts = {tp: body.get("startOffset", log.start) for tp, log in logs.items()}
        if "startTime" in body:
            found = await at_time(self._context.cluster, tps, _milliseconds(body["startTime"]))
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
            made = made.lacking(partition, first, made.updated)
        return made

    async def _list(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        await self._ready()
        return answer([self._told(each) for each in self._states.replays])

    async def _show(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        replay = await self._named(request)
        await self._context.scope(request, READ, [replay.topic])
        return answer(self._told(replay))

    async def _cancel(self, request: Request) -> Response:
        await self._context.scope(request, WRITE)
        replay = await self._named(request)
        await self._context.scope(request, WRITE, [replay.target or replay.topic])
        ended = await end(
            self._states, self._states.transactions(replay.id), replay.id, State.CANCELLED
        )
        if ended is None:
            state = (self._states.replays.get(replay.id) or replay).state
            what = f"replay {replay.id} is {state} already; nothing is to be cancelled"
            raise Refusal(409, what, code="REPLAY_ENDED")
        log.info("replay %s is cancelled", replay.id)
        return answer(shown(ended, 0.0))

    async def _named(self, request: Request) -> Replay:
        """Raises Refusal 404."""
        await self._ready()
        id = request.path_params["id"]
        replay = self._states.replays.get(id)
        if replay is None:  # another one may have made it a moment ago
            await self._states.caught_up()
            replay = self._states.replays.get(id)
        if replay is None:
            what = f"there is no replay {id[:80]}; GET /replays lists them"
            raise Refusal(404, what, code="REPLAY_NOT_FOUND")
        return replay

    async def _ready(self) -> None:
        """Waits a moment for what there is to be read."""
        self._context.reachable()
        try:
            async with asyncio.timeout(LOADED):
                await self._states.loaded.wait()
        except TimeoutError:
            pass  # the check says why
        await self.check()

    def _told(self, replay: Replay) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        return shown(replay, self._states.replays.rate(replay.id, now))


def _partitions(body: Mapping[str, Any], known: TopicAnswer) -> list[TopicPartition]:
    number = body.get("partition")
    if number is not None and number not in known.partitions:
        what = f"{number} is none of {known.name}, which has {len(known.partitions)}"
        raise wrong("partition", what)
    if number is None and len(known.partitions) > 1:
        for name in ("startOffset", "endOffset"):
            if name in body:
                raise wrong(name, "is of one partition; add partition, or use startTime")
    if "startOffset" in body and "startTime" in body:
        raise wrong("startTime", "is given, and startOffset, too; give one of them")
    numbers = known.partitions if number is None else [number]
    return [TopicPartition(known.name, each) for each in sorted(numbers)]


def _milliseconds(given: int | str) -> int:
    """Of milliseconds, or of a time as ISO 8601 has it; UTC where it has no zone."""
    if isinstance(given, int):
        return given
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        what = f"'{given[:80]}' is no time; write 2026-01-31T12:00:00Z, or milliseconds"
        raise wrong("startTime", what) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1000))
