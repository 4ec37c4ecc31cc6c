from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_held_memory

from gateway.core.produce.idempotency import (
    IdempotencyKey,
    IdempotencyWindow,
    RecordLocation,
    hash_record,
)
from gateway.errors import KeyReused

KEY = IdempotencyKey("orders", "/orders", "k1")
HERE = RecordLocation(2, 41)
ONE, OTHER = hash_record(None, b"one", ()), hash_record(None, b"other", ())

contents = st.none() | st.binary(max_size=4)
records = st.tuples(
    contents, contents, st.lists(st.tuples(st.text(max_size=3), contents), max_size=3)
)


def write_once(once: IdempotencyWindow[str], key: IdempotencyKey, now: float = 0.0) -> None:
    once.begin(key, ONE, "flight")
    once.add_written(key, ONE, HERE, now)
    once.end(key)


def test_a_key_is_unknown_then_under_way_then_written():
    once: IdempotencyWindow[str] = IdempotencyWindow()
    assert (once.lookup_written(KEY, ONE, 0.0), once.lookup_in_flight(KEY, ONE)) == (None, None)
    once.begin(KEY, ONE, "flight")
    assert (once.lookup_written(KEY, ONE, 0.0), once.lookup_in_flight(KEY, ONE)) == (None, "flight")
    once.add_written(KEY, ONE, HERE, 1.0)
    once.end(KEY)
    assert (once.lookup_written(KEY, ONE, 2.0), once.lookup_in_flight(KEY, ONE)) == (HERE, None)


def test_a_key_whose_write_failed_may_be_written():
    once: IdempotencyWindow[str] = IdempotencyWindow()
    once.begin(KEY, ONE, "flight")
    once.end(KEY)
    assert (once.lookup_written(KEY, OTHER, 0.0), once.lookup_in_flight(KEY, OTHER)) == (None, None)
    assert len(once) == 0


def test_a_key_with_another_record_is_refused_under_way_and_later():
    once: IdempotencyWindow[str] = IdempotencyWindow()
    once.begin(KEY, ONE, "flight")
    with pytest.raises(KeyReused, match="'k1' was used for another record of topic 'orders'"):
        once.lookup_in_flight(KEY, OTHER)
    once.add_written(KEY, ONE, HERE, 0.0)
    with pytest.raises(KeyReused):
        once.lookup_written(KEY, OTHER, 0.0)


@pytest.mark.parametrize("other", [KEY._replace(topic="bills"), KEY._replace(scope="/all")])
def test_equal_keys_of_two_topics_or_scopes_are_two(other: IdempotencyKey):
    once: IdempotencyWindow[str] = IdempotencyWindow()
    write_once(once, KEY)
    assert once.lookup_written(other, OTHER, 0.0) is None


def test_keys_are_forgotten_by_age_and_only_then():
    once: IdempotencyWindow[str] = IdempotencyWindow(max_age_s=10.0)
    write_once(once, KEY)
    assert once.lookup_written(KEY, ONE, 9.9) == HERE
    assert once.lookup_written(KEY, ONE, 10.0) is None
    assert len(once) == 0


def test_the_oldest_keys_are_forgotten_by_count():
    once: IdempotencyWindow[str] = IdempotencyWindow(max_keys=3)
    keys = [KEY._replace(text=str(number)) for number in range(5)]
    for now, key in enumerate(keys):
        write_once(once, key, float(now))
    assert [once.lookup_written(key, ONE, 5.0) is not None for key in keys] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_write_under_way_is_not_forgotten():
    once: IdempotencyWindow[str] = IdempotencyWindow(max_keys=1, max_age_s=1.0)
    once.begin(KEY, ONE, "flight")
    for number in range(9):
        write_once(once, KEY._replace(text=str(number)), 100.0)
    assert once.lookup_in_flight(KEY, ONE) == "flight"


def test_the_first_record_of_a_key_counts():
    once: IdempotencyWindow[str] = IdempotencyWindow()
    once.add_written(KEY, ONE, HERE, 0.0)
    once.add_written(KEY, ONE, RecordLocation(2, 99), 1.0)
    assert once.lookup_written(KEY, ONE, 2.0) == HERE


def test_a_dropped_key_is_where_it_was_written_or_anywhere_if_kafka_did_not_say_where():
    once: IdempotencyWindow[str] = IdempotencyWindow(max_keys=0)
    once.add_written(KEY, ONE, RecordLocation(0, 2500), 0.0)
    assert once.list_dropped_ranges(KEY, range(1700, 2600), 1.0) == [range(2000, 2600)]
    unknown = KEY._replace(text="unknown")
    once.add_written(unknown, ONE, RecordLocation(0, -1), 0.0)
    assert once.list_dropped_ranges(unknown, range(7, 9999), 1.0) == [range(7, 9999)]


def test_what_a_key_takes_is_told_and_does_not_depend_on_its_length():
    """The texts were kept: 100,000 keys from Kafka's log took 700 MB, which nobody counted."""
    once: IdempotencyWindow[str] = IdempotencyWindow()

    def add_keys() -> None:
        for number in range(2000):
            key = IdempotencyKey("orders", "/orders", f"{number}" + "\U0001f600" * 1000)
            once.add_written(key, ONE, RecordLocation(2, 10**6 + number), 0.0)

    taken = measure_held_memory(add_keys)
    assert once.used_bytes / 2 < taken < once.used_bytes * 1.5


@given(records, records)
def test_two_records_have_one_digest_only_if_they_are_one(one, other):
    assert (hash_record(*one) == hash_record(*other)) == (one == other)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.floats(0, 3)), max_size=60),
    st.integers(1, 4),
)
def test_what_is_known_is_what_was_written_lately(steps, most):
    """Against a list of all writes: the last `most` of keys no older than `age` are known, and of
    the others that are no older it is said where the log may have them."""
    once: IdempotencyWindow[str] = IdempotencyWindow(max_keys=most, max_age_s=5.0)
    model: dict[int, tuple[int, float]] = {}
    written: dict[int, tuple[int, float]] = {}
    now = 0.0
    for step, (number, write, pause) in enumerate(steps):
        offset = step * 300
        now += pause
        model = {key: known for key, known in model.items() if now - known[1] < 5.0}
        key = KEY._replace(text=str(number))
        found = once.lookup_written(key, ONE, now)
        assert found == (RecordLocation(0, model[number][0]) if number in model else None)
        if found is None and number in written and now - written[number][1] < 5.0:
            assert once.may_be_dropped(key, now)
            parts = once.list_dropped_ranges(key, range(offset), now)
            assert any(written[number][0] in part for part in parts)
        if write and found is None:
            written[number] = offset, now
            once.begin(key, ONE, "flight")
            once.add_written(key, ONE, RecordLocation(0, offset), now)
            once.end(key)
            model[number] = (offset, now)
            while len(model) > most:
                del model[next(iter(model))]
        assert len(once) <= most
