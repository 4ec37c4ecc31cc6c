"""What workers tell and ask each other, and that none waits for one that is away or slow."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from support.waiting import wait_until
from support.worker_buses import WorkerBuses, worker_buses

from gateway.web.workers.bus import Bus, SupervisorUnavailable

NEVER = 600.0  # s; a test that waited this long has failed


def record_messages(made: WorkerBuses, topic: str) -> list[tuple[int, int, Any]]:
    """Who heard what from whom; each answers ten times its own number."""
    heard: list[tuple[int, int, Any]] = []
    for bus in made.buses:

        def on_message(worker: int, data: Any, own: int = bus.worker) -> int:
            heard.append((own, worker, data))
            return own * 10

        bus.add_handler(topic, on_message)
    return heard


def connect_silent_worker(made: WorkerBuses, worker: int) -> socket.socket:
    """A worker that is there and never reads."""
    made_one = socket.socket(socket.AF_UNIX)
    made_one.connect(str(made.socket_path))
    made_one.sendall(b'["hello",%d]\n' % worker)
    return made_one


async def test_what_one_says_all_others_hear_and_it_does_not():
    async with worker_buses(3) as made:
        heard = record_messages(made, "tokens")
        await made.start()
        made.buses[0].broadcast("tokens", {"jti": "é\n"})
        await wait_until(lambda: len(heard) == 2)
        await made.buses[0].request("tokens")  # whatever came twice would be there by now
        assert sorted(heard[:2]) == [(2, 1, {"jti": "é\n"}), (3, 1, {"jti": "é\n"})]
        assert [each for each in heard if each[2] is not None] == heard[:2]


async def test_what_one_says_is_heard_in_order():
    async with worker_buses(2) as made:
        heard = record_messages(made, "count")
        await made.start()
        for n in range(1000):
            made.buses[0].broadcast("count", n)
        await wait_until(lambda: len(heard) == 1000)
        assert [data for _, _, data in heard] == list(range(1000))


async def test_a_question_is_answered_by_all_the_asker_too():
    async with worker_buses(3) as made:
        record_messages(made, "clients")
        await made.start()
        asked = await asyncio.gather(
            *(bus.request("clients", timeout_s=NEVER) for bus in made.buses)
        )
        for answers in asked:
            assert answers == ({1: 10, 2: 20, 3: 30}, frozenset())


async def test_an_answer_may_be_large():
    async with worker_buses(2) as made:
        large = ["x" * 1000] * 8000
        made.buses[1].add_handler("clients", lambda worker, data: large)
        await made.start()
        answers = await made.buses[0].request("clients", timeout_s=NEVER)
        assert answers.by_worker == {2: large} and answers.missing == {1}


async def test_one_that_fails_or_does_not_know_the_topic_is_missing_and_nobody_waits():
    async with worker_buses(3) as made:
        made.buses[0].add_handler("metrics", lambda worker, data: 1)
        made.buses[1].add_handler("metrics", lambda worker, data: 1 // 0)
        made.buses[2].add_handler("metrics", lambda worker, data: object())  # no JSON
        await made.start()
        answers = await made.buses[0].request("metrics", timeout_s=NEVER)
        assert answers == ({1: 1}, {2, 3})
        made.buses[0].broadcast("metrics")  # and it still hears
        assert (await made.buses[1].request("metrics", timeout_s=NEVER)).by_worker == {1: 1}


async def test_one_that_goes_while_it_is_asked_is_not_waited_for():
    async with worker_buses(2) as made:
        record_messages(made, "clients")
        await made.start()
        with connect_silent_worker(made, 3):
            await wait_until(lambda: made.relay.workers == [1, 2, 3])
            made.buses[0].worker_count = 3
            asking = asyncio.create_task(made.buses[0].request("clients", timeout_s=NEVER))
            done, _ = await asyncio.wait([asking], timeout=0.2)
            assert not done
        assert await asking == ({1: 10, 2: 20}, {3})


async def test_one_that_does_not_answer_in_time_is_missing():
    async with worker_buses(2) as made:
        record_messages(made, "clients")
        await made.start()
        with connect_silent_worker(made, 3):
            await wait_until(lambda: made.relay.workers == [1, 2, 3])
            answers = await made.buses[0].request("clients", timeout_s=0.3)
            assert 3 not in answers.by_worker and answers.by_worker[1] == 10


async def test_one_that_reads_nothing_holds_up_nobody_and_is_cut_off():
    async with worker_buses(2, max_unread_bytes=2**20) as made:
        heard = record_messages(made, "news")
        await made.start()
        with connect_silent_worker(made, 3) as deaf:
            await wait_until(lambda: made.relay.workers == [1, 2, 3])
            for n in range(400):
                made.buses[0].broadcast("news", [n, "x" * 10_000])
                await wait_until(lambda n=n: len(heard) > n, timeout_s=60, interval_s=0)
            await wait_until(lambda: made.relay.workers == [1, 2], "the deaf one is cut off", 60)
            deaf.setblocking(False)
        await made.wait_until_linked()


async def test_who_was_cut_off_is_back_and_says_anew_what_others_must_know():
    async with worker_buses(2) as made:
        heard = record_messages(made, "state")
        one, other = made.buses
        one.join_callbacks.append(lambda: one.broadcast("state", "mine"))
        await made.start()
        for _ in range(3):
            before = len(heard)
            one.abort_link()
            await wait_until(lambda before=before: len(heard) > before, "it is said again", 60)
            await made.wait_until_linked()
        assert (await other.request("state", timeout_s=NEVER)).by_worker == {1: 10, 2: 20}


async def test_one_that_is_started_again_takes_the_place_of_the_one_before():
    async with worker_buses(2) as made:
        record_messages(made, "clients")
        gone: list[int] = []
        made.relay.leave_callbacks.append(gone.append)
        await made.start()
        with connect_silent_worker(made, 2):  # while the old connection is still there
            await wait_until(lambda: 2 in gone)  # and again, when the real one is back
            assert made.relay.workers == [1, 2]
        await made.wait_until_linked()
        assert (await made.buses[0].request("clients", timeout_s=NEVER)).by_worker == {1: 10, 2: 20}


async def test_the_supervisor_answers_a_call():
    async with worker_buses(2) as made:
        made.relay.add_handler("sum", lambda worker, data: [worker, sum(data)])
        await made.start()
        assert await made.buses[1].call_supervisor("sum", [1, 2, 3], timeout_s=NEVER) == [2, 6]
        with pytest.raises(SupervisorUnavailable):
            await made.buses[1].call_supervisor("sum", "text", timeout_s=NEVER)
        with pytest.raises(SupervisorUnavailable):
            await made.buses[1].call_supervisor("unknown", timeout_s=NEVER)
        assert await made.buses[1].call_supervisor("sum", [4], timeout_s=NEVER) == [2, 4]


async def test_without_the_supervisor_a_call_fails_and_a_question_is_answered_by_oneself():
    async with worker_buses(2) as made:
        record_messages(made, "clients")
        await made.start()
        await made.relay.close()
        bus = made.buses[0]
        await wait_until(lambda: not bus.is_linked)
        with pytest.raises(SupervisorUnavailable):
            await bus.call_supervisor("anything")
        assert await bus.request("clients") == ({1: 10}, {2})
        bus.broadcast("clients")
        assert not await bus.wait_until_linked(0.01)


async def test_a_call_under_way_fails_when_the_connection_is_lost():
    async with worker_buses(1) as made:
        await made.start()
        bus = made.buses[0]
        made.relay.add_handler("cut", lambda worker, data: bus.abort_link())
        with pytest.raises(SupervisorUnavailable):
            await bus.call_supervisor("cut", timeout_s=NEVER)


async def test_alone_all_of_it_works():
    bus = Bus()
    bus.add_handler("clients", lambda worker, data: [worker, data])
    await bus.run()
    bus.broadcast("clients", 1)
    assert await bus.request("clients", 2) == ({1: [1, 2]}, frozenset())
    assert not bus.is_linked


async def test_only_the_own_user_can_reach_the_supervisor():
    from gateway.web.app.supervisor import private_folder

    with private_folder() as folder:
        assert os.stat(folder).st_mode & 0o077 == 0
        socket.socket(socket.AF_UNIX).bind(str(folder / "bus"))
    assert not folder.exists()
