from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_held_memory

from gateway.core.client.terms import WINDOW_PARTS, Throttle


def test_as_many_as_there_is_room_for_come_at_once_and_the_next_when_their_time_is_over():
    throttle = Throttle(100, 1.0)
    assert throttle.get_capacity(10.0) == 100
    throttle.record_sent(70, 10.0)
    throttle.record_sent(30, 10.4)
    assert throttle.get_capacity(10.9) == 0
    assert throttle.next_capacity_at(10.9) == 11.0
    assert throttle.get_capacity(11.0) == 70
    assert throttle.get_capacity(11.4) == 100


@given(
    st.integers(1, 20), st.sampled_from([1.0, 60.0, 3600.0]),
    st.lists(st.tuples(st.floats(0, 0.4), st.integers(0, 25)), max_size=80),
)  # fmt: skip
def test_in_no_span_of_that_length_more_is_sent_and_what_waits_long_enough_is(most, within, steps):
    throttle, now = Throttle(most, within), 1000.0
    sent: list[tuple[float, int]] = []
    for pause, wanted in steps:
        now += pause * within
        room = throttle.get_capacity(now)
        spent = min(wanted, room)
        if spent:
            throttle.record_sent(spent, now)
            sent.append((now, spent))
        lately = sum(n for at, n in sent if now < at + within)  # rounded as there
        assert lately <= most
        if throttle.get_capacity(now) == 0:
            again = throttle.next_capacity_at(now)
            assert now < again <= now + within
            assert Throttle(most, within, throttle).get_capacity(again) > 0
    assert throttle.get_capacity(now + within) == most


@given(st.integers(1, 50), st.integers(1, 10))
def test_one_that_wants_more_than_it_may_have_gets_all_that_it_may(most, seconds):
    """Asked at every moment when there is room."""
    throttle, now, sent = Throttle(most, 1.0), 0.0, 0
    while now < seconds:
        room = throttle.get_capacity(now)
        if room:
            throttle.record_sent(room, now)
            sent += room
        else:
            now = throttle.next_capacity_at(now)
    assert sent == most * seconds


def test_what_one_let_through_counts_for_the_next_of_another_rate():
    first = Throttle(100, 1.0)
    first.record_sent(60, 10.0)
    then = Throttle(50, 1.0, first)
    first.record_sent(40, 10.5)
    assert then.get_capacity(10.9) == 0
    assert then.get_capacity(11.0) == 50


def test_it_remembers_little_however_often_something_is_sent():
    throttle = Throttle(10**6, 1.0)

    def send_records() -> None:
        for n in range(5000):
            throttle.get_capacity(n / 1000)
            throttle.record_sent(1, n / 1000)

    assert measure_held_memory(send_records) < WINDOW_PARTS * 1000
