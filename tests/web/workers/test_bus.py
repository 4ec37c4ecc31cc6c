"""What workers tell and ask each other, and that none waits for one that is away or slow."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from support.buses import Host, host
from support.until import until

from gateway.web.workers.bus import Away, Bus
from gateway.web.workers.link import Link

NEVER = 600.0  # s; a test that waited this long has failed


def hearing(made: Host, topic: str) -> list[tuple[int, int, Any]]:
    """Who heard what from whom; each answers ten times its own number."""
    heard: list[tuple[int, int, Any]] = []
    for bus in made.buses:

        def hear(worker: int, data: Any, own: int = bus.worker) -> int:
            heard.append((own, worker, data))
            return own * 10

        bus.on(topic, hear)
    return heard


def silent(made: Host, worker: int) -> socket.socket:
    """A worker that is there and never reads."""
    made_one = socket.socket(socket.AF_UNIX)
    made_one.connect(str(made.path))
    made_one.sendall(b'["hello",%d]\n' % worker)
    return made_one


async def test_what_one_says_all_others_hear_and_it_does_not():
    async with host(3) as made:
        heard = hearing(made, "tokens")
        await made.run()
        made.buses[0].say("tokens", {"jti": "é\n"})
        await until(lambda: len(heard) == 2)
        await made.buses[0].ask("tokens")  # whatever came twice would be there by now
        assert sorted(heard[:2]) == [(2, 1, {"jti": "é\n"}), (3, 1, {"jti": "é\n"})]
        assert [each for each in heard if each[2] is not None] == heard[:2]


async def test_what_one_says_is_heard_in_order():
    async with host(2) as made:
        heard = hearing(made, "count")
        await made.run()
        for n in range(1000):
            made.buses[0].say("count", n)
        await until(lambda: len(heard) == 1000)
        assert [data for _, _, data in heard] == list(range(1000))


async def test_a_question_is_answered_by_all_the_asker_too():
    async with host(3) as made:
        hearing(made, "clients")
        await made.run()
        asked = await asyncio.gather(*(bus.ask("clients", within=NEVER) for bus in made.buses))
        for answers in asked:
            assert answers == ({1: 10, 2: 20, 3: 30}, frozenset())


async def test_an_answer_may_be_large():
    async with host(2) as made:
        large = ["x" * 1000] * 8000
        made.buses[1].on("clients", lambda worker, data: large)
        await made.run()
        answers = await made.buses[0].ask("clients", within=NEVER)
        assert answers.said == {2: large} and answers.missing == {1}


async def test_one_that_fails_or_does_not_know_the_topic_is_missing_and_nobody_waits():
    async with host(3) as made:
        made.buses[0].on("metrics", lambda worker, data: 1)
        made.buses[1].on("metrics", lambda worker, data: 1 // 0)
        made.buses[2].on("metrics", lambda worker, data: object())  # no JSON
        await made.run()
        answers = await made.buses[0].ask("metrics", within=NEVER)
        assert answers == ({1: 1}, {2, 3})
        made.buses[0].say("metrics")  # and it still hears
        assert (await made.buses[1].ask("metrics", within=NEVER)).said == {1: 1}


async def test_one_that_goes_while_it_is_asked_is_not_waited_for():
    async with host(2) as made:
        hearing(made, "clients")
        await made.run()
        with silent(made, 3):
            await until(lambda: made.relay.workers == [1, 2, 3])
            made.buses[0].workers = 3
            asking = asyncio.create_task(made.buses[0].ask("clients", within=NEVER))
            done, _ = await asyncio.wait([asking], timeout=0.2)
            assert not done
        assert await asking == ({1: 10, 2: 20}, {3})


async def test_one_that_does_not_answer_in_time_is_missing():
    async with host(2) as made:
        hearing(made, "clients")
        await made.run()
        with silent(made, 3):
            await until(lambda: made.relay.workers == [1, 2, 3])
            answers = await made.buses[0].ask("clients", within=0.3)
            assert 3 not in answers.said and answers.said[1] == 10


async def test_one_that_reads_nothing_holds_up_nobody_and_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(Link, "UNREAD", 2**20)
    async with host(2) as made:
        heard = hearing(made, "news")
        await made.run()
        with silent(made, 3) as deaf:
            await until(lambda: made.relay.workers == [1, 2, 3])
            for n in range(400):
                made.buses[0].say("news", [n, "x" * 10_000])
                await until(lambda n=n: len(heard) > n, within=60, every=0)
            await until(lambda: made.relay.workers == [1, 2], "the deaf one is cut off", 60)
            deaf.setblocking(False)
        await made.linked()


async def test_who_was_cut_off_is_back_and_says_anew_what_others_must_know():
    async with host(2) as made:
        heard = hearing(made, "state")
        one, other = made.buses
        one.joined.append(lambda: one.say("state", "mine"))
        await made.run()
        for _ in range(3):
            before = len(heard)
            one.cut()
            await until(lambda before=before: len(heard) > before, "it is said again", 60)
            await made.linked()
        assert (await other.ask("state", within=NEVER)).said == {1: 10, 2: 20}


async def test_one_that_is_started_again_takes_the_place_of_the_one_before():
    async with host(2) as made:
        hearing(made, "clients")
        gone: list[int] = []
        made.relay.left.append(gone.append)
        await made.run()
        with silent(made, 2):  # while the old connection is still there
            await until(lambda: 2 in gone)  # and again, when the real one is back
            assert made.relay.workers == [1, 2]
        await made.linked()
        assert (await made.buses[0].ask("clients", within=NEVER)).said == {1: 10, 2: 20}


async def test_the_supervisor_answers_a_call():
    async with host(2) as made:
        made.relay.on("sum", lambda worker, data: [worker, sum(data)])
        await made.run()
        assert await made.buses[1].call("sum", [1, 2, 3], within=NEVER) == [2, 6]
        with pytest.raises(Away):
            await made.buses[1].call("sum", "text", within=NEVER)
        with pytest.raises(Away):
            await made.buses[1].call("unknown", within=NEVER)
        assert await made.buses[1].call("sum", [4], within=NEVER) == [2, 4]


async def test_without_the_supervisor_a_call_fails_and_a_question_is_answered_by_oneself():
    async with host(2) as made:
        hearing(made, "clients")
        await made.run()
        await made.relay.close()
        bus = made.buses[0]
        await until(lambda: not bus.linked)
        with pytest.raises(Away):
            await bus.call("anything")
        assert await bus.ask("clients") == ({1: 10}, {2})
        bus.say("clients")
        assert not await bus.until_linked(0.01)


async def test_a_call_under_way_fails_when_the_connection_is_lost():
    async with host(1) as made:
        await made.run()
        bus = made.buses[0]
        made.relay.on("cut", lambda worker, data: bus.cut())
        with pytest.raises(Away):
            await bus.call("cut", within=NEVER)


async def test_alone_all_of_it_works():
    bus = Bus()
    bus.on("clients", lambda worker, data: [worker, data])
    await bus.run()
    bus.say("clients", 1)
    assert await bus.ask("clients", 2) == ({1: [1, 2]}, frozenset())
    assert not bus.linked


async def test_only_the_own_user_can_reach_the_supervisor():
    from gateway.web.workers.supervisor import private_folder

    with private_folder() as folder:
        assert os.stat(folder).st_mode & 0o077 == 0
        socket.socket(socket.AF_UNIX).bind(str(folder / "bus"))
    assert not folder.exists()
