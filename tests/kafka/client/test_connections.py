from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from support.fake_broker import Asked, FakeBroker, silent
from support.tcp_proxy import TcpProxy
from support.until import until

from gateway.core.log.recovery import Backoff
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.client.connections import Connections, Role
from gateway.kafka.protocol.requests import Request, Versions


@dataclass
class Echo(Request[bytes]):
    """Api 0, whose answer is what was sent."""

    API = 0
    NAME = "Echo"
    SPOKEN = Versions(3, 8, 100)
    body: bytes = b"hello"

    def encode(self, version: int) -> bytes:
        return self.body

    def decode(self, version: int, data: bytes, pos: int) -> bytes:
        return data[pos:]


async def echo(asked: Asked) -> bytes | None:
    return asked.body


def connections(broker: FakeBroker, **options: object) -> Connections:
    options = {"request_timeout": 5.0, "backoff": lambda: Backoff(1.0, lambda: 1.0)} | options
    made = Connections(client_id="tester", **options)  # type: ignore[arg-type]
    made.know({1: broker.address})
    return made


async def test_an_answer_comes_back_in_the_highest_version_both_speak():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"hello"
        assert broker.asked == [Asked(0, 8, "tester", b"hello")]
        assert kafka.requests == {"Echo": 1}
        await kafka.close()


async def test_a_broker_too_old_is_told_with_both_ranges():
    async with FakeBroker(echo) as broker:
        broker.speaks[0] = (0, 2)
        kafka = connections(broker)
        with pytest.raises(KafkaError, match="speaks Echo 0 to 2, the gateway 3 to 8"):
            await kafka.send(1, Role.CONTROL, Echo())
        await kafka.close()


async def test_callers_of_one_role_share_a_connection_and_roles_do_not():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        await asyncio.gather(*(kafka.send(1, Role.CONTROL, Echo()) for _ in range(20)))
        assert broker.accepted == 1
        await kafka.send(1, Role.TAIL, Echo())
        assert broker.accepted == 2
        await kafka.close()


async def test_a_waiting_fetch_does_not_hold_up_control_requests():
    async def slow(asked: Asked) -> bytes | None:
        return await (silent if asked.body == b"wait" else echo)(asked)

    async with FakeBroker(slow) as broker:
        kafka = connections(broker)
        waiting = asyncio.create_task(kafka.send(1, Role.TAIL, Echo(b"wait")))
        await until(lambda: broker.asked)
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"hello"
        assert not waiting.done()
        waiting.cancel()
        await kafka.close()


async def test_a_frozen_broker_holds_up_no_other():
    async with FakeBroker(mute=True) as frozen, FakeBroker(echo) as broker:
        kafka = connections(broker)
        kafka.know({2: frozen.address})
        stuck = asyncio.create_task(kafka.send(2, Role.CONTROL, Echo()))
        await until(lambda: frozen.accepted)
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"hello"
        assert not stuck.done()
        stuck.cancel()
        await kafka.close()


async def test_a_broker_that_is_back_is_reached_before_tcp_would_repeat_what_was_lost():
    """Hidden for 3.2 s: the SYN of 0 s is repeated after 1 and 3 s, then after 7 s; other attempts
    have their own."""
    async with FakeBroker(echo) as broker, TcpProxy(*broker.address) as network:
        kafka = connections(broker, request_timeout=20.0)
        kafka.know({1: ("127.0.0.1", network.port)})
        await network.hide()
        answer = asyncio.create_task(kafka.send(1, Role.CONTROL, Echo()))
        await asyncio.sleep(3.2)  # how long it is hidden
        began = asyncio.get_running_loop().time()
        await network.unhide()
        assert await answer == b"hello"
        assert asyncio.get_running_loop().time() - began < 3.5
        assert len(network.connects) <= 9  # one every half a second
        await kafka.close()


async def test_no_answer_in_time_closes_the_connection_and_says_timeout():
    async with FakeBroker(silent) as broker:
        kafka = connections(broker, request_timeout=0.05)
        with pytest.raises(BrokerUnavailable) as failed:
            await kafka.send(1, Role.CONTROL, Echo())
        assert (failed.value.node, failed.value.timeout) == (1, True)
        await until(lambda: broker.connected == 0)
        await kafka.close()


