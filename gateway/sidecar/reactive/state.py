"""Describe the state of a reactive group, as its member in this process sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.config.types.address import join_url
from gateway.core.log.record import TopicPartition

from .group import ReactiveGroup
from .lane_runner import LaneRunner


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
