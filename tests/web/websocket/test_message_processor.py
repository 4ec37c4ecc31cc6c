"""What is said and answered; nothing of streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.waiting import wait_until

from gateway.client_memory import ClientMemory, HeldPart
from gateway.errors import RequestError
from gateway.web.routing.messages import ClientMessage, PingMessage, TokenMessage
from gateway.web.websocket.message_processor import (
    MAX_BAD_MESSAGES,
    MAX_HELD_BYTES,
    MAX_QUEUED_MESSAGES,
    MAX_UNSENT_BYTES,
    CoroutineFactory,
    MessageProcessor,
)
from gateway.wire.websocket import iter_texts


class RecordingHandler(MessageProcessor):
    """With a socket of its own. A token waits at the `door`; all but a ping is refused."""

    deflate = full = closed = False

    def __init__(self) -> None:
        self.memory = ClientMemory()
        super().__init__(self.memory)
        self.socket: Any = self
        self.sent: list[dict[str, Any]] = []
        self.may_admit = asyncio.Event()
        self.code = self.resume_count = 0

    def handle_message(self, message: ClientMessage) -> CoroutineFactory | None:
        if isinstance(message, TokenMessage):
            return self._admit_token
        if not isinstance(message, PingMessage):
            raise RequestError(403, "Forbidden", "not here")
        self.send_message("pong", message.id)
        return None

    async def _admit_token(self) -> None:
        await self.may_admit.wait()
        self.send_message("renewed")

    def receive_message(self, kind: str, **members: Any) -> None:
        self.on_message(json.dumps({"type": kind, **members}))

    def list_sent_types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    # the socket

    def write(self, data: bytes) -> None:
        self.sent += map(json.loads, iter_texts(data))

    def close(self, code: int, reason: str = "") -> None:
        self.code = code

    def resume_reading(self) -> None:
        self.resume_count += 1


@pytest.fixture
async def talk() -> RecordingHandler:
    return RecordingHandler()


async def test_what_waits_for_nothing_is_answered_within_the_call_and_without_a_task(talk):
    for n in range(3):
        talk.receive_message("ping", id=f"{n}")
    assert [message["id"] for message in talk.sent] == ["0", "1", "2"]
    assert len(asyncio.all_tasks()) == 1


async def test_what_comes_while_something_waits_is_done_behind_it_in_order(talk: RecordingHandler):
    talk.receive_message("token", jwt="t")
    talk.receive_message("ping")
    talk.receive_message("unsubscribe", id="a")
    talk.receive_message("token", jwt="t")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not talk.sent
    talk.may_admit.set()
    await wait_until(lambda: len(talk.sent) == 4)
    assert talk.list_sent_types() == ["renewed", "pong", "error", "renewed"]
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert talk.resume_count


async def test_a_large_message_is_parsed_outside_the_event_loop_and_in_its_order(talk):
    """Ten sockets had 1 MiB each parsed in each turn of the loop, of 1 KB that they had sent."""
    talk.receive_message("produce", id="1", path="/", value=[1.5] * 10_000)
    talk.receive_message("ping")
    assert not talk.sent
    await wait_until(lambda: len(talk.sent) == 2)
    assert talk.list_sent_types() == ["error", "pong"]
    talk.receive_message("produce", id="1", path="/", vlaue="a" * 10_000)
    await wait_until(lambda: len(talk.sent) == 3 and not talk.memory.total)
    assert "did you mean 'value'" in str(talk.sent[-1])


async def test_a_client_that_says_much_while_something_waits_is_not_heard_on(talk):
    talk.receive_message("token", jwt="t")
    for _ in range(MAX_QUEUED_MESSAGES):
        assert not talk.is_busy
        talk.receive_message("ping")
    assert talk.is_busy
    talk.may_admit.set()
    await wait_until(lambda: len(talk.sent) == 1 + MAX_QUEUED_MESSAGES)
    await wait_until(lambda: talk.resume_count)
    assert not talk.is_busy


async def test_a_client_that_takes_no_answers_is_not_heard_on(talk: RecordingHandler):
    """But its grants are, up to then: it may not read before it has said all it wants to."""
    talk.full = True
    count = 0
    while not talk.is_busy:
        talk.receive_message("ping", id="x" * 64)
        count += 1
    assert count > MAX_UNSENT_BYTES / 200
    talk.full = False
    talk.on_drained()
    assert not talk.is_busy and talk.resume_count == 1


async def test_what_is_bad_many_times_in_a_row_is_no_client_of_ours(talk: RecordingHandler):
    for _ in range(MAX_BAD_MESSAGES - 1):
        talk.receive_message("nonsense")
    talk.receive_message("ping")
    for _ in range(MAX_BAD_MESSAGES - 1):
        talk.receive_message("nonsense")
    assert not talk.code
    talk.receive_message("nonsense")
    assert talk.code == 1008


async def test_what_is_refused_may_come_as_often_as_it_likes(talk: RecordingHandler):
    for _ in range(2 * MAX_BAD_MESSAGES):
        talk.receive_message("unsubscribe", id="a")
    assert talk.list_sent_types() == ["error"] * 2 * MAX_BAD_MESSAGES and not talk.code


async def test_bytes_are_none_of_ours(talk: RecordingHandler):
    talk.on_message(b"{}")
    assert talk.code == 1003


async def test_nothing_is_done_for_one_that_is_lost(talk: RecordingHandler):
    talk.receive_message("token", jwt="t")
    talk.receive_message("ping")
    talk.on_closed(1006, "")
    talk.may_admit.set()
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert not talk.sent


async def test_what_breaks_closes_the_socket_and_is_logged(talk: RecordingHandler, caplog: Any):
    async def raise_error() -> None:
        raise LookupError("on purpose")

    talk.start_task(raise_error())
    await wait_until(lambda: talk.code)
    assert talk.code == 1011 and "on purpose" in caplog.text


async def test_what_waits_is_bounded_by_its_bytes(talk: RecordingHandler):
    """64 messages of up to 1 MiB could wait for a slow guard, 64 MiB of one socket, and four times
    as much of texts that are not Latin."""
    talk.receive_message("token", jwt="t")
    count = 0
    while not talk.is_busy:
        talk.receive_message("ping", id="\N{GRINNING FACE}" * 64, pad="x" * 100_000)
        count += 1
    assert count <= 1 + MAX_HELD_BYTES // 100_000
    assert talk.memory.by_part[HeldPart.RECEIVED] >= MAX_HELD_BYTES
    talk.may_admit.set()
    await wait_until(lambda: not talk.memory.total)
    assert not talk.is_busy and talk.resume_count


async def test_a_client_that_is_lost_holds_nothing(talk: RecordingHandler):
    talk.receive_message("token", jwt="t")
    talk.receive_message("ping", pad="x" * 100_000)
    assert talk.memory.total
    talk.on_closed(1006, "")
    assert not talk.memory.total
    talk.may_admit.set()
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    assert not talk.memory.total


async def test_the_message_that_waits_counts_as_memory_while_it_does(talk: RecordingHandler):
    """It counted nothing, while those behind it did: 1 MiB of a filter, for as long as a guard."""
    talk.receive_message("token", jwt="x" * 60_000)
    await wait_until(lambda: talk.memory.by_part[HeldPart.RECEIVED] > 60_000)
    talk.may_admit.set()
    await wait_until(lambda: talk.list_sent_types() == ["renewed"])
    await wait_until(lambda: not talk.memory.by_part[HeldPart.RECEIVED])
