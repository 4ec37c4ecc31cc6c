"""What is said and answered; nothing of streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.until import until

from gateway.errors import RequestError
from gateway.hub.fanout.received_bytes import received_bytes
from gateway.web.websocket.conversation import (
    BAD_IN_A_ROW,
    MAX_HELD_BYTES,
    MOST_OWED,
    MOST_WAITING,
    Conversation,
    Work,
)
from gateway.web.websocket.messages import Ping, Said, Token
from gateway.wire.websocket import messages


class Talk(Conversation):
    """With a socket of its own. A token waits at the `door`; all but a ping is refused."""

    deflate = full = closed = False

    def __init__(self) -> None:
        super().__init__()
        self.socket: Any = self
        self.sent: list[dict[str, Any]] = []
        self.door = asyncio.Event()
        self.code = self.went_on = 0

    def take(self, said: Said) -> Work | None:
        if isinstance(said, Token):
            return self._let_in
        if not isinstance(said, Ping):
            raise RequestError(403, "Forbidden", "not here")
        self.answer("pong", said.id)
        return None

    async def _let_in(self) -> None:
        await self.door.wait()
        self.answer("renewed")

    def say(self, kind: str, **members: Any) -> None:
        self.heard(json.dumps({"type": kind, **members}))

    def told(self) -> list[str]:
        return [message["type"] for message in self.sent]

    # the socket

    def write(self, data: bytes) -> None:
        self.sent += map(json.loads, messages(data))

    def close(self, code: int, reason: str = "") -> None:
        self.code = code

    def go_on(self) -> None:
        self.went_on += 1


@pytest.fixture
async def talk() -> Talk:
    return Talk()


async def test_what_waits_for_nothing_is_answered_within_the_call_and_without_a_task(talk: Talk):
    for n in range(3):
        talk.say("ping", id=f"{n}")
    assert [message["id"] for message in talk.sent] == ["0", "1", "2"]
    assert len(asyncio.all_tasks()) == 1


async def test_what_comes_while_something_waits_is_done_behind_it_in_order(talk: Talk):
    talk.say("token", jwt="t")
    talk.say("ping")
    talk.say("unsubscribe", id="a")
    talk.say("token", jwt="t")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not talk.sent
    talk.door.set()
    await until(lambda: len(talk.sent) == 4)
    assert talk.told() == ["renewed", "pong", "error", "renewed"]
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert talk.went_on


async def test_a_client_that_says_much_while_something_waits_is_not_heard_on(talk: Talk):
    talk.say("token", jwt="t")
    for _ in range(MOST_WAITING):
        assert not talk.busy
        talk.say("ping")
    assert talk.busy
    talk.door.set()
    await until(lambda: len(talk.sent) == 1 + MOST_WAITING)
    await until(lambda: talk.went_on)
    assert not talk.busy


async def test_a_client_that_takes_no_answers_is_not_heard_on(talk: Talk):
    """But its grants are, up to then: it may not read before it has said all it wants to."""
    talk.full = True
    count = 0
    while not talk.busy:
        talk.say("ping", id="x" * 64)
        count += 1
    assert count > MOST_OWED / 200
    talk.full = False
    talk.drained()
    assert not talk.busy and talk.went_on == 1


async def test_what_is_bad_many_times_in_a_row_is_no_client_of_ours(talk: Talk):
    for _ in range(BAD_IN_A_ROW - 1):
        talk.say("nonsense")
    talk.say("ping")
    for _ in range(BAD_IN_A_ROW - 1):
        talk.say("nonsense")
    assert not talk.code
    talk.say("nonsense")
    assert talk.code == 1008


async def test_what_is_refused_may_come_as_often_as_it_likes(talk: Talk):
    for _ in range(2 * BAD_IN_A_ROW):
        talk.say("unsubscribe", id="a")
    assert talk.told() == ["error"] * 2 * BAD_IN_A_ROW and not talk.code


async def test_bytes_are_none_of_ours(talk: Talk):
    talk.heard(b"{}")
    assert talk.code == 1003


async def test_nothing_is_done_for_one_that_is_lost(talk: Talk):
    talk.say("token", jwt="t")
    talk.say("ping")
    talk.lost(1006, "")
    talk.door.set()
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert not talk.sent


async def test_what_breaks_closes_the_socket_and_is_logged(talk: Talk, caplog: Any):
    async def broken() -> None:
        raise LookupError("on purpose")

    talk.do(broken())
    await until(lambda: talk.code)
    assert talk.code == 1011 and "on purpose" in caplog.text


async def test_what_waits_is_bounded_by_its_bytes(talk: Talk):
    """64 messages of up to 1 MiB could wait for a slow guard, 64 MiB of one socket, and four times
    as much of texts that are not Latin."""
    before = received_bytes.total
    talk.say("token", jwt="t")
    count = 0
    while not talk.busy:
        talk.say("ping", id="\N{GRINNING FACE}" * 64, pad="x" * 100_000)
        count += 1
    assert count <= 1 + MAX_HELD_BYTES // 100_000
    assert received_bytes.total - before >= MAX_HELD_BYTES
    talk.door.set()
    await until(lambda: talk.went_on)
    assert not talk.busy and received_bytes.total == before


async def test_a_client_that_is_lost_holds_nothing(talk: Talk):
    before = received_bytes.total
    talk.say("token", jwt="t")
    talk.say("ping", pad="x" * 100_000)
    assert received_bytes.total > before
    talk.lost(1006, "")
    assert received_bytes.total == before
    talk.door.set()
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert received_bytes.total == before
