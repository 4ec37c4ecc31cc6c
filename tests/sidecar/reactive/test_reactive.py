"""A reactive group in the test's own loop: a real broker, a back end that is a process."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.backend import running_backend
from support.brokers import KafkaCluster
from support.raw_produce import produce_raw
from support.reactive import ReactiveWorld, build_settings, get_numbers
from support.record_sets import ZSTD, BatchRecord
from support.sidecars import running_sidecar, wait_until_ready
from support.waiting import wait_until

from gateway.kafka.fetch.record_batch import MAX_DECOMPRESSED_BYTES

GUARDS = {
    "users": {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": {
            "ada": {"token": "of-ada", "roles": ["admin"]},
            "bob": {"token": "of-bob", "roles": ["kafka:r"]},
        },
    }
}


@pytest.fixture
async def world(kafka: KafkaCluster) -> AsyncIterator[ReactiveWorld]:
    async with running_backend() as backend:
        world = ReactiveWorld(kafka, backend)
        try:
            yield world
        finally:
            world.close()


def running_group(world: ReactiveWorld, group: dict[str, Any], **sections: Any) -> Any:
    return running_sidecar(world.kafka.bootstrap, reactive={"groups": group}, **sections)


async def get_state(http: httpx.AsyncClient, group: dict[str, Any]) -> dict[str, Any]:
    answer = await http.get(f"/reactive/{group['group']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def wait_for_state(http: httpx.AsyncClient, group: dict[str, Any], **wanted: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            state = await get_state(http, group)
            if all(state[name] == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.05)


async def wait_for_lane(http: httpx.AsyncClient, group: dict[str, Any], **wanted: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            state = (await get_state(http, group))["lanes"]
            if any(all(lane[name] == value for name, value in wanted.items()) for lane in state):
                return
            await asyncio.sleep(0.05)


async def wait_for_owner(http: httpx.AsyncClient, group: dict[str, Any]) -> None:
    async with asyncio.timeout(60):
        while not (await get_state(http, group))["partitions"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def wait_until_held_up(http: httpx.AsyncClient, group: dict[str, Any], pattern: str) -> None:
    async with asyncio.timeout(60):
        while True:
            state = (await get_state(http, group))["lanes"]
            if any(re.search(pattern, lane["heldUpBy"] or "") for lane in state):
                return
            await asyncio.sleep(0.05)


async def test_what_cannot_be_read_holds_its_lane_up_until_it_is_sought_past(world: ReactiveWorld):
    """The group went on behind it, and committed that: no lag, no failure."""
    group = build_settings(world.backend, world.topic)
    for value in (b'{"n": 0}', bytes(MAX_DECOMPRESSED_BYTES + 1), b'{"n": 1}'):
        items = [BatchRecord(0, value, b"k", timestamp=time.time_ns() // 1_000_000)]
        produce_raw(world.kafka.bootstrap_servers, world.topic, 0, items, ZSTD)
    async with running_group(world, group) as http:
        await wait_until_held_up(http, group, f"{world.topic}-0 is too large from 1 to 2")
        assert f'_held_up_lanes{{group="{group["group"]}"}} 1' in (await http.get("/metrics")).text
        await wait_for_state(http, group, processed=1, state="FAILED", lag=2)
        assert await world.fetch_committed(group["group"]) == 1
        seek = {"offsets": [{"topic": world.topic, "partition": 0, "offset": 2}]}
        assert (await http.post(f"/reactive/{group['group']}/seek", json=seek)).status_code == 200
        await wait_for_state(http, group, processed=2, state="RUNNING", lag=0)


async def test_records_come_in_batches_whole_and_are_committed(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic)
    world.write_records(250)
    async with running_group(world, group) as http:
        await wait_until_ready(http)
        await world.wait_until_settled()
        await wait_for_state(http, group, lag=0, processed=250, state="RUNNING")
        answer = await http.get("/reactive")
        assert [item["group"] for item in answer.json()] == [group["group"]]
    assert await world.fetch_committed(group["group"]) == 250
    world.check_order()
    assert world.count_repeated() == 0
    calls = world.backend.calls
    assert all(len(call["records"]) <= 100 for call in calls)
    assert len(calls) < 60, "they come in batches"
    assert calls[0]["headers"]["x-consumer-group"] == group["group"]
    first = next(
        record for record in world.backend.processed_records if record["value"] == {"n": 0}
    )
    assert first == {
        "topic": world.topic,
        "partition": first["partition"],
        "offset": first["offset"],
        "timestamp": first["timestamp"],
        "key": "k0",
        "value": {"n": 0},
        "headers": {"tag": ["a", "b"], "n": "0"},
        "correlationId": first["correlationId"],
        "traceabilityId": None,
    }
    assert len(first["correlationId"]) == 36


async def test_failed_records_are_dead_letters_as_they_were_with_why(world: ReactiveWorld):
    world.backend.set_orders(fail=10)
    group = build_settings(world.backend, world.topic)
    ids = [("X-Correlation-Id", b"c1"), ("X-Traceability-Id", b"t1")]
    world.write_raw(b"\xff\x00", b'{"n": -7}', headers=ids)
    world.write_raw(b"k", b"not json", headers=[("X-Correlation-Id", b"c2")])
    world.write_records(100)
    async with running_group(world, group) as http:
        await world.wait_until_settled()
        await wait_for_state(http, group, lag=0, processed=90, deadLetters=12)
    dead = await world.read_dead_letters()
    assert len(dead) == 12
    world.check_order()
    by_value = {dead_letter.value: dead_letter for dead_letter in dead}
    tenth = by_value[b'{"n": 10}']
    assert tenth.key == b"k3"
    assert list(tenth.headers[:3]) == [("tag", b"a"), ("tag", b"b"), ("n", b"10")]
    assert tenth.header_texts["StackTrace"] == "Boom: line 1"
    assert tenth.header_texts["X-Consumer-Group"] == group["group"]
    assert tenth.origin[:2] == (world.topic, tenth.partition)
    assert len(tenth.header_texts["X-Correlation-Id"]) == 36
    unreadable = by_value[b"not json"]
    assert "not JSON" in unreadable.header_texts["StackTrace"]
    assert unreadable.header_texts["X-Correlation-Id"] == "c2"
    not_text = by_value[b'{"n": -7}']
    assert not_text.key == b"\xff\x00"
    assert "not UTF-8" in not_text.header_texts["StackTrace"]
    assert not_text.header_texts["X-Traceability-Id"] == "t1"


async def test_a_back_end_that_is_away_costs_no_record(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic)
    async with running_group(world, group) as http:
        world.write_records(30)
        await world.wait_until_settled()
        for orders in ({"say": 503, "after": 1}, {"say": 429}, {"say": 404}, {"say": 401}):
            world.backend.set_orders(**orders)
            before = len(world.backend.calls)
            world.write_records(10)
            await wait_until(lambda n=before: len(world.backend.calls) > n, "a call")
            world.backend.set_orders()
            await world.wait_until_settled()
        world.backend.kill()
        world.write_records(10)
        await wait_until_held_up(http, group, "is not there")
        state = await get_state(http, group)
        assert state["lag"] == 10
        await world.backend.start()
        await world.wait_until_settled()
        await wait_for_state(http, group, lag=0, deadLetters=0)
    assert not world.kafka.admin.topic_exists(world.dead_topic)
    world.check_order()


async def test_a_batch_that_the_back_end_stumbles_over_is_taken_apart_while_it_is_well(world):
    world.backend.set_orders(stumble=[17, 42], well=False)
    group = build_settings(world.backend, world.topic, maxRetries=1)
    world.write_records(60)
    async with running_group(world, group) as http:
        await wait_until_held_up(http, group, "no dead letter: .*/health says 503")
        assert not world.kafka.admin.topic_exists(world.dead_topic)
        world.backend.set_orders(stumble=[17, 42])
        await world.wait_until_settled()
        await wait_for_state(http, group, lag=0)
    dead = await world.read_dead_letters()
    assert sorted(dead_letter.value or b"" for dead_letter in dead) == [b'{"n": 17}', b'{"n": 42}']
    assert "500: boom" in dead[0].header_texts["StackTrace"]
    world.check_order()
    assert set(get_numbers(world.backend.processed_records)) == set(range(60)) - {17, 42}


@pytest.mark.parametrize("say", ["garbage", "short", "empty"])
async def test_answers_that_say_nothing_of_the_records_skip_none(world: ReactiveWorld, say: str):
    world.backend.set_orders(say=say)
    group = build_settings(world.backend, world.topic, maxRetries=1000)
    world.write_records(20)
    async with running_group(world, group) as http:
        await wait_until(lambda: len(world.backend.calls) > 2, "tries")
        assert await world.fetch_committed(group["group"]) == 0
        world.backend.set_orders()
        await wait_for_state(http, group, lag=0, processed=20, deadLetters=0)


async def test_an_empty_answer_may_be_agreed_on(world: ReactiveWorld):
    world.backend.set_orders(say="empty")
    group = build_settings(world.backend, world.topic, acceptEmpty=True)
    world.write_records(20)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=20, repeated=0)


async def test_without_a_dead_letter_topic_the_lane_holds_and_says_so(world: ReactiveWorld):
    world.backend.set_orders(fail=10)
    group = build_settings(world.backend, world.topic, deadLetterMake=False)
    world.write_records(20)
    async with running_group(world, group) as http:
        await wait_until_held_up(http, group, f"dead letters of .* topic {world.dead_topic}")
        assert await world.fetch_committed(group["group"]) < 20
        world.kafka.create_topic(world.dead_topic, 1)
        await wait_for_state(http, group, lag=0, processed=18, deadLetters=2)
    assert len(await world.read_dead_letters()) == 2


async def test_a_deleted_dead_letter_topic_is_created_again(world: ReactiveWorld):
    """The letter on its way was in doubt for two minutes, and the lane stood for as long."""
    world.backend.set_orders(fail=10)
    group = build_settings(world.backend, world.topic)
    world.write_records(20)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=18, deadLetters=2)
        await asyncio.to_thread(world.kafka.admin.delete_topic, world.dead_topic)
        world.write_records(20)
        await wait_for_state(http, group, lag=0, processed=36, deadLetters=4)
    assert len(await world.read_dead_letters()) == 2


async def test_a_group_is_paused_resumed_and_sent_back_over_http(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic)
    path = f"/reactive/{group['group']}"
    world.write_records(30)
    async with running_group(world, group) as http:
        await world.wait_until_settled()
        assert (await http.post(f"{path}/pause")).json()["state"] == "PAUSED"
        calls = len(world.backend.calls)
        world.write_records(10)
        await wait_for_state(http, group, lag=10)
        assert len(world.backend.calls) == calls
        assert (await http.post(f"{path}/resume")).status_code == 200
        await wait_for_state(http, group, lag=0, processed=40)
        place = {"topic": world.topic, "partition": 0}
        answer = await http.post(f"{path}/seek", json={"offsets": [{**place, "offset": 2}]})
        assert answer.json() == {"offsets": [{**place, "offset": 2}]}, answer.text
        again = world.kafka.admin.get_high_watermark(world.topic, 0) - 2
        await wait_for_state(http, group, lag=0, processed=40 + again)
        answer = await http.post(f"{path}/seek", json={"to": "beginning"})
        assert {offset["offset"] for offset in answer.json()["offsets"]} == {0}
        await wait_for_state(http, group, lag=0, processed=80 + again)
        late = {"timestamps": [{**place, "timestamp": 1 << 45}]}
        answer = await http.post(f"{path}/seek", json=late)
        assert answer.json()["offsets"][0]["offset"] == again + 2
        for body, status, what in (
            ({"offsets": [{**place, "offset": 999}]}, 400, f"use 0 to {again + 2}"),
            ({"offsets": [{**place, "partition": 77, "offset": 0}]}, 409, "are not known now"),
            ({}, 400, "names no partition"),
        ):
            answer = await http.post(f"{path}/seek", json=body)
            assert answer.status_code == status, answer.text
            assert what in answer.text
    assert (await world.fetch_committed(group["group"])) == 40


async def test_a_seek_while_the_back_end_is_away_leaves_no_lane_standing(world: ReactiveWorld):
    """The lane was taken for full, and the partitions that were sought stayed paused for ever."""
    group = build_settings(world.backend, world.topic, maxPollRecords=5)
    world.backend.set_orders(say=503)
    world.write_records(60)
    async with running_group(world, group) as http:
        await wait_until_held_up(http, group, "says 503")
        path = f"/reactive/{group['group']}/seek"
        assert (await http.post(path, json={"to": "beginning"})).status_code == 200
        state = await get_state(http, group)
        world.backend.set_orders()
        await wait_for_state(http, group, lag=0, processed=60)
        assert {lane["heldUpBy"] for lane in (await get_state(http, group))["lanes"]} == {None}
    assert len(state["partitions"]) == 3
    world.check_order()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_rebalance_while_the_back_end_is_away_leaves_no_lane_standing(world, protocol):
    """What came back to a lane that had been full was never fetched again."""
    group = build_settings(world.backend, world.topic, maxPollRecords=5, groupProtocol=protocol)
    group |= {"parallelism": 2, "sessionTimeout": "6s", "revokeTimeout": "300ms"}
    world.backend.set_orders(say=503)
    world.write_records(90)
    async with running_group(world, group) as first:
        await wait_until_held_up(first, group, "says 503")
        async with running_group(world, group) as second:
            await wait_for_owner(second, group)
            await wait_until_held_up(second, group, "says 503")
        world.backend.set_orders()
        await wait_for_state(first, group, lag=0)
        await world.wait_until_settled()
    assert await world.fetch_committed(group["group"]) == 90
    world.check_order()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_recreated_topic_is_read_from_its_start(world: ReactiveWorld, protocol: str):
    """With the classic protocol it was never read again, with a lag of 0 at first."""
    group = build_settings(world.backend, world.topic, groupProtocol=protocol)
    world.write_records(30)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=30)
        await asyncio.to_thread(world.kafka.admin.delete_topic, world.topic)
        await asyncio.to_thread(world.kafka.admin.create_topic, world.topic, partitions=3)
        world.write_records(15)
        await wait_for_state(http, group, lag=0, processed=45)
        await world.wait_until_settled()
    assert await world.fetch_committed(group["group"]) == 15


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_member_goes_on_with_a_recreated_topic_where_another_one_has_come_to(
    world, protocol
):
    """Who had a partition before the topic was created again read the new one from its start, also
    after another member had read it for a minute: 127 records came again."""
    group = build_settings(world.backend, world.topic, groupProtocol=protocol)
    world.write_records(30)
    async with running_group(world, group) as first:
        await wait_for_state(first, group, lag=0, processed=30)
        async with running_group(world, group) as second:
            await wait_for_owner(second, group)
            await asyncio.to_thread(world.kafka.admin.delete_topic, world.topic)
            await asyncio.to_thread(world.kafka.admin.create_topic, world.topic, partitions=3)
            world.write_records(60)
            await world.wait_until_settled()
        world.write_records(30)
        await world.wait_until_settled()
    assert world.count_repeated() == 0
    assert await world.fetch_committed(group["group"]) == 90


async def test_an_answer_that_names_its_records_in_part_gives_up_none_of_the_others(world, caplog):
    """Items were taken by their place, and a good record became the dead letter of a bad one."""
    group = build_settings(world.backend, world.topic, maxRetries=1)
    world.backend.set_orders(say="partly", fail=10)
    world.write_records(12)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=10, deadLetters=2)
        assert sorted(
            int(dead_letter.header_texts["n"]) for dead_letter in await world.read_dead_letters()
        ) == [0, 10]
    assert "items of the back end's answer name their records" in caplog.text


async def test_a_lane_that_stands_still_makes_the_sidecar_unready(world: ReactiveWorld):
    """It said RUNNING and ready for as long as it stood."""
    world.backend.set_orders(say=503)
    group = build_settings(world.backend, world.topic, maxPollInterval="300ms")
    async with running_group(world, group) as http:
        await wait_until_ready(http)
        world.write_records(10)
        async with asyncio.timeout(60):
            while (answer := await http.get("/health/readiness")).is_success:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "a lane has not moved for" in answer.text and "says 503" in answer.text
        world.backend.set_orders()
        await wait_for_state(http, group, lag=0)
        await wait_until_ready(http)


async def test_an_unknown_group_is_an_error_with_the_nearest_name(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic, group="billing")
    async with running_group(world, group) as http:
        answer = await http.get("/reactive/biling")
        assert answer.status_code == 404
        assert "did you mean 'billing'?" in answer.json()["description"]


async def test_lanes_work_beside_each_other_and_one_that_waits_holds_up_no_other(world):
    group = build_settings(world.backend, world.topic, parallelism=3, maxPollRecords=10)
    world.write_records(210)
    world.backend.set_orders(delay=0.2)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=210)
        state = await get_state(http, group)
        assert [lane["partitions"] for lane in state["lanes"]] == [1, 1, 1]
    world.check_order()
    assert world.count_repeated() == 0
    assert all(
        len({record["partition"] for record in call["records"]}) == 1
        for call in world.backend.calls
    )


async def test_ends_of_transactions_are_caught_up_with(world: ReactiveWorld, oracle: Any):
    group = build_settings(world.backend, world.topic, parallelism=2)
    async with running_group(world, group) as http:
        async with oracle.open_transaction() as transaction:
            for _ in range(5):
                await transaction.send_records(world.topic, 1)
            await wait_for_state(http, group, lag=5, processed=0)
            await transaction.commit()
        await wait_for_state(http, group, lag=0, processed=5)


async def test_a_batch_that_is_not_answered_in_time_holds_up_a_rebalance_only_so_long(
    world, caplog
):
    """It is abandoned: nothing of it is committed, and who has its partitions gets it again.

    On a busy machine a batch was under way before the back end had read what to do with it, and was
    answered at once; or it had no record of the partition that was revoked.
    """
    group = build_settings(world.backend, world.topic, revokeTimeout="300ms")
    group["backend"]["timeout"] = "600s"
    world.write_records(1)
    world.backend.set_orders(hold=[0])
    async with running_group(world, group) as first:
        await wait_until(lambda: world.backend.arrived_count == 1, "the first batch", 60)
        world.write_records(59)
        await wait_for_lane(first, group, waiting=60)  # of all partitions, for the next batch
        world.backend.set_orders(delay=3600)
        await wait_until(lambda: world.backend.arrived_count == 2, "the next batch", 60)
        world.backend.set_orders()
        async with running_group(world, group) as second:
            await wait_until(lambda: "is abandoned: revoked" in caplog.text, "the revocation", 60)
            await wait_for_owner(second, group)
            await wait_for_state(second, group, lag=0)
            assert (await get_state(second, group))["processed"] > 0
            world.backend.kill()  # which the first one's request is still open to
            await world.backend.start()
            await world.wait_until_settled()
            await wait_for_state(first, group, lag=0)
    assert await world.fetch_committed(group["group"]) == 60
    assert world.count_repeated() == 0
    world.check_order()


async def test_topics_are_found_by_a_pattern_and_what_became_of_records_is_audited(world, tmp_path):
    world.backend.set_orders(fail=10)
    group = build_settings(
        world.backend, world.topic, topics=[], pattern=f"{world.topic}|nothing-.*"
    )
    world.write_records(20)
    file = tmp_path / "audit.log"
    async with running_group(world, group, audit={"to": "log", "file": str(file)}) as http:
        await wait_for_state(http, group, lag=0, processed=18, deadLetters=2)
        await wait_until(lambda: file.exists() and file.read_text().count("\n") == 20, "audit", 60)
    audited = [json.loads(line) for line in file.read_text().splitlines()]
    assert {event["auditType"] for event in audited} == {"REACTIVE_CONSUMER"}
    failed = [event for event in audited if event.get("stacktrace")]
    assert len(failed) == 2
    assert all(len(event["correlationId"]) == 36 for event in audited)


async def test_a_lane_that_does_not_move_is_reported_as_stuck_and_its_member_stays(world, caplog):
    world.backend.set_orders(say=503)
    group = build_settings(world.backend, world.topic, maxPollInterval="300ms")
    world.write_records(10)
    async with running_group(world, group) as http:
        await wait_for_lane(http, group, stuck=True)
        await wait_until(lambda: "a lane has not moved" in caplog.text, "the line", 60)
        state = await get_state(http, group)
        assert (state["state"], len(state["partitions"])) == ("RUNNING", 3)
        world.backend.set_orders()
        await wait_for_state(http, group, lag=0, deadLetters=0)
        assert not any(lane["stuck"] for lane in (await get_state(http, group))["lanes"])


async def test_the_right_to_read_a_group_does_not_include_pausing_it(world: ReactiveWorld):
    group = build_settings(world.backend, world.topic)
    path = f"/reactive/{group['group']}"
    config = {"guarded": {"users": []}, "reactive": {"groups": group}}
    async with running_sidecar(world.kafka.bootstrap, guards=GUARDS, **config) as http:
        reader = {"Authorization": "Bearer of-bob"}
        admin = {"Authorization": "Bearer of-ada"}
        assert (await http.get(path)).status_code == 401
        assert (await http.get(path, headers=reader)).status_code == 200
        assert (await http.post(f"{path}/pause", headers=reader)).status_code == 403
        assert (await http.post(f"{path}/pause", headers=admin)).status_code == 200


async def test_what_a_group_does_is_measured(world: ReactiveWorld):
    world.backend.set_orders(fail=10)
    group = build_settings(world.backend, world.topic)
    world.write_records(20)
    async with running_group(world, group) as http:
        await wait_for_state(http, group, lag=0, processed=18, deadLetters=2)
        text = (await http.get("/metrics")).text
        name, topic = group["group"], world.topic
        for line in (
            f'gateway_reactive_records_total{{group="{name}",topic="{topic}",outcome="dead"}} 2',
            f'gateway_reactive_held_up_lanes{{group="{name}"}} 0',
            f'gateway_reactive_rebalance_seconds_count{{group="{name}"}} 1',
        ):
            assert line in text, text
