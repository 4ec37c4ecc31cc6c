"""The part `reactive`: its groups, and what operators do with one that runs.

Each sidecar answers for the member that it is: what it reads, how far, what holds it up; paused or
sought is what is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.config.source.expression import nearest
from gateway.core.log.record import TopicPartition
from gateway.errors import NotOwned
from gateway.kafka.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, Offset
from gateway.sidecar.context import Context
from gateway.sidecar.http.body import read
from gateway.sidecar.http.scope import READ
from gateway.sidecar.http.status import Refusal, answer
from gateway.sidecar.part import Unready
from gateway.sidecar.supervise import kept
from gateway.telemetry import catalog
from gateway.telemetry.figures import Figures

from .group import ReactiveGroup
from .state import state_of

log = logging.getLogger(__name__)

ADMIN = "admin"  # the scope of who may pause and seek
LARGEST = 256 << 10  # bytes of a request
LOOKED_UP = 5.0  # seconds for ends and times to be told
SPECS: Mapping[str, int] = {"beginning": -2, "end": -1}


class Reactive:
    """See the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.reactive
        assert settings is not None
        self._context = context
        # as many connections as there are lanes; to a back end in the same pod, past any proxy
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(
            trust_env=False, limits=limits, timeout=None, follow_redirects=False
        )
        self.groups = {
            each.group: ReactiveGroup(context, each, self._client) for each in settings.groups
        }
        self.routes: Sequence[BaseRoute] = [
            Route("/reactive", self._list, methods=["GET"]),
            Route("/reactive/{group}", self._state, methods=["GET"]),
            Route("/reactive/{group}/pause", self._pause, methods=["POST"]),
            Route("/reactive/{group}/resume", self._resume, methods=["POST"]),
            Route("/reactive/{group}/seek", self._seek, methods=["POST"]),
        ]

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for each in self.groups.values():
                    group.create_task(kept(each.run, f"group {each.name}"))
                group.create_task(asyncio.Event().wait())
        finally:
            await self._client.aclose()

    async def check(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self.groups.values():
            if each.failure is not None:
                raise Unready("reactive", f"group {each.name}: {each.failure}")
            for runner in each.runners:
                if each.is_stuck(runner, now):
                    raise Unready("reactive", each.describe_stuck(runner, now))

    def read(self, figures: Figures) -> None:
        """Adds what a scrape wants to know."""
        for name, group in self.groups.items():
            tallies = group.tallies
            for (topic, outcome), records in tallies.records.items():
                figures.add(catalog.REACTIVE_RECORDS, records, name, topic, outcome)
            for verdict, batches in tallies.batches.items():
                figures.add(catalog.REACTIVE_BATCHES, batches, name, verdict)
            figures.add(catalog.REACTIVE_REPEATED, tallies.repeated, name)
            figures.observed(catalog.REACTIVE_SECONDS, tallies.seconds, name)
            held_up = sum(bool(each.lane.trouble) for each in group.runners)
            figures.add(catalog.REACTIVE_HELD_UP, held_up, name)
            waiting = sum(each.lane.waiting for each in group.runners)
            figures.add(catalog.REACTIVE_WAITING, waiting, name)
            told = self._context.cluster.coordinators.tallies
            if name in told.seconds:
                figures.observed(catalog.REACTIVE_REBALANCE, told.seconds[name], name)
            figures.add(catalog.REACTIVE_LOST, told.lost[name], name)

    # over HTTP

    async def _list(self, request: Request) -> Response:
        await self._context.scope(request, READ)
        return answer([await state_of(each, lag=False) for each in self.groups.values()])

    async def _state(self, request: Request) -> Response:
        await self._context.scope(request, READ, group=request.path_params["group"])
        group = self._named(request)
        return answer(await state_of(group, lag=True))

    async def _pause(self, request: Request) -> Response:
        return await self._paused(request, True)

    async def _resume(self, request: Request) -> Response:
        return await self._paused(request, False)

    async def _paused(self, request: Request, paused: bool) -> Response:
        group = await self._administered(request)
        group.pause(paused)
        log.info("group %s is %s", group.name, "paused" if paused else "resumed")
        return answer(await state_of(group, lag=False))

    async def _seek(self, request: Request) -> Response:
        group = await self._administered(request)
        data = await read(request, LARGEST)
        body = self._context.spec["seekReactive"].body(data, request.headers.get("content-type"))
        offsets = await self._offsets(group, body)
        try:
            await group.seek(offsets)
        except NotOwned as error:
            raise Refusal(409, str(error), code="NOT_OWNED") from None
        log.info("group %s goes on from %s", group.name, offsets)
        return answer({"offsets": [_offset(tp, at) for tp, at in offsets.items()]})

    async def _administered(self, request: Request) -> ReactiveGroup:
        await self._context.scope(request, ADMIN, group=request.path_params["group"])
        group = self._named(request)
        if group.consumer is None:
            raise Refusal(503, f"group {group.name} does not run; try again", retry_after=1.0)
        return group

    def _named(self, request: Request) -> ReactiveGroup:
        name = request.path_params["group"]
        if name not in self.groups:
            near = nearest(name, list(self.groups), "GET /reactive lists them")
            what = f"no reactive group {name[:80]!r}"
            raise Refusal(404, f"{what}; {near}", code="GROUP_NOT_FOUND")
        return self.groups[name]

    async def _offsets(
        self, group: ReactiveGroup, body: Mapping[str, Any]
    ) -> dict[TopicPartition, int]:
        """What a request means. Raises Refusal 400, 409, KafkaError."""
        found = {_tp(each): each["offset"] for each in body.get("offsets", ())}
        specs = {_tp(each): each["timestamp"] for each in body.get("timestamps", ())}
        if "to" in body:
            assert group.consumer is not None
            specs |= dict.fromkeys(group.consumer.assignment, SPECS[body["to"]])
        if not found and not specs:
            what = "names no partition; give it offsets, timestamps or to"
            raise Refusal(400, f"the body: {what}", code="INVALID_REQUEST")
        bounds = await self._listed(group, dict.fromkeys(found, SPECS["beginning"]))
        ends = await self._listed(group, dict.fromkeys(found, SPECS["end"]))
        for tp, offset in found.items():
            if not bounds[tp] <= offset <= ends[tp]:
                what = f"{tp} has no offset {offset}"
                hint = f"use {bounds[tp]} to {ends[tp]}"
                raise Refusal(400, f"{what}; {hint}", code="OFFSET_OUT_OF_RANGE")
        later = await self._listed(group, specs)
        none = {tp: SPECS["end"] for tp, at in later.items() if at < 0}  # none is that late
        return found | later | await self._listed(group, none)

    async def _listed(
        self, group: ReactiveGroup, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        committed = group.settings.isolation == "read_committed"
        isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        if not specs:
            return {}
        answers = await self._context.cluster.list_offsets(specs, isolation, within=LOOKED_UP)
        offsets = {tp: at.offset for tp, at in answers.items() if isinstance(at, Offset)}
        for tp in specs.keys() - offsets.keys():
            raise Refusal(409, f"{tp} tells no offsets now; try again, or correct its name")
        return offsets


def _tp(of: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(of["topic"], of["partition"])


def _offset(tp: TopicPartition, offset: int) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition, "offset": offset}
