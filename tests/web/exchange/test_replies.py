"""Replies and who waits for them, with a topic that says what it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api.events import Record
from gateway.config import Topic
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.hub.reads.resume import Start
from gateway.web.exchange import replies as module
from gateway.web.exchange.replies import WINDOW, Kept, Replies, Reply


def record(id: str | None, value: bytes = b"v", offset: int = 0) -> Record:
    headers = () if id is None else (("id", id.encode()),)
    return Record("replies", 0, offset, 0, None, value, headers)


class Streams:
    """Streams of one topic, in place of the hub's. past: what was there before."""

    def __init__(self) -> None:
        self.past: list[Record] = []
        self.starts: list[Start] = []
        self.live: asyncio.Queue[Record | Exception] = asyncio.Queue()
        self.error: Exception | None = None

    def __call__(self, hub: Any, view: Any, start: Start, on_gap: Any) -> Any:
        self.starts.append(start)
        return Stream(self, start)


class Stream:
    def __init__(self, streams: Streams, start: Start) -> None:
        self._streams = streams
        self._start = start

    async def __aenter__(self) -> Stream:
        if self._streams.error is not None:
            raise self._streams.error
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> AsyncIterator[Record]:
        if self._start.until is not None:
            for each in self._streams.past:
                yield each
            return
        while True:
            each = await self._streams.live.get()
            if isinstance(each, Exception):
                raise each
            yield each


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(module, "Stream", made)
    return made


@pytest.fixture
def hub() -> Any:
    topic = Topic.model_validate({"name": "replies", "cache": {"bytes": "64KiB"}})
    return SimpleNamespace(replies=Counter(), topics=SimpleNamespace(settings=lambda name: topic))


@pytest.fixture
def replies(hub: Any, streams: Streams) -> Replies:
    return Replies(hub, "replies", "id")


async def test_each_who_waits_gets_its_own(replies: Replies, streams: Streams):
    await replies.begin()
    with replies.expect("a") as a, replies.expect("b") as b, replies.expect("a") as again:
        for id in ("x", None, "b", "a"):
            streams.live.put_nowait(record(id, str(id).encode()))
        async with asyncio.timeout(30):
            assert [(await each).value for each in (a, b, again)] == [b"a", b"b", b"a"]
    assert len(streams.starts) == 1


async def test_the_first_reply_counts_and_is_there_for_who_asks_later(
    replies: Replies, streams: Streams
):
    await replies.begin()
    with replies.expect("a") as a:
        streams.live.put_nowait(record("a", b"1"))
        streams.live.put_nowait(record("a", b"2"))
        async with asyncio.timeout(30):
            assert (await a).value == b"1"
    with replies.expect("last") as last:
        streams.live.put_nowait(record("last"))
        async with asyncio.timeout(30):
            await last
    with replies.expect("a") as a:
        assert a.done() and a.result().value == b"1"


async def test_what_comes_for_one_who_gave_up_is_late_once(
    hub: Any, replies: Replies, streams: Streams
):
    await replies.begin()
    for id, why in (("a", "timeout"), ("b", "left"), ("c", "timeout")):
        with replies.expect(id):
            pass
        replies.missed(id, why)
    with replies.expect("c") as again, replies.expect("last") as last:
        for id in ("a", "a", "b", "c", "unknown", "last"):
            streams.live.put_nowait(record(id))
        async with asyncio.timeout(30):
            await last
        assert again.done()
    counted = {word: count for (_, word), count in hub.replies.items()}
    assert counted == {"timeout": 2, "left": 1, "late": 2}


async def test_what_was_there_before_is_read_once_for_all_who_ask(
    replies: Replies, streams: Streams
):
    streams.past = [record("a", b"1"), record("b", b"2")]
    await replies.begin()
    with replies.expect("a") as a, replies.expect("b") as b:
        await asyncio.gather(*(replies.recall() for _ in range(10)))
        assert (a.result().value, b.result().value) == (b"1", b"2")
    live, past = streams.starts
    assert (live.until, past.until) == (None, "latest")
    assert isinstance(past.origin, int)


async def test_when_the_topic_cannot_be_read_all_hear_it_and_the_next_begins_again(
    replies: Replies, streams: Streams
):
    streams.error = BrokerUnavailable("away")
    with pytest.raises(BrokerUnavailable):
        await replies.begin()
    streams.error = None
    await replies.begin()
    with replies.expect("a") as a:
        streams.live.put_nowait(KafkaError("lost"))
        with pytest.raises(KafkaError, match="lost"):
            await a
    await replies.begin()
    assert len(streams.starts) == 3


async def test_after_a_reload_with_other_options_the_topic_is_read_anew_for_those_who_wait_too(
    hub: Any, replies: Replies, streams: Streams
):
    await replies.begin()
    with replies.expect("a") as a, replies.expect("b") as b:
        again = Topic.model_validate({"name": "replies", "cache": {"bytes": "64KiB"}})
        hub.topics.settings = lambda name: again
        await replies.begin()
        assert len(streams.starts) == 1
        other = Topic.model_validate({"name": "replies", "cache": {"bytes": "1MiB"}})
        hub.topics.settings = lambda name: other
        streams.past = [record("a")]
        await replies.begin()
        assert [start.until for start in streams.starts] == [None, None, "latest"]
        streams.live.put_nowait(record("b"))
        async with asyncio.timeout(30):
            assert [(await each).value for each in (a, b)] == [b"v", b"v"]


def test_the_oldest_are_forgotten_by_size_and_by_age():
    kept = Kept(10_000)
    for n in range(30):
        kept.add(str(n), Reply(record(str(n), bytes(500)), 0.0))
    assert kept.get("29") is not None and kept.get("0") is None
    assert sum(str(n) in kept for n in range(30)) == 9
    kept.add("new", Reply(record("new"), WINDOW))
    assert "29" not in kept and "new" in kept
