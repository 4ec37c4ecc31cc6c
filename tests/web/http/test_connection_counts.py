"""Who is there, by worker and key, and who comes how often."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limits, loads
from gateway.web.http.shared_counts import (
    MIN_SWEPT_NAMES,
    TOTAL_KEY,
    ConnectionCounts,
    GcraLimiter,
    LimitKind,
    LimitRefusal,
    count_keys,
)

MOST = {LimitKind.ALL: 6, LimitKind.ADDRESS: 3, LimitKind.IDENTITY: 2}
KEYS = [
    [TOTAL_KEY],
    *([TOTAL_KEY, LimitKind.ADDRESS.build_key(each)] for each in "ab"),
    *(
        [TOTAL_KEY, LimitKind.ADDRESS.build_key("a"), LimitKind.IDENTITY.build_key(each)]
        for each in ("ada", "bob")
    ),
    [LimitKind.IDENTITY.build_key("ada")],
]


@given(st.lists(st.tuples(
    st.sampled_from(["take", "give", "forget", "add"]), st.integers(1, 3), st.sampled_from(KEYS)
)))  # fmt: skip
def test_the_counts_are_those_of_who_is_there_and_only_what_is_added_goes_over(steps):
    ledger = ConnectionCounts(MOST)
    there: Counter[tuple[int, str]] = Counter()

    def count_key(key: str) -> int:
        return sum(n for (_, each), n in there.items() if each == key)

    for step, worker, keys in steps:
        if step == "take":
            kinds = [LimitKind(key.partition(":")[0]) for key in keys]
            over = [
                kind for kind, key in zip(kinds, keys, strict=True) if count_key(key) >= MOST[kind]
            ]
            refused = ledger.acquire(worker, keys, 0.0)
            assert refused == (LimitRefusal(over[0]) if over else None)
            there.update({(worker, key): 1 for key in keys} if not over else {})
        elif step == "add":
            ledger.add(worker, count_keys(keys))
            there.update({(worker, key): 1 for key in keys})
        elif step == "give":
            ledger.release(worker, count_keys(keys))
            for key in keys:
                there[worker, key] -= there[worker, key] > 0
        else:
            ledger.remove_worker(worker)
            there = Counter({key: n for key, n in there.items() if key[0] != worker})
        assert ledger.total == count_key(TOTAL_KEY)
        held = {key: n for (each, key), n in there.items() if n and each == worker}
        assert dict(ledger.get_held(worker)) == held


@given(
    st.integers(1, 5), st.sampled_from([0.05, 1.0, 7.0]),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=60),
)  # fmt: skip
def test_in_no_time_more_come_than_the_burst_and_what_the_rate_lets_in(burst, interval, steps):
    arrivals, now = GcraLimiter(interval, burst), 1000.0
    came: dict[str, list[float]] = {"a": [], "b": []}
    for name, pause in steps:
        now += pause
        wait = arrivals.register_arrival(name, now)
        if wait:
            assert wait <= interval + 1e-6
            assert arrivals.register_arrival(name, now + 0.99 * wait) > 0
            assert not came[name] or now - came[name][-1] < interval + 1e-6
        else:
            came[name].append(now)
        for times in came.values():
            for n, first in enumerate(times):
                assert len(times) - n <= burst + (times[-1] - first) / interval + 1e-6


def test_who_waits_as_long_as_it_is_told_may_come():
    arrivals = GcraLimiter(2.0, 3)
    assert [arrivals.register_arrival("a", 10.0) for _ in range(3)] == [0, 0, 0]
    wait = arrivals.register_arrival("a", 10.5)
    assert wait == pytest.approx(1.5)
    assert arrivals.register_arrival("b", 10.5) == 0
    assert arrivals.register_arrival("a", 10.5 + wait) == 0
    assert arrivals.register_arrival("a", 10.5 + wait) == pytest.approx(2.0)


def test_addresses_that_came_long_ago_are_forgotten():
    arrivals = GcraLimiter(1.0, 10)
    for n in range(100 * MIN_SWEPT_NAMES):
        assert arrivals.register_arrival(f"{n}", n / 1000) == 0
    assert len(arrivals) <= 4 * MIN_SWEPT_NAMES


def test_a_rate_holds_no_place():
    ledger = ConnectionCounts({}, GcraLimiter(60.0, 1))
    key = [LimitKind.RATE.build_key("a")]
    assert ledger.acquire(1, key, 0.0) is None
    assert ledger.acquire(2, key, 15.0) == LimitRefusal(LimitKind.RATE, 45.0)
    assert not ledger.get_held(1) and ledger.total == 0


@pytest.mark.parametrize(
    ("written", "workers", "at_once"),
    [
        ("{rate: 3/h}", 1, 3),
        ("{rate: 3/h, burst: 5}", 1, 5),
        ("{rate: 3/h, burst: 5}", 2, 3),
        ("{rate: 3/h}", 8, 1),
    ],
)
def test_the_burst_is_the_number_of_the_rate_unless_told(written: str, workers: int, at_once: int):
    ledger = ConnectionCounts.from_settings(parse_limits(written), workers)
    key = [LimitKind.RATE.build_key("a")]
    refused = [ledger.acquire(0, key, 0.0) for _ in range(at_once + 1)]
    assert refused[:-1] == [None] * at_once
    assert refused[-1] == LimitRefusal(LimitKind.RATE, pytest.approx(1200.0 * workers))


def test_one_of_several_has_its_share_of_each_limit():
    ledger = ConnectionCounts.from_settings(
        parse_limits("{connections: 9, perAddress: 5, perIdentity: 2}"), 3
    )
    for kind, share in ((LimitKind.IDENTITY, 1), (LimitKind.ADDRESS, 2), (LimitKind.ALL, 3)):
        key = [kind.build_key("x" if kind is not LimitKind.ALL else "")]
        assert [ledger.acquire(0, key, 0.0) for _ in range(share + 1)] == [
            *[None] * share, LimitRefusal(kind)
        ]  # fmt: skip


def parse_limits(written: str) -> Limits:
    text = f"kafka: {{servers: [a:1]}}\nlisten: {{limits: {written}}}\n"
    return loads(text).listen.limits
