from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
from support.redis import RedisServer

from gateway.errors import PipelineError, PipelineUnavailable
from gateway.pipeline.tables import lookup
from gateway.pipeline.tables.lookup import LookupConfig, LookupTable
from gateway.pipeline.tables.redis import RedisConfig, RedisTable, RedisUnavailable, decode_texts


class Clock:
    """Time passes where it is waited for, and where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Stored:
    """In Redis's place: `rows`, after `failures` requests without an answer."""

    def __init__(self, clock: Clock, rows: dict[str, bytes], failures: int = 0) -> None:
        self.clock, self.rows, self.failures, self.requests = clock, rows, failures, 0

    def fetch_values(self, keys: Sequence[str]) -> Iterator[tuple[Sequence[str], list[Any], float]]:
        self.requests += 1
        if self.failures:
            self.failures -= 1
            raise RedisUnavailable("connection refused")
        yield keys, [self.rows.get(key) for key in keys], self.clock()


def looked(
    server: str = "redis://nowhere", *, staleness: float = 5.0, fallback: str | None = None
) -> LookupConfig:
    return LookupConfig(
        RedisConfig(server, "t:", keys_per_command=2), 100, staleness, 1.0, fallback
    )


def table(of: LookupConfig, stored: Stored) -> LookupTable:
    return LookupTable(
        of, create_redis=lambda _: stored, clock=stored.clock, sleep=stored.clock.sleep
    )  # type: ignore[arg-type, return-value]