async def test_a_broker_that_does_not_even_greet_is_a_timeout():
    async with FakeBroker(mute=True) as broker:
        kafka = connections(broker, request_timeout=0.05)
        with pytest.raises(BrokerUnavailable) as failed:
            await kafka.send(1, Role.CONTROL, Echo())
        assert failed.value.timeout
        await until(lambda: broker.connected == 0)
        await kafka.close()


async def test_a_lost_connection_is_unavailable_and_made_anew_after_its_delay():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        await kafka.send(1, Role.CONTROL, Echo())
        broker.answer = silent
        waiting = asyncio.create_task(kafka.send(1, Role.CONTROL, Echo()))
        for sent in (2, 3):  # it is sent once more
            await until(lambda sent=sent: len(broker.asked) == sent)
            broker.cut()
        with pytest.raises(BrokerUnavailable) as failed:
            await waiting
        assert not failed.value.timeout
        assert kafka.retry_at(1) is not None
        broker.answer = echo

        async with asyncio.timeout(10):
            while (at := kafka.retry_at(1)) is not None:
                await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
                assert await kafka.send(1, Role.CONTROL, Echo()) == b"hello"
        assert kafka.retry_at(1) is None
        await kafka.close()


async def test_an_idle_connection_that_the_broker_closed_is_replaced_without_an_error():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        link = await kafka.connect(1, Role.CONTROL)
        broker.cut()
        await until(lambda: not link.open)
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"hello"
        await kafka.close()


async def test_a_refused_broker_is_not_tried_again_before_its_delay():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker, backoff=lambda: Backoff(60.0, lambda: 1.0, floor=60.0))
        await broker.stop()
        errors = []
        for _ in range(3):
            with pytest.raises(BrokerUnavailable) as failed:
                await kafka.send(1, Role.CONTROL, Echo())
            errors.append(failed.value)
        assert "cannot be reached" in str(errors[0])
        assert "tried again in" in str(errors[2])
        assert "cannot be reached" in str(errors[2])
        assert 0 < (errors[2].retry_after or 0) <= 60
        await kafka.close()


async def test_failures_of_one_outage_count_once():
    """Twenty waiting requests on a connection that breaks are one lost connection."""
    made: list[Backoff] = []

    def backoff() -> Backoff:
        made.append(Backoff(1.0, lambda: 1.0))
        return made[-1]

    async with FakeBroker(silent) as broker:
        kafka = connections(broker, backoff=backoff)
        tasks = [asyncio.create_task(kafka.send(1, Role.CONTROL, Echo())) for _ in range(20)]
        await until(lambda: broker.asked)
        broker.cut()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, BrokerUnavailable) for result in results)
        assert made[0].attempts == 1
        await kafka.close()


async def test_a_broker_that_moved_is_found_at_its_new_address():
    async with FakeBroker(echo) as old, FakeBroker(echo) as new:
        kafka = connections(old)
        await kafka.send(1, Role.CONTROL, Echo())
        kafka.know({1: new.address})
        await until(lambda: old.connected == 0)
        await kafka.send(1, Role.CONTROL, Echo())
        assert new.asked
        await kafka.close()


async def test_who_waits_for_a_broker_that_moves_is_told_and_not_cancelled():
    async with FakeBroker(mute=True) as old, FakeBroker(echo) as new:
        kafka = connections(old)
        waiting = asyncio.create_task(kafka.send(1, Role.CONTROL, Echo()))
        await until(lambda: old.accepted)
        kafka.know({1: new.address})
        with pytest.raises(BrokerUnavailable, match="moved"):
            await waiting
        await kafka.close()


async def test_a_caller_that_gives_up_does_not_take_the_attempt_from_others():
    async with FakeBroker(echo, mute=True) as broker:
        kafka = connections(broker)
        first = asyncio.create_task(kafka.connect(1, Role.CONTROL))
        await until(lambda: broker.accepted)
        second = asyncio.create_task(kafka.connect(1, Role.CONTROL))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not second.done()
        broker.cut()
        with pytest.raises(BrokerUnavailable):
            await second
        assert broker.accepted == 1
        await kafka.close()


async def test_malformed_answers_are_a_broken_connection_not_a_crash():
    @dataclass
    class Strict(Echo):
        def decode(self, version: int, data: bytes, pos: int) -> bytes:
            raise ValueError("what is this")

    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        with pytest.raises(BrokerUnavailable, match="what is this"):
            await kafka.send(1, Role.CONTROL, Strict())
        await kafka.close()


