"""Run the reactive groups of the configuration, and let operators see and steer them.

Each sidecar answers for its own member: the partitions, their progress, and the problems. Pausing
and seeking also concern its own partitions only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.background_tasks import run_supervised
from gateway.config.types.address import join_url
from gateway.config.types.substitution import suggest
from gateway.core.log.record import TopicPartition
from gateway.errors import NotOwned
from gateway.sidecar.context import Component, Context
from gateway.sidecar.http.middleware import ADMIN_SCOPE, READ_SCOPE
from gateway.sidecar.http.status import NotReady, StatusError, build_json_response
from gateway.sidecar.lookups import parse_tp
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .backend import create_http_client
from .group import ReactiveGroup
from .lanes import RECORD_OUTCOMES, VERDICT_NAMES, LaneRunner

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 << 10
LIST_OFFSETS_TIMEOUT_S = 5.0  # for Kafka to answer
OFFSET_SPECS: Mapping[str, int] = {"beginning": -2, "end": -1}  # as timestamps of ListOffsets


class ReactiveComponent(Component):
    def __init__(self, context: Context) -> None:
        settings = context.section.reactive
        assert settings is not None
        self._context = context
        self._client = create_http_client()
        self.groups = {
            group.group: ReactiveGroup(context, group, self._client) for group in settings.groups
        }
        self.routes = [
            Route("/reactive", self._list, methods=["GET"]),
            Route("/reactive/{group}", self._get_state, methods=["GET"]),
            Route("/reactive/{group}/pause", partial(self._set_paused, True), methods=["POST"]),
            Route("/reactive/{group}/resume", partial(self._set_paused, False), methods=["POST"]),
            Route("/reactive/{group}/seek", self._seek, methods=["POST"]),
        ]

    async def run(self) -> None:
        """Run all groups until cancelled; one that fails starts again without the others."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in self.groups.values():
                    tasks.create_task(run_supervised(group.run, f"group {group.name}"))
                tasks.create_task(asyncio.Event().wait())
        finally:
            await self._client.aclose()

    async def check_ready(self) -> None:
        """Raise NotReady if a group cannot be read, or a lane has not moved for too long."""
        now = asyncio.get_running_loop().time()
        for group in self.groups.values():
            if group.failure is not None:
                raise NotReady("reactive", f"group {group.name}: {group.failure}")
            for runner in group.runners:
                if group.is_stuck(runner, now):
                    raise NotReady("reactive", group.describe_stuck(runner, now))

    def collect_metrics(self, samples: MetricSamples) -> None:
        for name, group in self.groups.items():
            counts = group.counts
            for (topic, outcome), records in counts.records.items():
                samples.add(catalog.REACTIVE_RECORDS, records, name, topic, outcome)
            for verdict, batches in counts.batches.items():
                samples.add(catalog.REACTIVE_BATCHES, batches, name, verdict)
            topics = group.settings.topics
            samples.add_zeros(catalog.REACTIVE_RECORDS, [name], topics, RECORD_OUTCOMES)
            samples.add_zeros(catalog.REACTIVE_BATCHES, [name], VERDICT_NAMES)
            for topic, lag in group.lag_records.items():
                samples.add(catalog.REACTIVE_LAG_RECORDS, lag, name, topic)
            samples.add_zeros(catalog.REACTIVE_LAG_RECORDS, [name], topics)
            samples.add(catalog.REACTIVE_REPEATED_RECORDS, counts.repeated, name)
            samples.add_histogram(catalog.REACTIVE_SECONDS, counts.seconds, name)
            held_up = sum(group.find_problem(runner) is not None for runner in group.runners)
            samples.add(catalog.REACTIVE_HELD_UP_LANES, held_up, name)
            waiting = sum(runner.queue.unsettled_count for runner in group.runners)
            samples.add(catalog.REACTIVE_WAITING_RECORDS, waiting, name)
            stats = self._context.cluster.coordinators.stats
            if name in stats.rebalance_seconds:
                samples.add_histogram(
                    catalog.REACTIVE_REBALANCE_SECONDS, stats.rebalance_seconds[name], name
                )
            samples.add(catalog.REACTIVE_LOST_PARTITIONS, stats.lost_partitions[name], name)

    # Requests

    async def _list(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        return build_json_response(
            [await describe_group(group, lag=False) for group in self.groups.values()]
        )

    async def _get_state(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, group=request.path_params["group"])
        group = self._get_group(request)
        return build_json_response(await describe_group(group, lag=True))

    async def _set_paused(self, paused: bool, request: Request) -> Response:
        group = await self._authorize_group(request)
        group.set_paused(paused)
        log.info("group %s is %s", group.name, "paused" if paused else "resumed")
        return build_json_response(await describe_group(group, lag=False))

    async def _seek(self, request: Request) -> Response:
        group = await self._authorize_group(request)
        body = await self._context.spec["seekReactive"].read_body(request, MAX_BODY_BYTES)
        offsets = await self._resolve_offsets(group, body)
        try:
            await group.seek(offsets)
        except NotOwned as error:
            raise StatusError(409, str(error), code="NOT_OWNED") from None
        log.info("group %s goes on from %s", group.name, offsets)
        return build_json_response(
            {"offsets": [{**tp._asdict(), "offset": offset} for tp, offset in offsets.items()]}
        )

    async def _authorize_group(self, request: Request) -> ReactiveGroup:
        """Return a running group that the client may steer; raises StatusError 404 or 503."""
        await self._context.authorize(request, ADMIN_SCOPE, group=request.path_params["group"])
        group = self._get_group(request)
        if group.consumer is None:
            raise StatusError(503, f"group {group.name} does not run; try again", retry_after=1.0)
        return group

    def _get_group(self, request: Request) -> ReactiveGroup:
        name = request.path_params["group"]
        if name not in self.groups:
            suggestion = suggest(name, list(self.groups), "GET /reactive lists them")
            problem = f"no reactive group {name[:80]!r}"
            raise StatusError(404, f"{problem}; {suggestion}", code="GROUP_NOT_FOUND")
        return self.groups[name]

    async def _resolve_offsets(
        self, group: ReactiveGroup, body: Mapping[str, Any]
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a request to seek names.

        Raises KafkaError, or StatusError: 400 for offsets that the log does not have, 409 while
        Kafka does not know them.
        """
        offsets = {parse_tp(entry): entry["offset"] for entry in body.get("offsets", ())}
        specs = {parse_tp(entry): entry["timestamp"] for entry in body.get("timestamps", ())}
        if "to" in body:
            assert group.consumer is not None
            specs |= dict.fromkeys(group.consumer.assignment, OFFSET_SPECS[body["to"]])
        if not offsets and not specs:
            problem = "names no partition; give it offsets, timestamps or to"
            raise StatusError(400, f"the body: {problem}", code="INVALID_REQUEST")
        bounds = await self._list_offsets(group, dict.fromkeys(offsets, OFFSET_SPECS["beginning"]))
        ends = await self._list_offsets(group, dict.fromkeys(offsets, OFFSET_SPECS["end"]))
        for tp, offset in offsets.items():
            if not bounds[tp] <= offset <= ends[tp]:
                problem = f"{tp} has no offset {offset}"
                hint = f"use {bounds[tp]} to {ends[tp]}"
                raise StatusError(400, f"{problem}; {hint}", code="OFFSET_OUT_OF_RANGE")
        resolved = await self._list_offsets(group, specs)
        # Kafka answers -1 where no record is that late: go on at the end.
        past_end = {tp: OFFSET_SPECS["end"] for tp, offset in resolved.items() if offset < 0}
        return offsets | resolved | await self._list_offsets(group, past_end)

    async def _list_offsets(
        self, group: ReactiveGroup, specs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        offsets = await group.list_offsets(specs, LIST_OFFSETS_TIMEOUT_S) if specs else {}
        for tp in specs.keys() - offsets.keys():
            problem = f"the offsets of {tp} are not known now"
            raise StatusError(409, f"{problem}; try again, or correct its name")
        return offsets


async def describe_group(group: ReactiveGroup, *, lag: bool) -> dict[str, Any]:
    """Return the state of a group as JSON. With `lag`, Kafka is asked for the ends."""
    consumer = group.consumer
    tps = sorted(consumer.assignment) if consumer is not None else []
    ends = await group.fetch_end_offsets(tps) if lag and tps else {}
    if consumer is not None:  # some may have been revoked meanwhile
        tps = sorted(consumer.assignment.intersection(tps))
    partitions = [_describe_partition(group, tp, ends) for tp in tps]
    lags = [item["lag"] for item in partitions]
    now = asyncio.get_running_loop().time()
    rebalances = group.rebalance_seconds
    return {
        "group": group.name,
        "state": _get_state_name(group),
        "failure": group.failure or group.committer.failure or None,
        "backend": join_url(group.settings.backend.host, group.settings.backend.path),
        "lag": None if None in lags or not lag else sum(lags),
        "processed": _count_records(group, "processed"),
        "deadLetters": _count_records(group, "dead"),
        "repeated": group.counts.repeated,
        "rebalances": sum(rebalances.counts) if rebalances is not None else 0,
        "partitions": partitions,
        "lanes": [_describe_lane(group, item, now) for item in group.runners],
    }


def _get_state_name(group: ReactiveGroup) -> str:
    if group.consumer is None:
        return "STOPPED"
    if group.failure is not None:
        return "FAILED"
    return "PAUSED" if group.is_paused else group.consumer.state.name


def _count_records(group: ReactiveGroup, outcome: str) -> int:
    return sum(
        count
        for (_, record_outcome), count in group.counts.records.items()
        if record_outcome == outcome
    )


def _describe_lane(group: ReactiveGroup, runner: LaneRunner, now: float) -> dict[str, Any]:
    queue = runner.queue
    return {
        "partitions": len(runner.tps),
        "waiting": queue.unsettled_count,
        "underWay": queue.is_busy,
        "heldUpBy": group.find_problem(runner),
        "heldUpFor": round(now - queue.problem_since, 3) if queue.problem else None,
        "stuck": group.is_stuck(runner, now),
    }


def _describe_partition(
    group: ReactiveGroup, tp: TopicPartition, ends: dict[TopicPartition, int]
) -> dict[str, Any]:
    committed, end = group.committer.committed(tp), ends.get(tp)
    position = group.consumer.position(tp) if group.consumer is not None else None
    runner = group.get_runner(tp)
    reached = group.get_reached_offset(tp)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "position": position,
        "committed": committed,
        "end": end,
        "lag": None if end is None or reached is None else max(0, end - reached),
        "lane": group.runners.index(runner) if runner is not None else None,
    }
