"""Whatever happens to a group: once all is well again, every record is delivered and committed."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest
from support.simulated_groups import GroupSimulation
from support.virtual_time import run_in_virtual_time

from gateway.core.log.record import TopicPartition

HISTORIES = int(os.environ.get("GATEWAY_GROUP_HISTORIES", "40"))
EVENTS = [
    "produce", "produce", "change_back_end", "change_kafka", "start", "stop", "kill", "expire",
    "pause", "seek", "delete_records", "add_partition", "recreate", "change_right",
    "change_commits",
]  # fmt: skip


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_every_record_is_delivered_once_all_is_well_again(protocol, caplog):
    """A lane that was full when its partitions went was taken for full for ever, a commit that
    nobody could make any more was waited for, and one that was tried again was made for the
    successor of its topic. A right that was taken away for a while ended the membership."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(HISTORIES):
        world = GroupSimulation(seed, is_classic=protocol == "classic")
        run_in_virtual_time(world.run_events(EVENTS, 25))
        assert not world.oracle.violations, (seed, world.oracle.violations, world.log)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_new_group_goes_on_where_it_began_whoever_reads_on(protocol, caplog):
    """Until its first commit nobody knew where that was. After a restart, or for a second sidecar,
    `latest` was the end by then, so records that had been sent without success were skipped; or the
    start of the log, if another partition had a commit, so that all old records were sent."""
    caplog.set_level(logging.CRITICAL)
    events = [
        "produce", "produce", "change_back_end", "change_kafka", "start", "stop", "kill", "expire",
        "restart", "pause", "add_partition", "change_commits", "change_right",
    ]  # fmt: skip
    for seed in range(HISTORIES):
        world = GroupSimulation(seed, is_classic=protocol == "classic", reset="latest")
        run_in_virtual_time(world.run_events(events, 25))
        assert not world.oracle.violations, (seed, world.oracle.violations, world.log)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_two_batches_of_a_partition_come_again_also_when_commits_get_no_answer(protocol, caplog):
    """Lanes went on while a commit was under way, which takes seconds to fail: after a takeover 63
    records came again where a batch has 20. The simulation checks each batch that comes."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(HISTORIES):
        world = GroupSimulation(seed, is_classic=protocol == "classic")
        events = ["produce", "produce", "change_commits", "start", "kill", "expire"]
        run_in_virtual_time(world.run_events(events, 25))
        assert not world.oracle.violations, (seed, world.oracle.violations, world.log)


def test_a_paused_group_that_fails_and_begins_again_stays_paused(caplog):
    """Its new lanes did not know, and sent one batch each."""
    caplog.set_level(logging.CRITICAL)
    world = GroupSimulation(0, is_classic=False)
    begun: list[object] = []

    async def play() -> None:
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.start()
        group = world.members[0].group
        await asyncio.sleep(5.0)
        begun.append(group.consumer)
        group.set_paused(True)
        world.produce()
        group.fetch_end_offsets = fail  # type: ignore[method-assign]
        await asyncio.sleep(60.0)
        del group.fetch_end_offsets  # type: ignore[method-assign]
        await asyncio.sleep(60.0)
        begun.append(group.consumer)
        assert not world.oracle.processed
        group.set_paused(False)
        await asyncio.sleep(60.0)
        assert not world.list_missing()
        world.members[0].task.cancel()
        await asyncio.wait([world.members[0].task])
        kafka.cancel()

    async def fail(*_: object) -> dict[TopicPartition, int]:
        raise RuntimeError("a fault in the group")

    run_in_virtual_time(play())
    assert None not in begun and begun[0] is not begun[1]


@pytest.mark.parametrize("refusal", ["login", "right"])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_an_outage_is_logged_once_then_every_minute_and_at_its_end(protocol, refusal, caplog):
    """Each change of the text was told, such as when the next attempt is: three lines in 28 s."""
    caplog.set_level(logging.INFO)
    world = GroupSimulation(1, is_classic=protocol == "classic")
    states: list[tuple[str, bool]] = []

    def refuse(refused: bool) -> None:
        if refusal == "login":
            world.members[0].cluster.failure_mode = "login" if refused else ""
        else:
            world.kafka.is_denied = refused

    async def play() -> None:
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.start()
        group = world.members[0].group
        for refused, seconds in ((False, 10.0), (True, 50.0), (False, 90.0), (False, 10.0)):
            refuse(refused)
            world.produce()
            await asyncio.sleep(seconds)
            assert group.consumer is not None
            states.append((group.consumer.state.name, group.failure is not None))
        assert not world.list_missing()
        world.members[0].task.cancel()
        await asyncio.wait([world.members[0].task])
        kafka.cancel()

    run_in_virtual_time(play())
    assert [failing for _, failing in states] == [False, True, False, False], states
    messages = [message for message in caplog.messages if message.startswith("group=g ")]
    assert len(messages) == 2, messages
    assert "cause=" in messages[0] and "can be used again after" in messages[1]


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_group_that_is_refused_says_why_as_soon_as_it_is_failed(protocol: str):
    """Until its next poll raised it, it was FAILED without a failure, and ready."""
    world = GroupSimulation(1, is_classic=protocol == "classic")
    failures: list[str | None] = []

    class FailureNoter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().endswith("-> FAILED"):
                failures.append(world.members[0].group.failure)

    async def play() -> None:
        kafka = asyncio.create_task(world.kafka.run_expiry())
        world.start()
        await asyncio.sleep(10.0)
        world.kafka.is_denied = True
        await asyncio.sleep(50.0)
        world.members[0].task.cancel()
        await asyncio.wait([world.members[0].task])
        kafka.cancel()

    noter, log = FailureNoter(), logging.getLogger("gateway")
    level = log.level
    log.addHandler(noter)
    log.setLevel(logging.INFO)
    try:
        run_in_virtual_time(play())
    finally:
        log.setLevel(level)
        log.removeHandler(noter)
    assert failures and all(failures), failures


def test_each_lane_waits_for_its_own_schemas():
    """A lane that worked began the 15 seconds of another one again, which held it up for ever."""
    world = next(
        each
        for each in (GroupSimulation(seed, is_classic=False) for seed in range(20))
        if each.parallelism > 1
    )

    async def play() -> None:
        world.start()
        group = world.members[0].group
        await asyncio.sleep(1.0)
        encoders = {id(runner._context.encoder) for runner in group.runners}
        assert len(encoders) == world.parallelism
        world.members[0].task.cancel()
        await asyncio.wait([world.members[0].task])

    run_in_virtual_time(play())