@pytest.fixture
def fallback(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's, whose function knows one key."""
    module = ModuleType("users_of_tests")
    module.find = lambda keys: {key: {"from": "database"} for key in keys if key == "b"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module


@pytest.mark.needs("redis", "java17")
def test_rows_come_back_in_the_order_of_their_keys(redis_server: RedisServer):
    with redis_server.create_client() as client:
        client.mset({f"t:{key}": f'"{key}"' for key in "abcde"})
    of = looked(redis_server.url)
    import pyarrow as pa

    keys = pa.array(["e", "a", None, "x", "a", "b"])
    counted: list[Any] = []
    found = lookup.look_up_keys(of, keys, counted.append)
    assert found.to_pylist() == [b'"e"', b'"a"', None, None, b'"a"', b'"b"']
    assert (counted[0].rows, counted[0].keys, counted[0].missing_keys) == (5, 4, 1)
    lookup.look_up_keys(of, keys, counted.append)
    assert (counted[1].hits, counted[1].missing_keys) == (4, 0)


@pytest.mark.needs("redis", "java17")
def test_a_changed_row_is_seen_once_the_old_one_is_too_old(redis_server: RedisServer):
    clock = Clock()
    of = looked(redis_server.url)
    asked: list[float] = []
    looking = LookupTable(of, create_redis=lambda at: StampedRedis(at, clock, asked), clock=clock)
    with redis_server.create_client() as client:
        client.set("t:a", "1")
        assert looking.get_values(["a"]) == [b"1"]
        client.set("t:a", "2")
        clock.now += 5.0
        assert looking.get_values(["a"]) == [b"1"]
        clock.now += 0.001
        assert looking.get_values(["a"]) == [b"2"]
    assert len(asked) == 2


class StampedRedis(RedisTable):
    """With the test's time in place of the machine's."""

    def __init__(self, config: RedisConfig, clock: Clock, asked: list[float]) -> None:
        super().__init__(config)
        self.clock, self.asked = clock, asked

    def fetch_values(self, keys: Sequence[str]) -> Iterator[tuple[Sequence[str], list[Any], float]]:
        for chunk, found, _ in super().fetch_values(keys):
            self.asked.append(self.clock())
            yield chunk, found, self.clock()


@pytest.mark.needs("redis", "java17")
def test_no_row_is_older_than_its_bound_while_a_writer_goes_on(redis_server: RedisServer):
    """With the clock of the machine: a value that is used was written, at the earliest, as the
    last before the bound (or the request, which is later)."""
    import time

    bound, written, stop = 0.05, dict[int, float](), threading.Event()

    def write() -> None:
        with redis_server.create_client() as client:
            number = 0
            while not stop.is_set():
                number += 1
                client.set("t:a", str(number))
                written[number] = time.monotonic()

    with redis_server.create_client() as client:
        client.set("t:a", "0")
    looking = LookupTable(looked(redis_server.url, staleness=bound))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        while len({number for number, _ in seen}) < 5:
            asked = time.monotonic()  # before the lookup: what it may use is as old as that - bound
            value = looking.get_values(["a"])[0]
            assert value is not None
            seen.append((int(value), asked))
    finally:
        stop.set()
        writer.join()
    assert looking.take_stats().hits > 0
    for number, asked in seen:
        assert number + 1 not in written or written[number + 1] >= asked - bound


def test_a_batch_waits_while_redis_is_away(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    stored = Stored(clock, {"a": b"1"}, failures=3)
    assert table(looked(), stored).get_values(["a"]) == [b"1"]
    assert clock.now > 1000.0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "is away (connection refused); the batch waits" in said[0]
    assert "answers again" in said[1]


def test_what_became_too_old_while_redis_was_away_is_not_used():
    clock = Clock()
    stored = Stored(clock, {"a": b"1"})
    looking = table(looked(), stored)
    assert looking.get_values(["a"]) == [b"1"]
    stored.rows["a"], stored.failures = b"2", 2
    clock.now += 5.5
    assert looking.get_values(["a"]) == [b"2"]
    assert stored.failures == 0


def test_an_idle_connection_that_was_closed_is_no_line_of_the_log(caplog):
    stored = Stored(Clock(), {"a": b"1"}, failures=1)
    assert table(looked(), stored).get_values(["a"]) == [b"1"]
    assert not caplog.records


@pytest.mark.needs("redis", "java17")
def test_redis_that_comes_back_is_found(redis_server: RedisServer):
    looking = LookupTable(looked(redis_server.url, staleness=0.0))
    with redis_server.create_client() as client:
        client.set("t:a", "1")
    assert looking.get_values(["a"]) == [b"1"]
    redis_server.stop()
    back = threading.Timer(0.3, redis_server.start)
    back.start()
    try:
        assert looking.get_values(["a"]) == [None]  # the new server is empty
    finally:
        back.join()


def test_the_fallback_is_asked_for_what_redis_lacks(fallback: ModuleType):
    stored = Stored(Clock(), {"a": b"1"})
    looking = table(looked(fallback="users_of_tests:find"), stored)
    assert looking.get_values(["a", "b", "c"]) == [b"1", b'{"from":"database"}', None]
    assert looking.get_values(["b", "c"]) == [b'{"from":"database"}', None]
    assert (looking.take_stats().missing_keys, stored.requests) == (2, 1)


def test_the_fallback_is_asked_for_all_while_redis_is_away(fallback: ModuleType):
    stored = Stored(Clock(), {"a": b"1"}, failures=1000)
    looking = table(looked(fallback="users_of_tests:find"), stored)
    assert looking.get_values(["b", "c"]) == [b'{"from":"database"}', None]
    assert stored.requests == 3


def test_a_fallback_that_is_not_there_is_told():
    with pytest.raises(PipelineError, match=r"'users_of_nobody:find' cannot be imported"):
        table(looked(fallback="users_of_nobody:find"), Stored(Clock(), {}))


def test_a_fallback_that_fails_may_answer_later(fallback: ModuleType):
    """The job ended for good when the fallback's database restarted."""

    def find(_: list[str]) -> None:
        raise OSError("connection refused")

    fallback.find = find  # type: ignore[attr-defined]
    with pytest.raises(PipelineUnavailable, match="fallback has failed: OSError: connection re"):
        table(looked(fallback="users_of_tests:find"), Stored(Clock(), {})).get_values(["b"])


@pytest.mark.needs("java17")
def test_a_fallback_is_not_asked_for_keys_that_are_no_text(fallback: ModuleType):
    """It is the user's, and would fail as it writes such a key: no record may end a job."""
    import pyarrow as pa

    asked: list[str] = []
    fallback.find = lambda keys: asked.extend(keys) or {}  # type: ignore[attr-defined]
    (key,) = decode_texts(pa.array([b"\xff"]))
    of = looked(fallback="users_of_tests:find")
    assert table(of, Stored(Clock(), {})).get_values([key, "b"]) == [None, None]
    assert asked == ["b"]
