"""Replies and who waits for them, with a topic that says what it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api.events import Record
from gateway.client_memory import ClientMemory, HeldPart
from gateway.config import Topic
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.hub.reads.position_resolver import StreamStart
from gateway.web.routing import replies as module
from gateway.web.routing.replies import REPLY_WINDOW_S, Reply, ReplyCache, ReplyReader


def build_record(id: str | None, value: bytes = b"v", offset: int = 0) -> Record:
    headers = () if id is None else (("id", id.encode()),)
    return Record("replies", 0, offset, 0, None, value, headers)


class FakeStreams:
    """Streams of one topic, in place of the hub's. past: what was there before."""

    def __init__(self) -> None:
        self.past_records: list[Record] = []
        self.starts: list[StreamStart] = []
        self.live_records: asyncio.Queue[Record | Exception] = asyncio.Queue()
        self.error: Exception | None = None

    def __call__(self, hub: Any, view: Any, start: StreamStart, on_gap: Any) -> Any:
        self.starts.append(start)
        return FakeStream(self, start)


class FakeStream:
    def __init__(self, streams: FakeStreams, start: StreamStart) -> None:
        self._streams = streams
        self._start = start

    async def __aenter__(self) -> FakeStream:
        if self._streams.error is not None:
            raise self._streams.error
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> AsyncIterator[Record]:
        if self._start.until is not None:
            for each in self._streams.past_records:
                yield each
            return
        while True:
            each = await self._streams.live_records.get()
            if isinstance(each, Exception):
                raise each
            yield each


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
    made = FakeStreams()
    monkeypatch.setattr(module, "Stream", made)
    return made


@pytest.fixture
def hub() -> Any:
    topic = Topic.model_validate({"name": "replies", "cache": {"bytes": "64KiB"}})
    return SimpleNamespace(
        replies=Counter(),
        client_memory=ClientMemory(),
        topics=SimpleNamespace(get_settings=lambda name: topic),
    )


@pytest.fixture
def replies(hub: Any, streams: FakeStreams) -> ReplyReader:
    return ReplyReader(hub, "replies", "id")


async def test_each_who_waits_gets_its_own(replies: ReplyReader, streams: FakeStreams):
    await replies.start_reading()
    with (
        replies.expect_reply("a") as a,
        replies.expect_reply("b") as b,
        replies.expect_reply("a") as again,
    ):
        for id in ("x", None, "b", "a"):
            streams.live_records.put_nowait(build_record(id, str(id).encode()))
        async with asyncio.timeout(30):
            assert [(await each).value for each in (a, b, again)] == [b"a", b"b", b"a"]
    assert len(streams.starts) == 1


async def test_the_first_reply_counts_and_is_there_for_who_asks_later(replies, streams):
    await replies.start_reading()
    with replies.expect_reply("a") as a:
        streams.live_records.put_nowait(build_record("a", b"1"))
        streams.live_records.put_nowait(build_record("a", b"2"))
        async with asyncio.timeout(30):
            assert (await a).value == b"1"
    with replies.expect_reply("last") as last:
        streams.live_records.put_nowait(build_record("last"))
        async with asyncio.timeout(30):
            await last
    with replies.expect_reply("a") as a:
        assert a.done() and a.result().value == b"1"


async def test_what_comes_for_one_who_gave_up_is_late_once(hub, replies, streams):
    await replies.start_reading()
    for id, why in (("a", "timeout"), ("b", "left"), ("c", "timeout")):
        with replies.expect_reply(id):
            pass
        replies.mark_missed(id, why)
    with replies.expect_reply("c") as again, replies.expect_reply("last") as last:
        for id in ("a", "a", "b", "c", "unknown", "last"):
            streams.live_records.put_nowait(build_record(id))
        async with asyncio.timeout(30):
            await last
        assert again.done()
    counted = {word: count for (_, word), count in hub.replies.items()}
    assert counted == {"timeout": 2, "left": 1, "late": 2}


async def test_what_was_there_before_is_read_once_for_all_who_ask(replies, streams):
    streams.past_records = [build_record("a", b"1"), build_record("b", b"2")]
    await replies.start_reading()
    with replies.expect_reply("a") as a, replies.expect_reply("b") as b:
        await asyncio.gather(*(replies.load_recent() for _ in range(10)))
        assert (a.result().value, b.result().value) == (b"1", b"2")
    live, past = streams.starts
    assert (live.until, past.until) == (None, "latest")
    assert isinstance(past.origin, int)


async def test_when_the_topic_cannot_be_read_all_hear_it_and_the_next_begins_again(
    replies, streams
):
    streams.error = BrokerUnavailable("away")
    with pytest.raises(BrokerUnavailable):
        await replies.start_reading()
    streams.error = None
    await replies.start_reading()
    with replies.expect_reply("a") as a:
        streams.live_records.put_nowait(KafkaError("lost"))
        with pytest.raises(KafkaError, match="lost"):
            await a
    await replies.start_reading()
    assert len(streams.starts) == 3


def test_the_oldest_are_forgotten_by_size_and_by_age():
    memory = ClientMemory()
    kept = ReplyCache(10_000, memory)
    for n in range(30):
        kept.add(str(n), Reply(build_record(str(n), bytes(500)), 0.0))
    assert kept.get("29") is not None and kept.get("0") is None
    assert sum(str(n) in kept for n in range(30)) == 9
    kept.add("new", Reply(build_record("new"), REPLY_WINDOW_S))
    assert "29" not in kept and "new" in kept


def test_replies_count_towards_memory_and_the_older_half_goes_when_that_is_short():
    """As much as the topic's cache may have was kept besides all that `memory` limits."""
    memory = ClientMemory()
    kept = ReplyCache(10_000, memory)
    for n in range(8):
        kept.add(str(n), Reply(build_record(str(n), bytes(500)), 0.0))
    before = memory.by_part[HeldPart.REPLIES]
    kept.release_memory()
    assert [str(n) in kept for n in range(8)] == [False] * 4 + [True] * 4
    assert memory.total == memory.by_part[HeldPart.REPLIES] == before // 2
