"""A log is cut off while a group has records of it with its back end."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from support.simulated_groups import TOPIC, GroupSimulation
from support.virtual_time import run_in_virtual_time
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

TP = TopicPartition(TOPIC, 0)
CUT = 5


@pytest.mark.parametrize("is_classic", [False, True], ids=["kip848", "classic"])
def test_what_takes_the_place_of_lost_records_is_delivered_by_the_next_member(is_classic):
    """The batch of the lost log was settled and committed afterwards, beyond the cut: the next
    member began behind records that nobody had processed."""
    run_in_virtual_time(_replace_member_after_cut(GroupSimulation(1, is_classic=is_classic)))


async def _replace_member_after_cut(world: GroupSimulation) -> None:
    expiry = asyncio.create_task(world.kafka.run_expiry())
    seen: set[tuple[int, str]] = set()
    received = asyncio.Event()

    async def answer_late(request: httpx.Request) -> httpx.Response:
        records = json.loads(request.content) if request.url.path != "/health" else []
        received.set()
        await asyncio.sleep(1.5)
        seen.update((each["offset"], each["value"]["log"]) for each in records)
        return httpx.Response(200, json=[{"processed": True} for _ in records])

    def build_values(log: str, count: int) -> list[bytes]:
        topic_id = str(world.kafka.topics[TOPIC].id)
        return [json.dumps({"id": topic_id, "log": log}).encode()] * count

    world.handle_backend_request = answer_late  # type: ignore[method-assign]
    world.start()
    member = world.members[0]
    await wait_until(lambda: member.group.get_runner(TP) is not None, "the partition")
    world.kafka.append_records(TP, build_values("lost", 12))
    async with asyncio.timeout(60):
        await received.wait()
    world.kafka.cut_log(TP, CUT)
    world.kafka.append_records(TP, build_values("new", 40))
    await asyncio.sleep(0.4)  # the batch is still with the back end
    assert not seen
    world.start()
    member.task.cancel()
    await asyncio.wait([member.task])
    world.members.remove(member)
    world.kafka.clusters.remove(member.cluster)
    await asyncio.sleep(60)
    assert {offset for offset, log in seen if log == "new"} == set(range(CUT, CUT + 40))
    world.members[0].task.cancel()
    await asyncio.wait([world.members[0].task])
    expiry.cancel()
