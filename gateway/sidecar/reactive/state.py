"""How a reactive group is, as its member here sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.core.log.record import TopicPartition

from .group import ReactiveGroup
from .lane_runner import LaneRunner


async def describe_group(group: ReactiveGroup, *, lag: bool) -> dict[str, Any]:
    """Return it as JSON. lag: Kafka is asked for the ends of its partitions."""
    consumer = group.consumer
    held = sorted(consumer.assignment) if consumer is not None else []
    ends = await group.fetch_end_offsets(held) if lag and held else {}
    if consumer is not None:  # some may have gone meanwhile
        held = sorted(consumer.assignment.intersection(held))
    partitions = [_describe_partition(group, tp, ends) for tp in held]
    lags = [each["lag"] for each in partitions]
    now = asyncio.get_running_loop().time()
    rebalances = group.rebalance_seconds
    return {
        "group": group.name,
        "state": _get_state_name(group),
        "failure": group.failure or group.committer.failure or None,
        "backend": f"{group.settings.backend.host}{group.settings.backend.path}",
        "lag": None if None in lags or not lag else sum(lags),
        "processed": _count_records(group, "processed"),
        "deadLetters": _count_records(group, "dead"),
        "repeated": group.counts.repeated,
        "rebalances": sum(rebalances.counts) if rebalances is not None else 0,
        "partitions": partitions,
        "lanes": [_describe_lane(group, each, now) for each in group.runners],
    }


def _get_state_name(group: ReactiveGroup) -> str:
    if group.consumer is None:
        return "STOPPED"
    if group.failure is not None:
        return "FAILED"
    return "PAUSED" if group.is_paused else group.consumer.state.name


def _count_records(group: ReactiveGroup, outcome: str) -> int:
    return sum(n for (_, what), n in group.counts.records.items() if what == outcome)


def _describe_lane(group: ReactiveGroup, runner: LaneRunner, now: float) -> dict[str, Any]:
    lane = runner.lane
    return {
        "partitions": len(runner.tps),
        "waiting": lane.unsettled_count,
        "underWay": lane.is_busy,
        "heldUpBy": lane.problem or None,
        "heldUpFor": round(now - lane.problem_since, 3) if lane.problem else None,
        "stuck": group.is_stuck(runner, now),
    }


def _describe_partition(
    group: ReactiveGroup, tp: TopicPartition, ends: dict[TopicPartition, int]
) -> dict[str, Any]:
    committed, end = group.committer.committed(tp), ends.get(tp)
    position = group.consumer.position(tp) if group.consumer is not None else None
    runner = group.get_runner(tp)
    first = runner.lane.first_unsettled_offset(tp) if runner is not None else None
    reached = position if first is None else first
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "position": position,
        "committed": committed,
        "end": end,
        "lag": None if end is None or reached is None else max(0, end - reached),
        "lane": group.runners.index(runner) if runner is not None else None,
    }
