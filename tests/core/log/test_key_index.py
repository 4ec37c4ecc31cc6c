from __future__ import annotations

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_peak_memory

from gateway.core.log.key_index import (
    CONTROL_KEY,
    MIN_SCANNED_ENTRIES,
    SCANS_PER_ENTRY,
    KeyIndex,
    KeyScans,
)

INDEX_KEYS = st.sampled_from([b"a", b"b", b"", CONTROL_KEY, None])


@given(st.lists(st.tuples(INDEX_KEYS, st.integers(0, 2))), st.integers(0, 50))
def test_entries_are_found_by_key_in_order_until_they_are_dropped(steps, start):
    index, empty_bytes = KeyIndex(start), KeyIndex(0).bytes
    held: deque[tuple[int, bytes | str | None]] = deque()
    for key, dropped_count in steps:
        held.append((index.end, key))
        index.extend([key])
        for _ in range(min(dropped_count, len(held))):
            number, dropped_key = held.popleft()
            index.discard(dropped_key, number)
        first, end = held[0][0] if held else index.end, index.end
        for keys in ({b"a"}, {b"a", b""}, {b"missing"}, set[bytes]()):
            wanted = {*keys, CONTROL_KEY}
            for at in (first, (first + end) // 2):
                found = list(index.iter_numbers(keys, at, end - 1))
                assert found == [n for n, each in held if each in wanted and at <= n < end - 1]
    for number, key in held:
        index.discard(key, number)
    assert index.bytes == empty_bytes


def test_the_estimated_size_is_about_what_it_takes():
    rng = random.Random(1)
    keys = [b"key-%d" % rng.randrange(20_000) for _ in range(50_000)]

    def build() -> None:
        index = KeyIndex(0)
        index.extend(keys)
        sizes.append(index.bytes)

    sizes: list[int] = []
    measured = measure_peak_memory(build)
    assert 0.7 * measured < sizes[0] < 1.5 * measured


def test_an_index_pays_once_several_readers_have_looked_at_many_entries():
    scans, end = KeyScans(), 2 * MIN_SCANNED_ENTRIES
    for _ in range(SCANS_PER_ENTRY):
        assert scans.find_start(0, end) is None
        scans.add(end - MIN_SCANNED_ENTRIES, MIN_SCANNED_ENTRIES)
    assert scans.find_start(0, end) == end - MIN_SCANNED_ENTRIES
    scans.add(0, 1)  # one that looks from the start of the log: it would have to be larger
    assert scans.find_start(0, end) is None


def test_an_index_does_not_pay_for_a_few_entries_or_for_readers_that_are_rare():
    scans = KeyScans()
    scans.add(0, MIN_SCANNED_ENTRIES - 1)
    assert scans.find_start(0, 10) is None
    for now in range(0, 100, 10):
        scans.expire(now, max_age=10.0)
        assert scans.find_start(0, 10) is None
        scans.add(0, MIN_SCANNED_ENTRIES - 1)