async def test_an_unknown_broker_is_unavailable():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        with pytest.raises(BrokerUnavailable, match="not in the cluster's metadata"):
            await kafka.send(7, Role.CONTROL, Echo())
        await kafka.close()


async def test_a_throttled_broker_has_that_much_longer_to_answer():
    """KIP-219: the broker answers the throttled request at once and delays the next one."""

    @dataclass
    class Throttled:
        throttle_ms: int = 60_000

    @dataclass
    class Strained(Echo):
        def decode(self, version: int, data: bytes, pos: int) -> Throttled:  # type: ignore[override]
            return Throttled()

    async def late(asked: Asked) -> bytes | None:
        await asyncio.sleep(0.3)
        return b"late"

    async with FakeBroker(echo) as broker:
        kafka = connections(broker, request_timeout=0.1)
        await kafka.send(1, Role.CONTROL, Strained())
        broker.answer = late
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"late"
        await kafka.close()


async def test_closing_ends_connections_attempts_and_tasks():
    before = asyncio.all_tasks()
    async with FakeBroker(echo) as broker, FakeBroker(mute=True) as frozen:
        kafka = connections(broker)
        kafka.know({2: frozen.address})
        await kafka.send(1, Role.CONTROL, Echo())
        stuck = asyncio.create_task(kafka.send(2, Role.CONTROL, Echo()))
        await until(lambda: frozen.accepted)
        await kafka.close()
        with pytest.raises(BrokerUnavailable):
            await stuck
        with pytest.raises(BrokerUnavailable):
            await kafka.send(1, Role.CONTROL, Echo())
        await until(lambda: broker.connected == 0 and frozen.connected == 0)
    await until(lambda: asyncio.all_tasks() == before)


async def test_a_spare_link_is_nobody_elses_and_is_kept_for_the_next():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        async with kafka.spare(1) as one, kafka.spare(1) as two:
            assert one is not two
            assert await kafka.ask(one, Echo()) == await kafka.ask(two, Echo())
        async with kafka.spare(1) as again:
            assert again in (one, two)
        assert kafka.asked.connects[Role.SPARE] == 2
        await kafka.close()


async def test_a_spare_link_whose_answer_was_not_waited_for_is_closed():
    async with FakeBroker(silent) as broker:
        kafka = connections(broker)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), kafka.spare(1) as link:
                await kafka.ask(link, Echo())
        assert not link.open
        await kafka.close()


async def test_spare_links_end_with_the_connections_lent_or_not():
    async with FakeBroker(echo) as broker:
        kafka = connections(broker)
        async with kafka.spare(1) as kept:
            pass
        async with kafka.spare(1) as lent, kafka.spare(1) as other:
            await kafka.close()
            assert not (kept.open or lent.open or other.open)


async def test_a_request_that_finds_its_connection_closed_is_sent_once_more():
    """Brokers close idle connections, and those whose session is over, upon the next request:
    that request failed, and others behind it for as long as the broker was taken for ill."""
    answers = iter([b"first", None, b"second"])

    async def closing(asked: Asked) -> bytes | None:
        return next(answers)

    async with FakeBroker(closing) as broker:
        kafka = connections(broker)
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"first"
        assert await kafka.send(1, Role.CONTROL, Echo()) == b"second"
        assert (broker.accepted, kafka.retry_at(1)) == (2, None)
        assert not kafka.asked.failures
        await kafka.close()


async def test_many_requests_of_a_closed_connection_share_the_next_one():
    closed = asyncio.Event()

    async def closing(asked: Asked) -> bytes | None:
        if len(broker.asked) > 1 and not closed.is_set():
            closed.set()
            return None
        return asked.body

    async with FakeBroker(closing) as broker:
        kafka = connections(broker)
        await kafka.send(1, Role.CONTROL, Echo())
        some = [kafka.send(1, Role.CONTROL, Echo(b"%d" % n)) for n in range(5)]
        assert await asyncio.gather(*some) == [b"%d" % n for n in range(5)]
        assert broker.accepted == 2
        await kafka.close()


async def test_a_request_that_no_connection_answers_is_not_sent_for_ever():
    async def closing(asked: Asked) -> bytes | None:
        return b"first" if len(broker.asked) == 1 else None

    async with FakeBroker(closing) as broker:
        kafka = connections(broker)
        await kafka.send(1, Role.CONTROL, Echo())
        with pytest.raises(BrokerUnavailable):
            await kafka.send(1, Role.CONTROL, Echo())
        assert len(broker.asked) == 3
        await kafka.close()
