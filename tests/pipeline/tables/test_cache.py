from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.tables.lookup import BatchRequest, LookupCache, LookupStats


def answered(cache: LookupCache, keys: list[str], table: dict[str, bytes], now: float) -> list[str]:
    """One batch, from a table that answers at once: the keys that it was asked for."""
    request = BatchRequest(cache, keys, now)
    asked = []
    while request.keys_to_fetch:
        asked += request.keys_to_fetch
        request.start_round(now)
        cache.store_values(
            request.keys_to_fetch, [table.get(key) for key in request.keys_to_fetch], now
        )
        request.finish_round(now)
    assert cache.get_values(keys) == [table.get(key) for key in keys]
    cache.evict_excess()
    return asked


def test_a_key_is_asked_for_once_as_long_as_its_value_is_fresh():
    cache, table = LookupCache(size=10, staleness=5.0, negative=1.0), {"a": b"1"}
    assert answered(cache, ["a"], table, now=100.0) == ["a"]
    assert answered(cache, ["a"], table, now=105.0) == []
    assert answered(cache, ["a"], table, now=105.1) == ["a"]


def test_that_a_key_has_no_value_is_remembered_for_a_time_of_its_own():
    cache = LookupCache(size=10, staleness=5.0, negative=1.0)
    assert answered(cache, ["a"], {}, now=100.0) == ["a"]
    assert answered(cache, ["a"], {}, now=101.0) == []
    assert answered(cache, ["a"], {"a": b"1"}, now=101.1) == ["a"]


def test_that_there_is_none_is_believed_no_longer_than_a_value():
    cache = LookupCache(size=10, staleness=0.5, negative=60.0)
    answered(cache, ["a"], {}, now=100.0)
    assert answered(cache, ["a"], {"a": b"1"}, now=101.0) == ["a"]


def test_without_staleness_each_batch_asks():
    cache = LookupCache(size=10, staleness=0.0, negative=1.0)
    assert answered(cache, ["a"], {"a": b"1"}, now=100.0) == ["a"]
    assert answered(cache, ["a"], {"a": b"2"}, now=100.1) == ["a"]


def test_a_batch_of_more_keys_than_are_kept_is_answered_whole():
    """Evicted while it was being answered, some keys came out without their row."""
    cache = LookupCache(size=2, staleness=5.0, negative=1.0)
    keys = [str(number) for number in range(50)]
    answered(cache, keys, {key: key.encode() for key in keys}, now=100.0)
    assert len(cache) == 2


def test_the_keys_used_last_are_kept():
    cache, table = (
        LookupCache(size=2, staleness=5.0, negative=1.0),
        {"a": b"1", "b": b"2", "c": b"3"},
    )
    answered(cache, ["a", "b"], table, now=100.0)
    answered(cache, ["a"], table, now=101.0)
    answered(cache, ["c"], table, now=102.0)
    assert answered(cache, ["a", "b", "c"], table, now=103.0) == ["b"]


def test_the_hit_rate_is_the_share_of_rows_that_needed_no_request_of_their_own():
    assert LookupStats(rows=10, keys=5, hits=2).hit_rate == 0.7
    assert LookupStats().hit_rate == 0.0
    assert LookupStats(rows=1, keys=1) + LookupStats(rows=2, hits=1) == LookupStats(
        rows=3, keys=1, hits=1
    )


def test_keys_and_hits_are_counted():
    cache, table = LookupCache(size=10, staleness=5.0, negative=1.0), {"a": b"1", "b": b"2"}
    answered(cache, ["a"], table, now=100.0)
    answered(cache, ["a", "b"], table, now=101.0)
    answered(cache, ["a"], table, now=110.0)
    assert (cache.stats.keys, cache.stats.hits) == (4, 1)


def test_what_becomes_too_old_while_others_are_asked_for_is_asked_for_alone():
    """All keys of each batch were asked for a second time: of many some are always at their end."""
    cache = LookupCache(size=10, staleness=5.0, negative=1.0)
    answered(cache, ["a"], {"a": b"1"}, now=100.0)
    request = BatchRequest(cache, ["a", "b", "c"], 104.9)
    request.start_round(104.9)
    cache.store_values(request.keys_to_fetch, [b"2", b"3"], 104.9)
    request.finish_round(105.1)
    assert request.keys_to_fetch == ["a"]


@dataclass
class World:
    """A table whose values are the times they were written at, a clock that every step moves, and
    requests that fail half-way."""

    steps: list[float]
    failures: list[bool]
    now: float = 0.0
    written: dict[str, list[float]] = field(default_factory=dict)

    def passes(self) -> None:
        self.now += 0.001 + (self.steps.pop() if self.steps else 0.0)

    def write(self, key: str) -> None:
        self.written.setdefault(key, []).append(self.now)

    def read(self, key: str) -> bytes | None:
        times = self.written.get(key)
        return None if times is None else str(times[-1]).encode()

    def true_since(self, key: str, value: bytes | None, since: float) -> bool:
        """Was it the key's value at some time from `since` on?"""
        times = self.written.get(key, [])
        later = [time for time in times if time > since]
        earlier = [time for time in times if time <= since]
        then = str(earlier[-1]).encode() if earlier else None
        return value == then or value in [str(time).encode() for time in later]


KEYS = st.sampled_from("abcdef")


@given(
    size=st.integers(0, 6),
    staleness=st.sampled_from([0.0, 0.5, 3.0]),
    negative=st.sampled_from([0.0, 0.5, 10.0]),
    batches=st.lists(
        st.tuples(st.lists(KEYS, unique=True, max_size=6), st.lists(KEYS, max_size=3)), max_size=12
    ),
    steps=st.lists(st.floats(0.0, 2.0), max_size=60),
    failures=st.lists(st.booleans(), max_size=12),
)
def test_no_value_is_older_than_its_bound_or_the_last_request(
    size, staleness, negative, batches, steps, failures
):
    """Whatever changes, fails and takes its time: a value that is used was the table's at some
    time within `staleness`, or since the last request that did not fail began."""
    world = World(steps, failures)
    cache = LookupCache(size, staleness, negative)
    for keys, changes in batches:
        for key in changes:
            world.write(key)
        world.passes()
        request = BatchRequest(cache, keys, world.now)
        since, rounds = world.now, 0
        while request.keys_to_fetch:
            assert set(request.keys_to_fetch) <= set(keys)
            since = world.now
            request.start_round(since)
            fails = bool(world.failures) and world.failures.pop()
            rounds = 0 if fails else rounds + 1
            assert rounds <= 3  # it ends
            for key in request.keys_to_fetch[: len(request.keys_to_fetch) // 2 if fails else None]:
                asked = world.now
                world.passes()
                cache.store_values([key], [world.read(key)], asked)
                world.write("abcdef"[len(world.steps) % 6])
            world.passes()
            request.fail_round(world.now) if fails else request.finish_round(world.now)
        bound = min(since, world.now - staleness)
        for key, value in zip(keys, cache.get_values(keys), strict=True):
            assert world.true_since(key, value, bound)
        cache.evict_excess()
        assert len(cache) <= size
